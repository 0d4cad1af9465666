package shares

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// owner is a node of a quiet cluster: tasks come at a rate, run for a while, and wait for a permit.
type owner struct {
	name  string
	rate  float64 // of arrivals a second; 0: there is always something to do
	lease Lease
	at    time.Duration // of its reports within Every
	seq   uint64
	queue []time.Duration
	ends  []time.Duration
	count int             // starts since it was reset
	waits []time.Duration // of these
}

// quiet runs owners for a time. The first has all of the limit when it begins.
func quiet(owners []*owner, limit int, service time.Duration, seed uint64, long time.Duration, each func(at time.Duration)) {
	r := rand.New(rand.NewPCG(seed, 5))
	began := time.Unix(1000, 0)
	var names []string
	for _, o := range owners {
		names = append(names, o.name)
	}
	c := NewPools(Coordinator(simKey, names))
	c.SetView(began, names, []uint32{0})
	c.SetLimit(began, simKey, Limit{Concurrency: limit})
	for at := time.Duration(0); at < long; at += time.Millisecond {
		now := began.Add(at)
		for i, o := range owners {
			o.ends = slices.DeleteFunc(o.ends, func(e time.Duration) bool { return e <= at })
			if o.rate > 0 && r.Float64() < o.rate/1000 {
				o.queue = append(o.queue, at)
			} else if o.rate == 0 {
				o.queue = []time.Duration{at, at, at, at, at, at, at, at, at, at}
			}
			if at%Every == o.at {
				o.seq++
				ready := len(o.queue)
				if o.rate == 0 {
					ready = 1000
				}
				rep := Report{Node: o.name, Seq: o.seq, Known: simKey.Sum(), Uses: []Use{{Key: simKey, InUse: len(o.ends), Ready: ready, Share: o.lease.Share(now)}}}
				if i == 0 {
					rep.Open = []Opened{{0, 1}}
				}
				for _, g := range c.Report(now, rep).Grants {
					o.lease.Grant(now, g)
				}
			}
			for len(o.queue) > 0 && len(o.ends) < o.lease.Share(now) {
				o.waits = append(o.waits, at-o.queue[0])
				o.queue = o.queue[1:]
				o.count++
				o.ends = append(o.ends, at+time.Duration((0.5+r.Float64())*float64(service)))
			}
		}
		each(at)
	}
}

func owners(rates ...float64) (os []*owner) {
	for i, r := range rates {
		os = append(os, &owner{name: fmt.Sprint("n", i), rate: r, at: time.Duration(i) * 61 * time.Millisecond})
	}
	return os
}

// Four that always have something to do get the same, within ten seconds of the moment when three of them came.
func TestJain(t *testing.T) {
	for _, limit := range []int{100, 10, 3} {
		os := owners(0, 0.0001, 0.0001, 0.0001)
		came := 5 * time.Second
		took := map[string]int{}
		quiet(os, limit, 200*time.Millisecond, 3, 75*time.Second, func(at time.Duration) {
			if at == came {
				for _, o := range os {
					o.rate = 0
				}
			}
			if at == came+10*time.Second {
				for _, o := range os {
					took[o.name] = o.count
				}
			}
		})
		sum, squares := 0.0, 0.0
		for _, o := range os {
			x := float64(o.count - took[o.name])
			sum, squares = sum+x, squares+x*x
		}
		jain := sum * sum / 4 / squares
		used := sum * 0.2 / 60 / float64(limit)
		t.Logf("limit %d: Jain %.4f, %.2f of it used", limit, jain, used)
		if jain < 0.98 || used < 0.8 || limit >= 10 && used < 0.95 {
			t.Errorf("limit %d: Jain %.3f, %.2f of it used", limit, jain, used)
		}
	}
}

// At 89 % load the three that have little to do wait 100 ms at most on average, beside the one that has much.
func TestLightOwners(t *testing.T) {
	for seed := range uint64(5) {
		os := owners(750, 50, 25, 25)
		quiet(os, 100, 105*time.Millisecond, seed, 40*time.Second, func(at time.Duration) {
			if at == 10*time.Second {
				for _, o := range os {
					o.waits = o.waits[:0]
				}
			}
		})
		for i, o := range os {
			sum := time.Duration(0)
			for _, d := range o.waits {
				sum += d
			}
			mean := sum / time.Duration(len(o.waits))
			t.Logf("seed %d, %g/s: %v", seed, o.rate, mean)
			if i > 0 && mean > 100*time.Millisecond || mean > 2*time.Second {
				t.Errorf("seed %d: with %g/s tasks wait %v", seed, o.rate, mean)
			}
		}
	}
}
