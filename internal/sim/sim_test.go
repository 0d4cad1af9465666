package sim

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	flagSeed    = flag.String("seed", "", "run this seed, such as 0x2a; with -seeds: this one and the next")
	flagSeeds   = flag.Int("seeds", 0, "how many seeds TestSim runs; 0: some from a fixed list, then random ones for a bounded time")
	flagFor     = flag.Duration("for", 12*time.Second, "how long TestSim runs without -seed and -seeds")
	flagOn      = flag.Bool("on", false, "with -seed and -seeds: go on after a failure")
	flagLines   = flag.Int("lines", 400, "how many lines of a failing seed to print")
	flagBeats   = flag.Bool("beats", false, "print also messages that hold nothing but a beat or its answer")
	flagWithout = flag.String("without", "", "kinds of faults that don't happen, separated by commas")
	flagOnly    = flag.String("only", "", "the only kinds of faults that happen, separated by commas")
)

func split(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

func options() Options {
	return Options{Lines: *flagLines, Beats: *flagBeats, Without: split(*flagWithout), Only: split(*flagOnly)}
}

// check runs a seed and prints the story of a failure.
func check(t *testing.T, seed uint64) (ok bool, r Result) {
	t.Helper()
	r = Run(seed, options())
	if r.Failure == "" {
		return true, r
	}
	t.Errorf("seed %#x: %s\n%s\nplan: %s\nafter %d events and %v of virtual time; to see it again:\n  go test ./internal/sim -run Sim -seed=%#x",
		seed, r.Failure, r.Trace, r.Plan, r.Events, r.Virtual, seed)
	return false, r
}

// Nodes and executors live through what a seed draws, and keep every promise.
func TestSim(t *testing.T) {
	began := time.Now()
	var events uint64
	seeds, starts, early := 0, 0, 0
	run := func(seed uint64) bool {
		ok, r := check(t, seed)
		seeds++
		events += r.Events
		starts += r.Starts
		early += r.Early
		return ok
	}
	switch {
	case *flagSeed != "":
		seed, err := strconv.ParseUint(*flagSeed, 0, 64)
		if err != nil {
			t.Fatalf("-seed=%s: %v", *flagSeed, err)
		}
		for i := range uint64(max(*flagSeeds, 1)) {
			if !run(seed+i) && !*flagOn {
				break
			}
		}
	case *flagSeeds > 0:
		first := rand.Uint64()
		t.Logf("seeds %#x and the next", first)
		for i := range uint64(*flagSeeds) {
			if !run(first+i) && seeds >= 20 {
				break
			}
		}
	default:
		for seed := uint64(1); seed <= 1000 && time.Since(began) < *flagFor/3; seed++ {
			if !run(seed) {
				return
			}
		}
		first := rand.Uint64()
		fmt.Printf("internal/sim: random seeds from %#x\n", first) // also if all is well
		for i := uint64(0); time.Since(began) < *flagFor; i++ {
			if !run(first + i) {
				return
			}
		}
	}
	took := time.Since(began)
	t.Logf("%d seeds, %d events, %d handler starts, %d graces ended early in %v: %.0f seeds a minute", seeds, events, starts, early, took.Round(time.Millisecond),
		float64(seeds)/took.Minutes())
}

// regressions are seeds that have shown bugs of the core, the engine or the simulation. What a seed draws
// changes with the simulation, so they are no proof of the fix; they cost nothing.
var regressions = []uint64{0x28, 0x144, 0x1a4, 0x4c9, 0x694, 0x298, 0x3d0, 0x7c6, 0xdad46dbdc92f3f1a}

func TestRegressions(t *testing.T) {
	for _, seed := range regressions {
		check(t, seed)
	}
}

// The same seed tells the same story, line by line.
func TestSeedIsRepeatable(t *testing.T) {
	for seed := uint64(1); seed <= 5; seed++ {
		var told [2]string
		for i := range told {
			w := newWorld(seed, Options{Lines: 1 << 20}, true)
			w.run()
			told[i] = w.trace.String()
		}
		if told[0] != told[1] {
			a, b := strings.Split(told[0], "\n"), strings.Split(told[1], "\n")
			for i := range min(len(a), len(b)) {
				if a[i] != b[i] {
					t.Fatalf("seed %d differs at line %d:\n%s\n%s", seed, i, a[i], b[i])
				}
			}
			t.Fatalf("seed %d: %d lines, then %d", seed, len(a), len(b))
		}
	}
}
