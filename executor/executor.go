package executor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/headrace/headrace/task"
)

// Config configures an Executor. The zero value of each field is its documented default.
type Config struct {
	// Addr is the host:port of any node, or of several, with commas between; or another gRPC target such as
	// unix:///run/headrace.sock. The nodes that own partitions are found from there. Names are looked up at each
	// attempt to connect. Default 127.0.0.1:7070.
	Addr string
	// Tenant that functions are registered for, unless HandleTenant says otherwise. Default "default".
	Tenant string
	// Slots is how many tries run at once, 1 to 100,000. More slots hide more waiting, but each costs
	// memory for its payload and result. Default 16 for each CPU (GOMAXPROCS).
	Slots int
	// Labels are what functions may require or prefer (fn.Options), such as {"gpu": "true"}: at most 16, keys as names of
	// functions, values of 1-63 letters, digits, '.', '_', '-'. A function that requires a label which is not here is not
	// offered by this executor. Default: none.
	Labels map[string]string
	// Reserve keeps some of the Slots for a band or a function, in all less than Slots. Default: any work may have all.
	Reserve []Reserve
	// Name is shown to people, at most 63 bytes, and tells whoever starts executors which one is which. Default what
	// the environment has in HEADRACE_EXECUTOR_NAME, else host name and process id.
	Name string
	// DrainTimeout is how long running handlers may go on after Run's context has ended or Shutdown was
	// called. Then they are cancelled with ErrDrained and their tasks given back. Default 30 s; negative: none.
	DrainTimeout time.Duration
	// ResultBytes bounds a result, up to 16 MiB; a larger one is a failure that is not retried. It must not
	// be above what the server allows. Default 1 MiB.
	ResultBytes int
	// Middleware wraps every handler; the first is the outermost.
	Middleware []Middleware
	// Logger gets what the runtime has to say, and the lines of handlers. Default slog.Default().
	Logger *slog.Logger
	// TaskLogLevel is the least level of handlers' lines that reach the task. Default slog.LevelInfo.
	TaskLogLevel slog.Leveler
	// APIKey is sent with each call, hr_<id>_<secret>. Use TLS with it on any network but the loopback.
	APIKey string
	// TLS encrypts the connections. Default: none.
	TLS *tls.Config
	// Dialer opens connections; for proxies and tests. Default: TCP.
	Dialer func(ctx context.Context, addr string) (net.Conn, error)
}

// confirmTimeout is how long a drain waits, after its window, for handlers to return and for the owner
// to have their outcomes on disk.
const confirmTimeout = 1500 * time.Millisecond

// NameVariable is the environment's variable with the default of Config.Name.
const NameVariable = "HEADRACE_EXECUTOR_NAME"

// maxFunctions is how many functions one executor may have, over all tenants.
const maxFunctions = 10_000

