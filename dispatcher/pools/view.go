package pools

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/flowcontrol/elastic"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

// View is a picture of all pools. It never changes.
type View struct {
	At      time.Time // zero: there is none yet
	Pools   []*Pool   // by tenant and name
	Missing []string  // nodes that own something and have told nothing for Life
	loads   map[core.FunctionName][]elastic.Load
}

// Pool is the executors that run the same functions; none, if nobody runs the one.
type Pool struct {
	Tenant    string // "": of several
	Name      string
	Functions []core.FunctionName
	Executors []Executor // in the order of leaving
	Slots     int        // of those that don't drain
	Running   int
	Waiting   int64
	Arrival   float64       // tasks that become due, a second
	Service   time.Duration // of a try, by arrivals; 0: unknown
	Loads     []elastic.Load
	Need      elastic.Need
	Desired   int
	// SlotsPerExecutor is of those that there are or were last; 0: unknown.
	SlotsPerExecutor float64

	key  string
	live int // executors that don't drain
}

// Executor is one of a pool.
type Executor struct {
	ID       []byte
	Name     string
	Slots    int
	Running  int
	Busy     time.Duration // that its running tries have run in all
	Draining bool
}

// DeletionCost is what its end would cost, in seconds of work, rounded up.
func (x Executor) DeletionCost() uint32 {
	return uint32(min(math.Ceil(x.Busy.Seconds()), math.MaxInt32))
}

// Loads returns what functions of a tenant have, on all nodes and whoever runs them.
func (v *View) Loads(tenant string, functions []string) []elastic.Load {
	var out []elastic.Load
	for _, f := range functions {
		out = append(out, v.loads[core.FunctionName{Tenant: tenant, Name: f}]...)
	}
	return out
}

// join adds up what nodes told.
func join(reports []Report) *View {
	v := &View{loads: map[core.FunctionName][]elastic.Load{}}
	pools := map[string]*Pool{}
	executors := map[string]map[string]*Executor{} // by pool and id
	runs := map[core.FunctionName][]*Pool{}
	for _, r := range reports {
		for _, f := range r.Stats.Functions {
			name := core.FunctionName{Tenant: f.Tenant, Name: f.Name}
			l := elastic.Load{Waiting: float64(f.Waiting), Running: float64(f.Running), Arrival: f.ArrivalRate,
				Service: time.Duration(f.ServiceMicros) * time.Microsecond, Limit: -1, Downstream: r.Node + "/" + f.Tenant + "/" + f.Downstream}
			if f.Limit != nil {
				l.Limit = *f.Limit
			}
			v.loads[name] = append(v.loads[name], l)
		}
		for _, m := range r.Stats.Pools {
			q := newPool(m.Functions)
			if old := pools[q.key]; old != nil {
				q = old
			} else {
				pools[q.key] = q
				executors[q.key] = map[string]*Executor{}
				for _, f := range q.Functions {
					runs[f] = append(runs[f], q)
				}
			}
			for _, e := range m.Executors {
				x := executors[q.key][string(e.Id)]
				if x == nil {
					x = &Executor{ID: e.Id, Name: e.Name, Slots: int(e.Slots)}
					executors[q.key][string(e.Id)] = x
				}
				x.Running += int(e.Running)
				x.Busy += time.Duration(e.BusyMillis) * time.Millisecond
				x.Draining = x.Draining || e.Draining
			}
		}
	}
	for key, q := range pools {
		q.seat(executors[key])
	}
	names := make([]core.FunctionName, 0, len(v.loads))
	for name := range v.loads {
		names = append(names, name)
	}
	slices.SortFunc(names, compareNames)
	for _, name := range names {
		if len(runs[name]) == 0 {
			q := newPool([]*headracev1.PeerFunctionName{{Tenant: name.Tenant, Name: name.Name}})
			pools[q.key] = q
			runs[name] = []*Pool{q}
		}
		share(v.loads[name], runs[name])
	}
	for _, q := range pools {
		q.sum()
		v.Pools = append(v.Pools, q)
	}
	slices.SortFunc(v.Pools, func(a, b *Pool) int {
		return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Name, b.Name), strings.Compare(a.key, b.key))
	})
	return v
}

func compareNames(a, b core.FunctionName) int {
	return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Name, b.Name))
}

func newPool(fs []*headracev1.PeerFunctionName) *Pool {
	q := &Pool{}
	for i, f := range fs {
		q.Functions = append(q.Functions, core.FunctionName{Tenant: f.Tenant, Name: f.Name})
		if i == 0 {
			q.Tenant = f.Tenant
		} else if f.Tenant != q.Tenant {
			q.Tenant = ""
		}
	}
	slices.SortFunc(q.Functions, compareNames)
	var names, keys []string
	for _, f := range q.Functions {
		key := f.Tenant + "/" + f.Name
		keys = append(keys, key)
		if q.Tenant == "" {
			names = append(names, key)
		} else {
			names = append(names, f.Name)
		}
	}
	q.Name, q.key = strings.Join(names, "+"), strings.Join(keys, "+")
	return q
}

// seat gives a pool its executors, in the order of leaving: those that drain already, then those whose end costs least.
// Of idle ones the fewer slots leave first, and of like ones the order never changes.
func (q *Pool) seat(xs map[string]*Executor) {
	for _, x := range xs {
		q.Executors = append(q.Executors, *x)
		if !x.Draining {
			q.live++
			q.Slots += x.Slots
		}
	}
	rank := func(x Executor) int {
		switch {
		case x.Draining:
			return 0
		case x.Running == 0:
			return 1
		}
		return 2
	}
	slices.SortFunc(q.Executors, func(a, b Executor) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Busy, b.Busy), cmp.Compare(a.Running, b.Running), cmp.Compare(a.Slots, b.Slots), bytes.Compare(a.ID, b.ID))
	})
}

// share divides a function among the pools that run it, by their slots.
func share(loads []elastic.Load, pools []*Pool) {
	all := 0
	for _, q := range pools {
		all += q.Slots
	}
	for _, q := range pools {
		part := 1 / float64(len(pools))
		if all > 0 {
			part = float64(q.Slots) / float64(all)
		}
		for _, l := range loads {
			l.Waiting, l.Running, l.Arrival = l.Waiting*part, l.Running*part, l.Arrival*part
			if l.Limit >= 0 {
				l.Limit *= part
			}
			q.Loads = append(q.Loads, l)
		}
	}
}

// sum adds up the loads, for people.
func (q *Pool) sum() {
	var waiting, running, seconds, known float64
	for _, l := range q.Loads {
		waiting, running, q.Arrival = waiting+l.Waiting, running+l.Running, q.Arrival+l.Arrival
		if l.Service > 0 {
			seconds, known = seconds+l.Service.Seconds()*(l.Arrival+1e-9), known+l.Arrival+1e-9
		}
	}
	if known > 0 {
		q.Service = time.Duration(seconds / known * float64(time.Second))
	}
	q.Waiting, q.Running = int64(math.Round(waiting)), int(math.Round(running))
}
