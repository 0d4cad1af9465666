package shard

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// link plays a database for a Reach: a look each fifth of after, answered after a while, or never.
type link struct {
	r      *Reach
	now    time.Time
	answer func(at time.Duration) (ok bool, takes time.Duration)
	ends   time.Time
	ok     bool
}

var linkStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (l *link) at() time.Duration { return l.now.Sub(linkStart) }

// run goes on until to, and returns when it went out of reach and came back.
func (l *link) run(to time.Duration) (changes []string) {
	for l.at() < to {
		l.now = l.now.Add(10 * time.Millisecond)
		if !l.ends.IsZero() && !l.ends.After(l.now) {
			l.ends = time.Time{}
			l.r.Probed(l.now, l.ok)
		}
		if l.at()%l.r.Every() != 0 {
			continue
		}
		_, was := l.r.Cut()
		probe := l.r.Tick(l.now)
		if _, is := l.r.Cut(); is != was {
			changes = append(changes, fmt.Sprint(map[bool]string{true: "out ", false: "back "}[is], l.at()))
		}
		if probe {
			ok, takes := l.answer(l.at())
			l.r.Probing(l.now)
			l.ok, l.ends = ok, l.now.Add(takes)
		}
	}
	return changes
}

func TestReach(t *testing.T) {
	const s = time.Second
	from := func(from, to time.Duration, ok bool, takes time.Duration) func(time.Duration) (bool, time.Duration) {
		return func(at time.Duration) (bool, time.Duration) {
			if at < from || at >= to {
				return true, 10 * time.Millisecond
			}
			return ok, takes
		}
	}
	for _, c := range []struct {
		name   string
		answer func(time.Duration) (bool, time.Duration)
		want   []string
	}{
		{"always there", from(0, 0, true, 0), nil},
		{"slow, and there", from(0, time.Hour, true, 3*s), nil},
		{"refused for less than that", from(60*s, 63*s, false, 20*time.Millisecond), nil},
		{"refused", from(60*s, 100*s, false, 20*time.Millisecond), []string{"out 1m4s", "back 1m51s"}},
		{"silent", from(60*s, 90*s, false, 5*s), []string{"out 1m4s", "back 1m41s"}},
		{"never there", from(0, time.Hour, false, 20*time.Millisecond), []string{"out 5s"}},
		{"comes and goes", func(at time.Duration) (bool, time.Duration) {
			return at/(15*s)%2 == 0, 20 * time.Millisecond
		}, []string{"out 19s", "back 41s", "out 49s"}}, // after that 15 s are not enough
	} {
		t.Run(c.name, func(t *testing.T) {
			l := &link{r: NewReach(5*s, linkStart), now: linkStart, answer: c.answer}
			if got := l.run(5 * time.Minute); !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

// Calls of others count as looks do; a process that stood still has proof of nothing.
func TestReachByCallsAndAfterAPause(t *testing.T) {
	now := linkStart
	r := NewReach(5*time.Second, now)
	for range 100 {
		now = now.Add(r.Every())
		r.Ended(now, now.Add(-10*time.Millisecond), true)
		if r.Tick(now) {
			t.Fatal("a look although calls succeed")
		}
	}
	r.Probing(now)
	now = now.Add(time.Hour)
	r.Probed(now, false) // its time was over when the process woke
	for range 3 {
		r.Tick(now)
		if _, cut := r.Cut(); cut {
			t.Fatal("out of reach because the process stood still")
		}
		now = now.Add(r.Every())
	}
	for range 3 {
		r.Ended(now, now, false)
		r.Tick(now)
		now = now.Add(r.Every())
	}
	if _, cut := r.Cut(); !cut {
		t.Error("within reach although nothing succeeds")
	}
}

func cutNodes(text string) (ns []Node) { // "a:db1,db2+ b: c-:" with - for one that takes nothing, + for a database that is back
	for word := range strings.FieldsSeq(text) {
		name, dbs, _ := strings.Cut(word, ":")
		n := Node{ID: NodeID(strings.TrimSuffix(name, "-")), Draining: strings.HasSuffix(name, "-")}
		for db := range strings.SplitSeq(dbs, ",") {
			if db != "" {
				n.Cut = append(n.Cut, CutOff{Database: strings.TrimSuffix(db, "+"), Back: strings.HasSuffix(db, "+")})
			}
		}
		ns = append(ns, n)
	}
	return ns
}

// A database that dies, and comes back, is told of by one node after the other: nobody is barred. One node alone is, once it
// has been so for a while.
func TestCutsTellADeadDatabaseFromACutOffNode(t *testing.T) {
	const confirm = 2 * time.Second
	var c Cuts
	now := linkStart
	step := func(after time.Duration, nodes, want string) {
		t.Helper()
		now = now.Add(after)
		c.Look(now, cutNodes(nodes), confirm)
		var got []string
		for _, id := range []NodeID{"a", "b", "c"} {
			got = append(got, [...]string{"full", "keeps", "barred"}[c.Access(now, confirm, id, "db")])
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s at %v: %s, want %s", nodes, now.Sub(linkStart), text, want)
		}
	}
	step(0, "a: b: c:", "full full full")
	step(0, "a:db b: c:", "keeps full full")
	step(time.Second, "a:db b:db c:", "keeps keeps full")
	step(900*time.Millisecond, "a:db b:db c:db", "full full full")
	step(time.Hour, "a:db b:db c:", "keeps keeps full")
	step(time.Second, "a: b:db c:", "full keeps full")
	step(time.Second, "a: b: c:", "full full full")
	step(0, "a:db b:db c:db", "full full full")
	step(0, "a:db+ b:db c:db", "keeps keeps keeps") // it comes back to one after the other, and nobody loses anything
	step(time.Second, "a:db+ b:db+ c:db+", "keeps keeps keeps")
	step(time.Hour, "a:db+ b: c:db+", "keeps full keeps")
	step(0, "a:db+ b:db+ c:db", "keeps keeps keeps")
	step(confirm, "a:db+ b:db+ c:db", "keeps keeps barred")
	step(0, "a: b: c:", "full full full")
	step(0, "a:db b: c:other", "keeps full full")
	step(confirm, "a:db b: c:other", "barred full full")
	step(time.Hour, "a:db b: c-:db", "barred full full")
	step(0, "a: b:db c-:", "full keeps full")
	step(0, "a:db b:db c-:", "full full full") // c takes nothing, whatever it reaches
	if !c.None() {
		t.Error("something is left of what nobody reaches")
	}
	if again := c.Look(now, cutNodes("a:db b:"), confirm); again != now.Add(confirm) {
		t.Errorf("looks again at %v", again)
	}
}

// Whatever comes: what is barred is somewhere else, what need not move stays, shares are even as far as that goes, and the
// outcome is at rest.
func TestAssignReached(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var ps []Partition
		dbs := 1 + rng.IntN(3)
		for i := range 1 + rng.IntN(20) {
			ps = append(ps, Partition{ID: uint32(i), Zone: fmt.Sprint("db", i%dbs)})
		}
		all := nodes(1 + rng.IntN(5))
		how := map[cutKey]Access{}
		for _, n := range all {
			for d := range dbs {
				if rng.IntN(4) == 0 {
					how[cutKey{n.ID, fmt.Sprint("db", d)}] = Access(rng.IntN(3))
				}
			}
		}
		access := func(id NodeID, db string) Access { return how[cutKey{id, db}] }
		prev := Assign(nil, all, IDs(ps))
		next := AssignReached(prev, all, ps, access)
		if len(next) != len(ps) {
			t.Fatalf("%d of %d partitions are somewhere", len(next), len(ps))
		}
		if again := AssignReached(next, all, ps, access); !maps.Equal(again, next) {
			t.Fatalf("it goes on moving: %v, then %v", next, again)
		}
		shuffled := slices.Clone(all)
		rng.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		if again := AssignReached(prev, shuffled, ps, access); !maps.Equal(again, next) {
			t.Fatal("the order of the nodes matters")
		}
		count := loads(next)
		for _, p := range ps {
			best := Barred
			for _, n := range all {
				best = min(best, access(n.ID, p.In()))
			}
			has := access(next[p.ID], p.In())
			if has == Barred && best < Barred {
				t.Fatalf("partition %d is on %s, which is barred", p.ID, next[p.ID])
			}
			if next[p.ID] != prev[p.ID] && has > best {
				t.Fatalf("partition %d came to %s, which has access %d; another has %d", p.ID, next[p.ID], has, best)
			}
			for _, n := range all {
				if has == Full && access(n.ID, p.In()) == Full && count[next[p.ID]]-count[n.ID] > 1 {
					t.Fatalf("%s has %d partitions, %s %d: %d could go there", next[p.ID], count[next[p.ID]], n.ID, count[n.ID], p.ID)
				}
			}
		}
		free := func(NodeID, string) Access { return Full }
		if got := AssignReached(prev, all, ps, free); !maps.Equal(got, prev) {
			t.Fatal("something moves although nobody is cut off")
		}
	}
}
