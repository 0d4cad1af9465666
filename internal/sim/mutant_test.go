//go:build mutant

package sim

import (
	"flag"
	"testing"

	"github.com/headrace/headrace/internal/mutant"
)

var flagMutant = flag.String("mutant", "", "try this mutant only; it need not be in the table")

// mutants are known ways to get the protocol wrong (takeover.md §4), each with the number of seeds in
// which the simulation has to notice. Where a fault is rare, only some kinds of faults are drawn.
var mutants = []struct {
	name  string
	seeds int
	only  []string
}{}

// Each known fault is noticed within its number of seeds: the simulation can see what it is there for.
func TestMutants(t *testing.T) {
	defer mutant.Set("")
	if *flagMutant != "" {
		mutants = mutants[:0]
		mutants = append(mutants, struct {
			name  string
			seeds int
			only  []string
		}{*flagMutant, max(*flagSeeds, 100), options().Only})
	}
	for _, m := range mutants {
		mutant.Set(m.name)
		caught := 0
		var r Result
		for seed := 1; seed <= m.seeds && caught == 0; seed++ {
			if r = Run(uint64(seed), Options{Lines: 1, Only: m.only}); r.Failure != "" {
				caught = seed
			}
		}
		mutant.Set("")
		if caught == 0 {
			t.Errorf("%-28s survives %d seeds", m.name, m.seeds)
			continue
		}
		t.Logf("%-28s seed %4d of %4d: %.150s", m.name, caught, m.seeds, r.Failure)
		if r := Run(uint64(caught), Options{Lines: 1, Only: m.only}); r.Failure != "" {
			t.Errorf("%s: seed %d fails without the mutant too: %s", m.name, caught, r.Failure)
		}
	}
}
