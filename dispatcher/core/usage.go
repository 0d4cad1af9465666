package core

import (
	"slices"
	"strings"
	"time"

	"github.com/headrace/headrace/task"
)

// usage is what a tenant has in a partition. Ready rows are counted exactly, from the takeover on: the store
// knows how many there were. Scheduled ones of earlier owners are not in the count before they are due.
type usage struct {
	ready, scheduled int64
	bytes            int64 // of payloads
}

// TenantUsage is what a tenant has in all partitions of the node.
type TenantUsage struct {
	Tenant    string
	Ready     int64  // rows that are due and not finished, running ones too
	Scheduled int64  // rows that are due later; of those from before a takeover none
	Bytes     int64  // of the payloads of both
	Ended     uint64 // tasks that ended since the node started
}

// Usages returns what each tenant has that has something, by name. It looks at every tenant in every partition.
func (c *Core) Usages() []TenantUsage {
	all := make([]TenantUsage, 0, len(c.tenants))
	at := make(map[*tenant]int, len(c.tenants))
	for _, p := range c.order {
		for t, u := range p.usage { // sums: the order does not matter
			i, seen := at[t]
			if !seen {
				i = len(all)
				at[t] = i
				all = append(all, TenantUsage{Tenant: t.name, Ended: t.ended})
			}
			all[i].Ready += u.ready
			all[i].Scheduled += u.scheduled
			all[i].Bytes += u.bytes
		}
	}
	slices.SortFunc(all, func(a, b TenantUsage) int { return strings.Compare(a.Tenant, b.Tenant) })
	return all
}

// usageOf returns the counters of a tenant in a partition.
func (p *partition) usageOf(t *tenant) *usage {
	u := p.usage[t]
	if u == nil {
		u = &usage{}
		p.usage[t] = u
	}
	return u
}

// Strain is what the submits of one cost all others on the node, each as a part of what makes it refuse.
type Strain struct {
	Queue  float64       // of the commits' queue
	Memory float64       // of the bytes that tasks may take in memory
	Commit time.Duration // that the oldest commit under way has taken so far
}

// Strain returns what the node bears now.
func (c *Core) Strain(now time.Time) (s Strain) {
	for _, db := range c.databases {
		if db == nil {
			continue
		}
		s.Queue = max(s.Queue, float64(db.queued)/maxQueuedChanges, float64(db.bytes)/maxQueuedBytes)
		if db.inFlight != nil {
			s.Commit = max(s.Commit, now.Sub(db.leftAt))
		}
	}
	s.Memory = float64(c.bytes) / float64(c.cfg.NodeWindowBytes)
	return s
}

// SetTenant changes a tenant's weight and class among those that want the same executors. Config.Standing says the same
// from now on.
func (c *Core) SetTenant(now time.Time, name string, weight int, class task.TenantClass) {
	c.enter(now)
	t := c.tenants[name]
	if t == nil {
		return
	}
	t.stand(weight, class)
	for _, p := range c.pools {
		if b := p.benches[t]; b != nil {
			p.stand(b, t)
		}
	}
}
