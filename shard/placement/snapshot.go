package placement

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/shard/member"
)

// buckets is how many parts a snapshot has, so that one change copies one part.
const buckets = 256

// keptEvents is how many changes the registry keeps.
const keptEvents = 256

// Event is one change of a stored placement.
type Event struct {
	Number  uint64    `json:"n"` // grows with each
	At      time.Time `json:"at"`
	Tenant  string    `json:"tenant"`
	Version uint64    `json:"version"` // of the placement after it
	Reason  string    `json:"reason"`  // shard.Reason in words
	Note    string    `json:"note,omitempty"`
	From    []uint32  `json:"from"`
	To      []uint32  `json:"to"`
}

// Snapshot is all placements as they were last heard. It never changes.
type Snapshot struct {
	parts  [buckets]map[string]*entry
	events map[int]eventItem // by slot
	loaded bool              // a list has been read
}

type entry struct {
	p        shard.Placement
	revision int64 // of the key
	resolved atomic.Pointer[resolved]
}

// resolved is what an entry means with one catalogue.
type resolved struct {
	catalogue []shard.Partition
	shard     Shard
}

type eventItem struct {
	Event
	revision int64
}

func bucket(tenant string) int {
	h := uint32(2166136261)
	for i := range len(tenant) {
		h = (h ^ uint32(tenant[i])) * 16777619
	}
	return int(h % buckets)
}

func (s *Snapshot) get(tenant string) *entry { return s.parts[bucket(tenant)][tenant] }

// Get returns a tenant's stored placement.
func (s *Snapshot) Get(tenant string) (shard.Placement, bool) {
	if e := s.get(tenant); e != nil {
		return e.p, true
	}
	return shard.Placement{}, false
}

// Len is how many there are.
func (s *Snapshot) Len() (n int) {
	for _, m := range s.parts {
		n += len(m)
	}
	return n
}

// All returns the placements by tenant, those after a name only ("": all).
func (s *Snapshot) All(after string) []shard.Placement {
	var all []shard.Placement
	for _, m := range s.parts {
		for tenant, e := range m {
			if tenant > after {
				all = append(all, e.p)
			}
		}
	}
	slices.SortFunc(all, func(a, b shard.Placement) int { return strings.Compare(a.Tenant, b.Tenant) })
	return all
}

// Events returns the kept changes, newest first.
func (s *Snapshot) Events() []Event {
	var all []Event
	for _, e := range s.events {
		all = append(all, e.Event)
	}
	slices.SortFunc(all, func(a, b Event) int { return cmp.Compare(b.Number, a.Number) })
	return all
}

// with returns the snapshot after changes, oldest first. Older news of a key than what is there changes
// nothing. Bad is the first value that could not be read; its key counts as it was.
func (s *Snapshot) with(k keys, changes []member.Change) (next *Snapshot, touched []string, bad error) {
	next = &Snapshot{parts: s.parts, events: s.events, loaded: s.loaded}
	copied := map[int]bool{}
	events := false
	for _, c := range changes {
		if slot, ok := k.slot(c.Key); ok {
			if !events {
				next.events, events = maps.Clone(s.events), true
				if next.events == nil {
					next.events = map[int]eventItem{}
				}
			}
			if next.events[slot].revision >= c.Revision {
				continue
			}
			delete(next.events, slot)
			if !c.Deleted {
				e := eventItem{revision: c.Revision}
				if err := json.Unmarshal(c.Value, &e.Event); err != nil {
					bad = cmp.Or(bad, fmt.Errorf("read %s: %w", c.Key, err))
					continue
				}
				next.events[slot] = e
			}
			continue
		}
		tenant, ok := strings.CutPrefix(c.Key, k.tenants())
		if !ok {
			continue
		}
		b := bucket(tenant)
		if old := next.parts[b][tenant]; old != nil && old.revision >= c.Revision {
			continue
		}
		if !copied[b] {
			copied[b] = true
			next.parts[b] = maps.Clone(next.parts[b])
			if next.parts[b] == nil {
				next.parts[b] = map[string]*entry{}
			}
		}
		if c.Deleted {
			delete(next.parts[b], tenant)
			continue
		}
		p, err := shard.DecodePlacement(tenant, c.Value)
		if err != nil {
			bad = cmp.Or(bad, fmt.Errorf("read %s: %w", c.Key, err))
			continue
		}
		next.parts[b][tenant] = &entry{p: p, revision: c.Revision}
		touched = append(touched, tenant)
	}
	return next, touched, bad
}

// keys builds the paths.
type keys string

func (k keys) tenants() string             { return string(k) + "tenants/" }
func (k keys) tenant(tenant string) string { return k.tenants() + tenant }
func (k keys) event(slot int) string       { return fmt.Sprintf("%sevents/%03d", string(k), slot) }

func (k keys) slot(key string) (slot int, ok bool) {
	s, ok := strings.CutPrefix(key, string(k)+"events/")
	if !ok {
		return 0, false
	}
	if _, err := fmt.Sscanf(s, "%03d", &slot); err != nil || slot < 0 || slot >= keptEvents {
		return 0, false
	}
	return slot, true
}

// newest is the highest revision in it.
func (s *Snapshot) newest() (revision int64) {
	for _, m := range s.parts {
		for _, e := range m {
			revision = max(revision, e.revision)
		}
	}
	return revision
}
