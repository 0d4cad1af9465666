package shard

import (
	"fmt"
	"math"
	"slices"
	"testing"
)

// close to n significant digits.
func near(got, want float64, digits int) bool {
	return math.Abs(got-want) <= math.Abs(want)*0.5*math.Pow(10, float64(1-digits))+1e-300
}

// Every shard of 8 choose 2, against every other: 15, 12 and 1 of 28.
func TestOverlapByCounting(t *testing.T) {
	counts := [3]int{}
	for a := range 8 {
		for b := range a {
			n := 0
			for _, x := range []int{a, b} {
				if x < 2 { // the other tenant's are 0 and 1
					n++
				}
			}
			counts[n]++
		}
	}
	if counts != [3]int{15, 12, 1} {
		t.Fatalf("counted %v", counts)
	}
	for j, p := range Overlap(8, 2) {
		if p != float64(counts[j])/28 {
			t.Errorf("%d shared: %v, want %d/28", j, p, counts[j])
		}
	}
}

// The table of algorithms.md §1.3.
func TestOverlapTable(t *testing.T) {
	for _, c := range []struct {
		n, k  int
		sets  float64 // C(n,k)
		first []float64
	}{
		{3, 2, 3, []float64{0, .6667, .3333}},
		{8, 2, 28, []float64{.5357, .4286, .0357}},
		{16, 4, 1820, []float64{.2720, .4835, .2176, .0264, .0005}},
		{32, 4, 35960, []float64{.5694, .3644, .0631, .0031}},
		{64, 2, 2016, []float64{.9380, .0615, .0005}},
		{64, 4, 635376, []float64{.7675, .2154, .0167, .00038, .0000016}},
		{100, 2, 4950, []float64{.9602, .0396, .0002}},
		{100, 5, 75287520, []float64{.7696, .2114, .0184, .0006}},
		{128, 4, 10668000, []float64{.8794, .1163, .0043}},
		{256, 4, 174792640, []float64{.9386, .0603, .0011}},
		{2048, 4, 730862190080, []float64{.9922}},
	} {
		got := Overlap(c.n, c.k)
		if len(got) != c.k+1 || !near(got[c.k], 1/c.sets, 12) {
			t.Errorf("%d choose %d: completely covered %g, want 1/%g", c.n, c.k, got[len(got)-1], c.sets)
		}
		sum, mean := 0.0, 0.0
		for j, p := range got {
			sum, mean = sum+p, mean+float64(j)*p
			if j < len(c.first) && math.Abs(p-c.first[j]) > .00006 {
				t.Errorf("%d choose %d: %d shared %.6f, want %.4f", c.n, c.k, j, p, c.first[j])
			}
		}
		if !near(sum, 1, 12) || !near(mean, float64(c.k*c.k)/float64(c.n), 10) {
			t.Errorf("%d choose %d: sum %v, mean %v", c.n, c.k, sum, mean)
		}
	}
	if p := Overlap(3, 5); len(p) != 4 || p[3] != 1 {
		t.Errorf("more members than partitions: %v", p)
	}
}

// Mice under elephants: a light tenant that some heavy ones cover together.
func TestCoveredTable(t *testing.T) {
	for _, c := range []struct {
		k, n int
		want map[int]float64
	}{
		{8, 64, map[int]float64{1: 2.25929e-10, 4: 4.88670e-4, 16: 0.359351}},
		{4, 64, map[int]float64{1: 1.6e-6, 2: 9.7e-5, 4: .0020, 8: .0236, 16: .167}},
		{4, 32, map[int]float64{1: 2.8e-5, 2: .0015, 4: .0231, 8: .174, 16: .600}},
		{4, 128, map[int]float64{8: .0022, 16: .0238}},
		{2, 64, map[int]float64{1: 5.0e-4, 2: .0029, 4: .0126, 8: .0479, 16: .156}},
	} {
		digits := 2
		if c.k == 8 {
			digits = 6
		}
		for e, want := range c.want {
			if got := Covered(c.n, c.k, e); !near(got, want, digits) {
				t.Errorf("%d of %d under %d: %g, want %g", c.k, c.n, e, got, want)
			}
		}
	}
}

// What is measured is what is computed, one more partition takes its part only, and the load is even.
func TestSimulate(t *testing.T) {
	s := Simulate(5000, 64, 1, 4)
	for _, row := range s.Overlap[:3] {
		if math.Abs(row.Measured-row.Exact) > .01 {
			t.Errorf("%d shared: measured %.4f, exact %.4f", row.Partitions, row.Measured, row.Exact)
		}
	}
	if s.Changed < .008 || s.Changed > .022 || s.MostChanged != 1 || s.MaxByMean > 1.2 || s.MinByMean < .8 || s.Extra != 0 || s.Pairs < 4_000_000 {
		t.Errorf("%+v", s)
	}
	if s = Simulate(500, 64, 4, 4); s.Extra != 1 || s.MostChanged > 1 {
		t.Errorf("four zones of one member each need a fifth: %+v", s)
	}
	if s = Simulate(1, 1, 1, 4); s.Pairs != 0 || s.Overlap[1].Exact != 1 || s.Overlap[1].Measured != 0 {
		t.Errorf("one tenant on one partition: %+v", s)
	}
}

