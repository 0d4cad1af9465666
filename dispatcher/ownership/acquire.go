package ownership

import (
	"fmt"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/internal/mutant"
	"github.com/headrace/headrace/store"
)

// Doors is the I/O of one acquisition. Its methods may wait.
type Doors interface {
	Look() error // nil: the key is this node's, now
	Epoch() (store.Epoch, error)
	Raise(from store.Epoch) (store.Epoch, error) // compare-and-set
	Now() time.Time                              // by the node's clock
	Recover() (*store.Recovered, error)
	Flows() ([]store.FlowStat, error)
}

// Acquire is R10: look at the key, raise the epoch, look again, and only then load. What it returns lacks the
// database's index.
func Acquire(d Doors) (a core.Acquired, err error) {
	if err := d.Look(); err != nil {
		return a, fmt.Errorf("look at the key: %w", err)
	}
	from, err := d.Epoch()
	if err != nil {
		return a, fmt.Errorf("read the epoch: %w", err)
	}
	if mutant.On("load-before-raise") {
		if err := load(d, &a); err != nil {
			return a, err
		}
	}
	if a.Epoch, err = d.Raise(from); err != nil {
		return a, fmt.Errorf("raise the epoch: %w", err)
	}
	a.RaisedAt = d.Now()
	if !mutant.On("no-idle-check") && !mutant.On("fenced-keeps") { // either check alone makes up for the other
		if err := d.Look(); err != nil {
			return a, fmt.Errorf("look at the key again: %w", err)
		}
	}
	if mutant.On("load-before-raise") {
		return a, nil
	}
	return a, load(d, &a)
}

// load reads what the new owner has to know: records, cancels and floor, then which flows there are.
func load(d Doors, a *core.Acquired) (err error) {
	if a.Recovered, err = d.Recover(); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	if a.Flows, err = d.Flows(); err != nil {
		return fmt.Errorf("read the flows: %w", err)
	}
	return nil
}
