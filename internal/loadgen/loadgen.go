package loadgen

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/clusterclient"
	"github.com/headrace/headrace/internal/histogram"
	"github.com/headrace/headrace/internal/proctree"
	"github.com/headrace/headrace/task"
)

// Config is one run.
type Config struct {
	Addr    string // of the server
	APIKey  string
	Tenant  string  // with several tenants the start of their names
	Tenants int     // 1-1,000
	Tasks   int     // to submit and run
	Batch   int     // tasks of a SubmitBatch; 1: single submits
	Callers int     // that submit at once; ignored with a Rate
	Payload int     // bytes, at least 8
	Rate    float64 // submits a second, each a call of its own; 0: as fast as it goes
	Backlog int     // tasks that wait all the while
	Slots   int     // tries that the executor runs at once
	// Database reads what the processes of the server's database have used; nil: they can't be seen.
	Database func() (proctree.Usage, error)
}

// Validate names the field that is out of its range; its error is a *task.FieldError.
func (c Config) Validate() error {
	for _, n := range []struct {
		field           string
		value, low, top int
	}{
		{"--tenants", c.Tenants, 1, 1000},
		{"--tasks", c.Tasks, 1, 1 << 30},
		{"--batch", c.Batch, 1, task.MaxBatchItems},
		{"--callers", c.Callers, 1, 100_000},
		{"--payload", c.Payload, stampBytes, task.MaxPayloadConfig},
		{"--backlog", c.Backlog, 0, 1 << 30},
		{"--slots", c.Slots, 1, 100_000},
	} {
		if n.value < n.low || n.value > n.top {
			return &task.FieldError{Field: n.field, Value: fmt.Sprint(n.value), Want: fmt.Sprintf("%d to %d", n.low, n.top)}
		}
	}
	if !(c.Rate >= 0 && c.Rate <= 1e6) {
		return &task.FieldError{Field: "--rate", Value: fmt.Sprint(c.Rate), Want: "at most 1000000/s"}
	}
	return nil
}

// A Run is one measurement. Its counters can be read while it runs.
type Run struct {
	cfg      Config
	function string
	begin    time.Time // what the stamps in payloads count from
	tenants  []*tenant
	cluster  *clusterclient.Client

	Phase     atomic.Pointer[string]
	Preloaded atomic.Int64 // tasks of the backlog
	Accepted  atomic.Int64 // tasks whose submit was answered OK
	Starts    atomic.Int64 // of handlers
	refused   atomic.Int64
	firstErr  atomic.Pointer[error] // of a submit
	submits   histogram.Histogram
	starts    histogram.Histogram
}

// tenant is one of those that submit.
type tenant struct {
	c   *client.Client
	ids *idSample
}

// New returns a run that has not started. Its error is that of Validate.
func New(cfg Config) (*Run, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	id := make([]byte, 4)
	rand.Read(id)
	r := &Run{cfg: cfg, function: "bench-" + hex.EncodeToString(id), begin: time.Now()}
	r.phase("connect")
	return r, nil
}

// SetServer sets the server's address and Config.Database, before Do.
func (r *Run) SetServer(addr string, database func() (proctree.Usage, error)) {
	r.cfg.Addr, r.cfg.Database = addr, database
}

func (r *Run) phase(name string) { r.Phase.Store(&name) }

// ErrLost says that tasks were lost, refused, or not run; the report has the figures.
var ErrLost = errors.New("not every task was accepted, run and finished")

// Do runs it to the end. With ErrLost the report is complete; with other errors there is none, and the
// error names the phase and how far it was.
func (r *Run) Do(ctx context.Context) (*Report, error) {
	rep, err := r.do(ctx)
	if err != nil && rep == nil {
		err = fmt.Errorf("bench, phase %s, %d of %d accepted, %d started: %w",
			*r.Phase.Load(), r.Accepted.Load(), r.cfg.Tasks, r.Starts.Load(), err)
	}
	return rep, err
}

func (r *Run) do(ctx context.Context) (*Report, error) {
	var err error
	if r.cluster, err = clusterclient.Dial(r.cfg.Addr, r.cfg.APIKey); err != nil {
		return nil, err
	}
	defer r.cluster.Close()
	root, err := client.Dial(client.Config{Addr: r.cfg.Addr, Tenant: r.cfg.Tenant, APIKey: r.cfg.APIKey})
	if err != nil {
		return nil, err
	}
	defer root.Close()
	for i := range r.cfg.Tenants {
		c, err := root.ForTenant(r.tenantName(i))
		if err != nil {
			return nil, err
		}
		defer c.Close()
		r.tenants = append(r.tenants, &tenant{c: c, ids: newIDSample(r.cfg.Tasks / r.cfg.Tenants)})
	}
	first, err := r.look(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.preload(ctx); err != nil {
		return nil, err
	}
	stop, err := r.startExecutor(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	if err := r.settle(ctx, first.live+r.Preloaded.Load()); err != nil {
		return nil, err
	}
	return r.measure(ctx)
}

func (r *Run) tenantName(i int) string {
	if r.cfg.Tenants == 1 {
		return r.cfg.Tenant
	}
	return fmt.Sprintf("%s-%d", r.cfg.Tenant, i)
}

func (r *Run) measure(ctx context.Context) (*Report, error) {
	before, err := r.look(ctx)
	if err != nil {
		return nil, err
	}
	r.phase("measure")
	begin := time.Now()
	if err := r.submit(ctx); err != nil {
		return nil, err
	}
	submitted := time.Now()
	r.phase("drain")
	ended, err := r.drain(ctx, before)
	if err != nil {
		return nil, err
	}
	after, err := r.look(ctx)
	if err != nil {
		return nil, err
	}
	r.phase("verify")
	succeeded, verified, err := r.verify(ctx)
	if err != nil {
		return nil, err
	}
	rep := r.report(before, after, submitted.Sub(begin), ended.Sub(begin))
	rep.Succeeded, rep.Verified = succeeded, verified
	if rep.Accepted < int64(r.cfg.Tasks) || rep.Starts < rep.Accepted || rep.Succeeded < rep.Accepted {
		return rep, r.lost(rep)
	}
	return rep, nil
}

func (r *Run) lost(rep *Report) error {
	err := fmt.Errorf("%w: %d of %d tasks accepted, %d starts, %d succeeded", ErrLost, rep.Accepted, r.cfg.Tasks, rep.Starts, rep.Succeeded)
	if first := r.firstErr.Load(); first != nil {
		err = fmt.Errorf("%w; first refusal: %w", err, *first)
	}
	return err
}