// Two choices by request id, of which the shorter by a second-old view and the own sends takes it: healthy
// partitions stay short while one is stalled, and the stalled one gets next to nothing (64 partitions,
// 400 tenants, 90 % load, 30 s).
func TestTwoChoicesKeepQueuesShort(t *testing.T) {
	const (
		partitions, tenants = 64, 400
		tick                = 10 // ms
		stalled             = 5
	)
	ps := catalogue(partitions, 4)
	shards := make([][]uint32, tenants)
	for i := range shards {
		shards[i] = Choose(tenantKey(i), ps, 4)
	}
	var backlog, view, sent [partitions]float64
	n, toStalled, most := 0, 0, 0.0
	for ms := 0; ms < 40_000; ms += tick {
		stall := ms >= 5000 && ms < 35_000
		if ms%1000 == 0 {
			view, sent = backlog, [partitions]float64{}
		}
		for range 576 * tick / 100 { // 5,760 a second, of 6,400 that 64 could do
			n++
			a, b, _ := Candidates(fmt.Sprint(n), shards[n*7919%tenants])
			if view[b]+sent[b] < view[a]+sent[a] {
				a = b
			}
			sent[a]++
			backlog[a]++
			if stall && a == stalled && ms > 7000 {
				toStalled++
			}
		}
		for p := range backlog {
			if !stall || p != stalled {
				backlog[p] = max(0, backlog[p]-100*tick/1000.0)
			}
			if p != stalled {
				most = max(most, backlog[p])
			}
		}
	}
	if share := float64(toStalled) / float64(n); share > .005 || most > 100 {
		t.Errorf("%.4f of all went to the stalled partition, the longest healthy queue was %.0f", share, most)
	}
}

// All interleavings of submitters that send the same client id, with views as stale as they like, and a
// change of the tenant's shard: one task is accepted, everybody hears of that one, it is found where its
// number says, and its partition is one that is dispatched.
func TestOneTaskAnIDWhileTheShardMoves(t *testing.T) {
	ps := catalogue(8, 2)
	drained := slices.Clone(ps)
	versions := []struct {
		p  Placement
		ps []Partition
	}{{place("acme", ps, 2), ps}}
	p, err := Move("s", versions[0].p, ps, []uint32{1, 3, 5, 7}, noon)
	if err != nil {
		t.Fatal(err)
	}
	versions = append(versions, struct {
		p  Placement
		ps []Partition
	}{p, ps})
	drained[p.Members[len(p.Members)-1]].State = Draining
	fit, moved := Fit("s", p, drained, noon)
	if !moved {
		t.Fatal("a drained member stays")
	}
	versions = append(versions, struct {
		p  Placement
		ps []Partition
	}{fit, drained})

	run := func(submitters int, where func(v int) []uint32) (states, twice int) {
		type state struct {
			version int    // of the registry
			views   [3]int // of each submitter
			done    [3]int // the partition that each was told, + 1
			held    [2]int // by database: the partition of the accepted task, + 1
			tasks   int
		}
		seen := map[state]bool{}
		queue := []state{{}}
		for len(queue) > 0 {
			s := queue[0]
			queue = queue[1:]
			if seen[s] {
				continue
			}
			seen[s] = true
			if s.tasks > 1 {
				twice++
				continue
			}
			if s.version+1 < len(versions) {
				next := s
				next.version++
				queue = append(queue, next)
			}
			for i := range submitters {
				if s.views[i] < s.version {
					next := s
					next.views[i]++
					queue = append(queue, next)
				}
				if s.done[i] != 0 {
					continue
				}
				for _, p := range where(s.views[i]) {
					next := s
					db := int(p % 2)
					if next.held[db] == 0 {
						next.held[db] = int(p) + 1
						next.tasks++
					}
					next.done[i] = next.held[db]
					queue = append(queue, next)
				}
			}
			told := 0
			for i := range submitters {
				if s.done[i] == 0 {
					continue
				}
				if told != 0 && told != s.done[i] {
					t.Fatalf("%+v: two answers", s)
				}
				told = s.done[i]
				if drained[told-1].State == Sealed {
					t.Fatalf("%+v: the task is where nobody dispatches", s)
				}
			}
		}
		return len(seen), twice
	}
	home := func(v int) []uint32 { return versions[v].p.AtHome(versions[v].ps, versions[v].p.Members) }
	for v := range versions {
		if len(home(v)) < 2 {
			t.Fatalf("version %d: %v at home of %v", v, home(v), versions[v].p.Members)
		}
	}
	for _, n := range []int{2, 3} {
		if states, twice := run(n, home); twice != 0 || states < 100 {
			t.Errorf("%d submitters: %d states, %d with two tasks", n, states, twice)
		}
	}
	// The same with any member, as if there were no directory database: the search finds what that would do.
	if _, twice := run(2, func(v int) []uint32 { return versions[v].p.Members }); twice == 0 {
		t.Error("the search finds no fault where there is one")
	}
}
