package executor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/headrace/headrace/task"
)

// Reserve keeps some of an executor's slots for one band, or one function, or one band of one function. What it is for may
// have all other slots, too, unless Only says that it is held to these. So with {Band: "high", Slots: 2} low work can't take
// the last two, and with {Function: "import", Slots: 4, Only: true} imports never take more than four.
//
// An executor is several executors then, each with an id of its own and its part of the slots: nodes hand them out as
// ever, and none of them can go wrong about it. They share the process, its handlers and its drain. A function whose Cost is more
// than a part's slots takes all of that part when it runs there; more than the slots that are not reserved is an error of Run.
type Reserve struct {
	Function string // "": all that this executor runs
	Band     string // high, normal or low; "": all
	Slots    int    // of Config.Slots
	Only     bool   // it runs on these slots and no others
}

// maxReserve is how many parts an executor's slots may have besides the common one: each has its own sessions.
const maxReserve = 8

// share is a part of the slots, and what runs there.
type share struct {
	id        [16]byte // new at each start of the process: a second process never speaks for the first
	name      string
	slots     int
	functions []*registration
	of        []Reserve // what it leaves to others; or, reserved, the one that it is
	reserved  bool
}

func (c Config) checkReserve() error {
	if len(c.Reserve) > maxReserve {
		return &task.FieldError{Field: "Config.Reserve", Value: fmt.Sprintf("%d entries", len(c.Reserve)), Want: "at most 8"}
	}
	sum := 0
	for i, r := range c.Reserve {
		field := fmt.Sprintf("Config.Reserve[%d]", i)
		if r.Function != "" {
			if err := task.Name(field+".Function", r.Function); err != nil {
				return err
			}
		}
		if r.Band != "" {
			if _, err := task.ParseBand(r.Band); err != nil {
				return &task.FieldError{Field: field + ".Band", Value: r.Band, Want: "high, normal or low"}
			}
		}
		if r.Function == "" && r.Band == "" {
			return &task.FieldError{Field: field, Want: "a Function or a Band"}
		}
		if sum += r.Slots; r.Slots < 1 || sum >= c.Slots {
			return &task.FieldError{Field: field + ".Slots", Value: fmt.Sprint(r.Slots), Want: fmt.Sprintf("1 or more, and in all less than the %d slots", c.Slots)}
		}
	}
	return nil
}

// mask returns the bands that an entry is about, as FunctionDeclaration.bands.
func (r Reserve) mask() uint32 {
	if r.Band == "" {
		return allBands
	}
	b, _ := task.ParseBand(r.Band) // it was checked
	return 1 << b
}

// allBands are all bands, as FunctionDeclaration.bands has them.
const allBands = 1<<task.Bands - 1

// bands returns which bands of a function run in a share; 0: none.
func (s share) bands(f *registration) uint32 {
	if s.reserved {
		return s.of[0].mask()
	}
	mask := uint32(allBands)
	for _, r := range s.of {
		if r.Only && (r.Function == "" || r.Function == f.name) {
			mask &^= r.mask()
		}
	}
	return mask
}

// shares divides the slots. Its error says that nothing can run here.
func (x *Executor) shares(functions []*registration) ([]share, error) {
	var offered []*registration
	var lacks []string
	for _, f := range functions {
		asked, _ := task.ParseMatch("", f.policy.Requires) // it was checked
		if !task.Matches(x.cfg.Labels, asked) {
			lacks = append(lacks, f.name+" requires "+f.policy.Requires)
			continue
		}
		offered = append(offered, f)
	}
	if len(lacks) > 0 {
		x.cfg.Logger.Info("functions that this executor's labels do not allow are not offered", "functions", lacks)
	}
	if len(offered) == 0 {
		return nil, fmt.Errorf("executor: no function can run here: %s", strings.Join(lacks, ", "))
	}
	common := share{name: x.cfg.Name, slots: x.cfg.Slots, of: x.cfg.Reserve}
	var all []share
	for i, r := range x.cfg.Reserve {
		common.slots -= r.Slots
		s := share{name: x.cfg.Name + ":" + strings.Trim(r.Function+"/"+r.Band, "/"), slots: r.Slots, of: x.cfg.Reserve[i : i+1], reserved: true}
		for _, f := range offered {
			if r.Function == "" || r.Function == f.name {
				s.functions = append(s.functions, f)
			}
		}
		if len(s.functions) == 0 {
			return nil, fmt.Errorf("executor: Config.Reserve[%d]: no function %s is offered here", i, r.Function)
		}
		all = append(all, s)
	}
	for _, f := range offered {
		if n := f.policy.Cost; n > common.slots {
			return nil, &task.FieldError{Field: "function " + f.name + ": policy.cost", Value: fmt.Sprint(n), Want: fmt.Sprintf("1 to %d, the slots that are not reserved", common.slots)}
		}
		if common.bands(f) != 0 {
			common.functions = append(common.functions, f)
		}
	}
	if len(common.functions) > 0 {
		all = append(all, common)
	}
	for i := range all {
		if len(all[i].name) > task.MaxNameLen {
			all[i].name = all[i].name[:task.MaxNameLen]
		}
		rand.Read(all[i].id[:]) // never fails
	}
	return all, nil
}

// runAll runs the shares until ctx ends or Shutdown is called.
func (x *Executor) runAll(ctx context.Context, shares []share) error {
	base := context.WithoutCancel(ctx)
	errs := make([]error, len(shares))
	var wg sync.WaitGroup
	for i, sh := range shares[1:] {
		wg.Go(func() { errs[i+1] = newLoop(x, base, sh).run(ctx.Done()) })
	}
	errs[0] = newLoop(x, base, shares[0]).run(ctx.Done())
	wg.Wait()
	return errors.Join(errs...)
}
