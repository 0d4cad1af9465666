package shard

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var day = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// A chain of claims: what counts as a death, and what follows from it.
func TestTenure(t *testing.T) {
	living := map[NodeID]bool{}
	alive := func(id NodeID) bool { return living[id] }
	var tn Tenure
	claim := func(id NodeID) {
		living[id] = true
		tn = tn.Claim(id, string(id)+":1", alive, day)
	}
	expect := func(what string, deaths int, careful, alone bool) {
		t.Helper()
		held := living[tn.Node]
		n := tn.DeathsBut(alive, held)
		if n != deaths || tn.Careful() != careful || tn.Alone(n) != alone {
			t.Errorf("%s: %d deaths, careful %v, alone %v: %+v", what, n, tn.Careful(), tn.Alone(n), tn)
		}
	}
	claim("a")
	expect("first", 0, false, false)
	delete(living, "a")
	expect("it died", 1, false, false)
	claim("b")
	expect("the second", 1, false, false)
	if _, keep := tn.HandOver(); keep {
		t.Error("one death is remembered over a hand-over")
	}
	delete(living, "b")
	claim("c")
	expect("the third", 2, true, false)
	living["b"] = true
	expect("b was only paused", 1, true, false)
	delete(living, "b")
	if why, is := tn.Quarantined(2, ""); !is || why == "" {
		t.Error("not quarantined after two deaths")
	}
	tn.Passed = true
	if _, is := tn.Quarantined(2, ""); is {
		t.Error("quarantined although it passed")
	}
	handed, keep := tn.HandOver()
	if !keep || handed.Open || !handed.Passed {
		t.Errorf("handed over: %+v", handed)
	}
	delete(living, "c")
	expect("it died after it had passed", 3, true, true)
	tn = handed
	expect("it had handed over before", 2, true, false)
	claim("d")
	expect("the next one goes on with care", 2, true, false)
	if !tn.Passed {
		t.Error("nobody died, and it has to pass again")
	}
	delete(living, "d")
	for i := range 3 * maxDeaths {
		id := NodeID(fmt.Sprint("e", i))
		claim(id)
		delete(living, id)
	}
	if len(tn.Deaths) != maxDeaths || tn.Passed {
		t.Errorf("after many: %+v", tn)
	}
}

func TestBackoffIsCapped(t *testing.T) {
	last := time.Duration(0)
	for n := range 1000 {
		d := Backoff(n)
		if d < last || d > 10*time.Minute || n < 3 && d != 0 || n == 3 && d != 5*time.Second {
			t.Errorf("after %d deaths: %v", n, d)
		}
		last = d
	}
	if last != 10*time.Minute {
		t.Errorf("at last %v", last)
	}
}

// trial plays owners of a partition with some tasks, one after the other. deadly says whether an owner dies when it
// has been given tasks up to that one; killed whether somebody else kills it then. It ends when an owner has handled
// everything, and returns how many died, and who was condemned.
func trial(tasks []string, deadly func(id string) bool, killed func() bool) (deaths int, condemned []string) {
	var notes Hands
	for deaths = 0; deaths < 100; deaths++ {
		h := notes.Open(NodeID(fmt.Sprint("n", deaths)))
		notes = h
		group := h.Group()
		rest := slices.DeleteFunc(slices.Clone(tasks), func(id string) bool { return slices.Contains(h.Condemned, id) })
		died := false
		for len(rest) > 0 && !died {
			h.Clear()
			batch := rest[:min(len(rest), 50)]
			n := h.Take(batch, group)
			notes = h
			died = slices.ContainsFunc(batch[:n], deadly) || killed()
			rest = rest[n:]
		}
		if !died {
			return deaths, h.Condemned
		}
	}
	return deaths, notes.Condemned
}

// However many tasks there are and whichever kills: it is found within a few deaths, and nothing else is condemned.
// (Two deaths come before: until then nothing is noted.)
func TestHandsFindTheOne(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 2))
		tasks := make([]string, 1+rng.IntN(3000))
		for i := range tasks {
			tasks[i] = fmt.Sprint("t", i)
		}
		bad := map[string]bool{}
		for range 1 + rng.IntN(3) {
			bad[tasks[rng.IntN(len(tasks))]] = true
		}
		deaths, condemned := trial(tasks, func(id string) bool { return bad[id] }, func() bool { return false })
		if len(condemned) != len(bad) || slices.ContainsFunc(condemned, func(id string) bool { return !bad[id] }) {
			t.Fatalf("seed %d: of %d tasks %v kill, condemned are %v after %d deaths", seed, len(tasks), bad, condemned, deaths)
		}
		if most := 5 * len(bad); deaths > most {
			t.Fatalf("seed %d: %d deaths for %d bad ones among %d", seed, deaths, len(bad), len(tasks))
		}
	}
}

// Somebody kills the nodes again and again while there is nothing wrong with any task, each time with some task in
// trial (which in truth is a fraction of a second in each opening): still hardly ever is one condemned, because the
// same one has to be alone in trial at two deaths in a row.
func TestHandsClearTheInnocent(t *testing.T) {
	condemned, kills := 0, 0
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 3))
		tasks := make([]string, 1+rng.IntN(500))
		for i := range tasks {
			tasks[i] = fmt.Sprint("t", i)
		}
		deaths, c := trial(tasks, func(string) bool { return false }, func() bool { return rng.IntN(20) == 0 })
		condemned, kills = condemned+len(c), kills+deaths
	}
	t.Logf("%d condemned by %d kills", condemned, kills)
	if condemned*100 > kills {
		t.Errorf("%d innocent tasks condemned by %d kills", condemned, kills)
	}
}
