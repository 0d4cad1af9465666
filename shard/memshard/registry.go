package memshard

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/headrace/headrace/shard/member"
)

// historyMax is how many changes a watch may be behind; one that is further is closed, as by a compaction.
const historyMax = 10_000

// Registry is the shared state of one cluster.
type Registry struct {
	mu       sync.Mutex // guards following; never held while waiting
	items    map[string]member.Item
	leases   map[member.LeaseID]*lease
	lastID   member.LeaseID
	revision int64
	history  [][]member.Change // one entry for each write, oldest first
	first    int64             // revision of history[0]
	news     chan struct{}     // closed and replaced at each write
	up       chan struct{}     // closed while the registry is up
	closed   bool
}

type lease struct {
	ttl    time.Duration
	timer  *time.Timer // ends it
	frozen bool        // the registry is down: leases don't run out
}

// New returns an empty registry.
func New() *Registry {
	up := make(chan struct{})
	close(up)
	return &Registry{
		items:  map[string]member.Item{},
		leases: map[member.LeaseID]*lease{},
		first:  1,
		news:   make(chan struct{}),
		up:     up,
	}
}

// Close stops all timers. Leases do not run out any more.
func (r *Registry) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for _, l := range r.leases {
		l.timer.Stop()
	}
}

// Stop begins an outage for all: calls wait for its end or their contexts, leases stand still.
func (r *Registry) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if isClosed(r.up) {
		r.up = make(chan struct{})
	}
	for _, l := range r.leases {
		l.frozen = true
		l.timer.Stop()
	}
}

// Start ends the outage. Leases begin anew with their full TTL, as after an election in etcd.
func (r *Registry) Start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !isClosed(r.up) {
		close(r.up)
	}
	for _, l := range r.leases {
		l.frozen = false
		l.timer.Reset(l.ttl)
	}
}

// Leases lists the leases that live, oldest first.
func (r *Registry) Leases() []member.LeaseID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.leases))
}

// Expire ends a lease now, as if its time had run out. It reports whether the lease was there.
func (r *Registry) Expire(id member.LeaseID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.endLocked(id)
}

// Delete deletes a key, as an operator might.
func (r *Registry) Delete(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writeLocked([]member.Op{{Key: key, Delete: true}})
}

func (r *Registry) grantLocked(ttl time.Duration) member.LeaseID {
	r.lastID++
	id := r.lastID
	r.leases[id] = &lease{ttl: ttl, timer: time.AfterFunc(ttl, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if l := r.leases[id]; l != nil && !l.frozen && !r.closed {
			r.endLocked(id)
		}
	})}
	return id
}

func (r *Registry) endLocked(id member.LeaseID) bool {
	l := r.leases[id]
	if l == nil {
		return false
	}
	l.timer.Stop()
	delete(r.leases, id)
	var ops []member.Op
	for _, key := range slices.Sorted(maps.Keys(r.items)) {
		if r.items[key].Lease == id {
			ops = append(ops, member.Op{Key: key, Delete: true})
		}
	}
	r.writeLocked(ops)
	return true
}

func (r *Registry) holdsLocked(c member.Cond) bool {
	it, there := r.items[c.Key]
	if c.Lease != 0 {
		return there && it.Lease == c.Lease
	}
	return it.Revision == c.Revision
}

// writeLocked applies operations under one new revision; if they change nothing there is none.
func (r *Registry) writeLocked(ops []member.Op) {
	revision := r.revision + 1
	var changes []member.Change
	for _, op := range ops {
		if op.Delete {
			if _, there := r.items[op.Key]; there {
				delete(r.items, op.Key)
				changes = append(changes, member.Change{Item: member.Item{Key: op.Key, Revision: revision}, Deleted: true})
			}
			continue
		}
		it := member.Item{Key: op.Key, Value: slices.Clone(op.Value), Lease: op.Lease, Revision: revision, Writes: r.items[op.Key].Writes + 1}
		r.items[op.Key] = it
		changes = append(changes, member.Change{Item: it})
	}
	if len(changes) == 0 {
		return
	}
	r.revision = revision
	r.history = append(r.history, changes)
	if len(r.history) > historyMax {
		r.history = slices.Clone(r.history[historyMax/2:])
		r.first = revision - int64(len(r.history)) + 1
	}
	close(r.news)
	r.news = make(chan struct{})
}

// after returns the changes with the prefix in the first write after a revision, that write's revision, and a
// channel that closes at the next write if there is none yet. ok is false if they are forgotten.
func (r *Registry) after(prefix string, revision int64) (changes []member.Change, at int64, news <-chan struct{}, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if revision+1 < r.first {
		return nil, 0, nil, false
	}
	if revision >= r.revision {
		return nil, revision, r.news, true
	}
	for _, c := range r.history[revision+1-r.first] {
		if strings.HasPrefix(c.Key, prefix) {
			changes = append(changes, c)
		}
	}
	return changes, revision + 1, nil, true
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Backup is what a registry held at a moment.
type Backup struct {
	items    map[string]member.Item
	revision int64
}

// Backup returns what the registry holds, as a snapshot of etcd does.
func (r *Registry) Backup() *Backup {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &Backup{maps.Clone(r.items), r.revision}
}

// Restore makes the registry what a backup is; nil: empty, as a new one. Revisions go back, the history is gone.
// Leases that the backup knows live on with their full TTL if they are there still, those that it does not know are
// gone; keys on leases that have ended meanwhile end with the backup's lease, which nobody keeps alive.
func (r *Registry) Restore(b *Backup) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b == nil {
		b = &Backup{}
	}
	known := map[member.LeaseID]bool{}
	for _, it := range b.items {
		known[it.Lease] = true
	}
	for id, l := range r.leases {
		l.timer.Stop()
		if !known[id] {
			delete(r.leases, id)
		} else if !l.frozen && !r.closed {
			l.timer.Reset(l.ttl)
		}
	}
	r.items, r.revision = map[string]member.Item{}, b.revision
	for key, it := range b.items {
		if it.Lease != 0 && r.leases[it.Lease] == nil {
			r.reviveLocked(it.Lease)
		}
		r.items[key] = it
	}
	r.history, r.first = nil, b.revision+1
	close(r.news)
	r.news = make(chan struct{})
}

// restoredTTL is that of a lease which ended after a backup, when the backup brings it back.
const restoredTTL = 5 * time.Second

func (r *Registry) reviveLocked(id member.LeaseID) {
	r.leases[id] = &lease{ttl: restoredTTL, timer: time.AfterFunc(restoredTTL, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if l := r.leases[id]; l != nil && !l.frozen && !r.closed {
			r.endLocked(id)
		}
	})}
}