func (c Config) withDefaults() Config {
	if c.Addr == "" {
		c.Addr = "127.0.0.1:7070"
	}
	if c.Tenant == "" {
		c.Tenant = "default"
	}
	if c.Slots == 0 {
		c.Slots = 16 * runtime.GOMAXPROCS(0)
	}
	if c.Name == "" {
		c.Name = os.Getenv(NameVariable)
	}
	if c.Name == "" {
		host, _ := os.Hostname()
		c.Name = fmt.Sprintf("%.40s-%d", host, os.Getpid())
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = 30 * time.Second
	}
	if c.ResultBytes == 0 {
		c.ResultBytes = task.MaxPayload
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.TaskLogLevel == nil {
		c.TaskLogLevel = slog.LevelInfo
	}
	return c
}

// Validate says which field is wrong; zero fields are fine. Its error is a *task.FieldError.
func (c Config) Validate() error {
	c = c.withDefaults()
	if err := task.Name("Config.Tenant", c.Tenant); err != nil {
		return err
	}
	if c.Slots < 1 || c.Slots > 100_000 {
		return &task.FieldError{Field: "Config.Slots", Value: fmt.Sprint(c.Slots), Want: "1 to 100,000"}
	}
	if err := task.MatchLabels("Config.Labels", c.Labels); err != nil {
		return err
	}
	if err := c.checkReserve(); err != nil {
		return err
	}
	if len(c.Name) > task.MaxNameLen || !utf8.ValidString(c.Name) || strings.ContainsFunc(c.Name, unicode.IsControl) {
		return &task.FieldError{Field: "Config.Name", Value: c.Name, Want: "at most 63 bytes of UTF-8 without control characters"}
	}
	if c.ResultBytes < 1 || c.ResultBytes > task.MaxPayloadConfig {
		return &task.FieldError{Field: "Config.ResultBytes", Value: fmt.Sprint(c.ResultBytes), Want: "1 to 16 MiB"}
	}
	return nil
}

// Executor runs the functions that are registered with it. Its methods are safe for use by many
// goroutines.
type Executor struct {
	cfg      Config
	draining chan struct{} // closed by the first Shutdown
	hurry    chan struct{} // closed when a Shutdown can't wait any longer
	ended    chan struct{} // closed when Run has returned
	ready    chan struct{} // closed when the first session was welcomed
	welcomed sync.Once     // closes ready

	started   atomic.Int64
	succeeded atomic.Int64
	failed    atomic.Int64
	running   atomic.Int64
	sessions  atomic.Int64

	mu        sync.Mutex // guards following
	functions []*registration
	byName    map[functionName]bool
	errs      []error // of registrations
	ran       bool
	drainOnce bool
	hurryOnce bool
}

// ErrClosed says that an Executor was run already: each runs once.
var ErrClosed = errors.New("executor: it was run before")

// ErrUnfinished says that a drain ended before all handlers had returned and all outcomes were confirmed.
// Their tasks go to another executor, as those of a process that died.
var ErrUnfinished = errors.New("executor: the drain did not finish")

// New returns an executor that does nothing yet. Its error is a *task.FieldError.
func New(cfg Config) (*Executor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("executor: %w", err)
	}
	return &Executor{
		cfg:      cfg.withDefaults(),
		draining: make(chan struct{}),
		hurry:    make(chan struct{}),
		ended:    make(chan struct{}),
		ready:    make(chan struct{}),
		byName:   make(map[functionName]bool),
	}, nil
}

// Run connects, takes tasks and runs them. It blocks until ctx is done or Shutdown is called, then
// drains: no new tries, running ones may go on for Config.DrainTimeout, then they are cancelled. It
// returns nil after a complete drain, ErrUnfinished after one that was cut, at most 1.5 s after the
// timeout, and at once what is wrong with a registration. A server that can't be reached is no
// error: it is tried for ever.
func (x *Executor) Run(ctx context.Context) error {
	x.mu.Lock()
	err := errors.Join(x.errs...)
	switch {
	case x.ran:
		err = ErrClosed
	case err == nil && len(x.functions) == 0:
		err = errors.New("executor: no function is registered")
	case err == nil && len(x.functions) > maxFunctions:
		err = fmt.Errorf("executor: %d functions are registered, at most %d are possible", len(x.functions), maxFunctions)
	}
	if err != nil {
		x.mu.Unlock()
		return err
	}
	x.ran = true
	functions := x.functions
	x.mu.Unlock()
	defer close(x.ended)
	shares, err := x.shares(functions)
	if err != nil {
		return err
	}
	return x.runAll(ctx, shares)
}

// Shutdown drains as the end of Run's context does, and returns when Run has. If ctx ends before, what
// still runs is cancelled at once, and Shutdown returns ctx's error after a second or so. Of an executor that
// never ran it returns nil.
func (x *Executor) Shutdown(ctx context.Context) error {
	x.mu.Lock()
	ran := x.ran
	if !x.drainOnce {
		x.drainOnce = true
		close(x.draining)
	}
	x.mu.Unlock()
	if !ran {
		return nil
	}
	select {
	case <-x.ended:
		return nil
	case <-ctx.Done():
	}
	x.mu.Lock()
	if !x.hurryOnce {
		x.hurryOnce = true
		close(x.hurry)
	}
	x.mu.Unlock()
	<-x.ended
	return context.Cause(ctx)
}

// Ready is closed when a node has accepted the first session: tasks may come from now on.
func (x *Executor) Ready() <-chan struct{} { return x.ready }

// Stats are counts since the start, but for Running and Sessions.
type Stats struct {
	Started   int64 // tries whose handler was called
	Succeeded int64
	Failed    int64 // ended otherwise, for whatever reason
	Running   int64
	Sessions  int64 // open ones
}

// Stats returns the counts; each is exact, together they are not of one instant.
func (x *Executor) Stats() Stats {
	return Stats{x.started.Load(), x.succeeded.Load(), x.failed.Load(), x.running.Load(), x.sessions.Load()}
}
