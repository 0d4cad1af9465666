package fairqueue

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// board is a queue of named tenants with tasks of cost 1, as the vectors of algorithms.md §5.3 have it.
type board struct {
	q       Queue
	entries map[string]*Entry
	waiting map[string]int
	weights map[string]int
}

func newBoard(weights map[string]int) *board {
	return &board{entries: map[string]*Entry{}, waiting: map[string]int{}, weights: weights}
}

func (b *board) add(names string) {
	for _, n := range strings.Fields(names) {
		e := b.entries[n]
		if e == nil {
			e = NewEntry(n, b.weights[n])
			b.entries[n] = e
		}
		b.waiting[n]++
		b.q.Add(e)
	}
}

func (b *board) poll(n int) string {
	var got []string
	for range n {
		e := b.q.Min()
		if e == nil {
			break
		}
		name := e.Owner.(string)
		got = append(got, name)
		b.q.Charge(e, 1)
		if b.waiting[name]--; b.waiting[name] == 0 {
			b.q.Remove(e)
		}
	}
	return strings.Join(got, " ")
}

func TestVectors(t *testing.T) {
	t.Run("one behind four", func(t *testing.T) {
		b := newBoard(nil)
		b.add("a a a a b")
		want(t, b.poll(9), "a b a a a")
	})
	t.Run("c comes later and goes next", func(t *testing.T) {
		b := newBoard(nil)
		b.add("a a a a b")
		got := b.poll(2)
		b.add("c c")
		want(t, got+" "+b.poll(9), "a b c a c a a")
	})
	t.Run("weight 5 gets 5 for 1 until it ends", func(t *testing.T) {
		b := newBoard(map[string]int{"b": 5})
		b.add(strings.Repeat("a ", 20) + strings.Repeat("b ", 20))
		want(t, b.poll(40), strings.TrimSpace(strings.Repeat("a b b b b b ", 4)+strings.Repeat("a ", 16)))
	})
}

func TestStrideVector(t *testing.T) {
	var s Stride
	var got strings.Builder
	for range 42 {
		got.WriteByte("HNL"[s.Pick(7)])
	}
	want(t, got.String()[:21], "HNLHHHHNHHHHNHHHHNHHH")
	count, last, gap := map[rune]int{}, map[rune]int{}, map[rune]int{}
	for i, r := range got.String() {
		if i < 21 {
			count[r]++
		}
		if at, seen := last[r]; seen {
			gap[r] = max(gap[r], i-at)
		}
		last[r] = i
	}
	if count['H'] != 16 || count['N'] != 4 || count['L'] != 1 {
		t.Errorf("turns in 21: %v, want 16/4/1", count)
	}
	if gap['L'] > 21 || gap['N'] > 6 {
		t.Errorf("longest gaps %v, want at most 21 for low and 6 for normal", gap)
	}
}

// A band that was idle gets its share from now on, not what it missed.
func TestStrideIdleBandGainsNothing(t *testing.T) {
	var s Stride
	for range 1000 {
		s.Pick(1)
	}
	low := 0
	for range 21 {
		if s.Pick(5) == 2 {
			low++
		}
	}
	if low > 2 {
		t.Errorf("low had %d of 21 turns after idling, want at most 2", low)
	}
}

// Over any interval in which two tenants both wait, what they got over their weights differs by at
// most one largest task each, for any costs and weights, whatever others come and go.
func TestLagBound(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		var q Queue
		const maxCost = 60_000
		always := []*Entry{NewEntry(0, 1+r.IntN(9)), NewEntry(1, 1+r.IntN(9))}
		got := [2]float64{}
		for _, e := range always {
			q.Add(e)
		}
		var others []*Entry
		for i := range 30 {
			others = append(others, NewEntry(2+i, 1+r.IntN(9)))
		}
		for range 5000 {
			o := others[r.IntN(len(others))]
			if r.IntN(3) == 0 {
				q.Remove(o)
			} else {
				q.Add(o)
			}
			e := q.Min()
			cost := int64(10 + r.IntN(maxCost-9))
			if i := e.Owner.(int); i < 2 {
				got[i] += float64(cost) / float64(e.weight)
			}
			q.Charge(e, cost)
			bound := maxCost/float64(always[0].weight) + maxCost/float64(always[1].weight)
			if d := got[0] - got[1]; d > bound || d < -bound {
				t.Fatalf("seed %d: lag %v, bound %v", seed, d, bound)
			}
		}
	}
}

// A tenant that was idle while another ran for long is served next, but has no credit beyond that.
func TestIdleGainsNoCredit(t *testing.T) {
	b := newBoard(nil)
	b.add(strings.Repeat("a ", 1000))
	b.poll(500)
	b.add("b b b b")
	want(t, b.poll(6), "b a b a b a")
}

// The estimate was too low: once the real cost is known, the others catch up.
func TestCorrection(t *testing.T) {
	b := newBoard(nil)
	b.add("a a a a a a b b b b b b")
	want(t, b.poll(2), "a b")
	b.q.Correct(b.entries["a"], 3)
	want(t, b.poll(4), "b b b a")
}

func TestRebase(t *testing.T) {
	var q Queue
	a, b, idle := NewEntry("a", 1), NewEntry("b", 1), NewEntry("idle", 1)
	q.Add(idle)
	q.Charge(idle, 1<<40)
	q.Remove(idle)
	q.now = rebaseAt - 1
	q.Add(a)
	q.Add(b)
	for range 10 {
		q.Charge(q.Min(), 60_000)
	}
	if q.era == 0 || q.now > 1<<40 {
		t.Fatalf("era %d, virtual time %d: not rebased", q.era, q.now)
	}
	q.Add(idle)
	if q.Min() != idle && q.Min().start < idle.start {
		t.Errorf("an idle entry starts at %d, behind %d", idle.start, q.Min().start)
	}
}

func want(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func BenchmarkQueue(b *testing.B) {
	var q Queue
	for i := range 1000 {
		q.Add(NewEntry(i, 1+i%3))
	}
	for b.Loop() {
		q.Charge(q.Min(), 10)
	}
}
