package client

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/internal/grpcx"
	"github.com/headrace/headrace/task"
)

// Config says how to reach the platform and as whom. The zero value works against a local `headrace dev`.
type Config struct {
	// Addr is host:port of any node, or of several, with commas between. The client holds a connection to one of
	// them, and goes to the next when that breaks, its node goes away, or nothing is heard of it for 3 s while calls
	// are under way. Names are looked up at each attempt to connect. Default: 127.0.0.1:7070.
	Addr string
	// Tenant whose tasks these are. Default: "default".
	Tenant string
	// APIKey identifies the caller, as hr_<id>_<secret>. It is sent with every call: use TLS with it.
	// Default: none, which servers that listen on a loopback address accept.
	APIKey string
	// TLS turns on encryption. Default: plain text.
	TLS *tls.Config
	// Logger gets what degrades the client: lost connections, backpressure; at most a line in 10 s for
	// each kind. Default: nothing is logged.
	Logger *zap.Logger

	// MaxInFlight is the number of calls with gathered submits that are under way at once, 1-64. More
	// hide latency, fewer make larger batches and cost less CPU; with two, one gathers while the other commits. Default: 2.
	MaxInFlight int
	// MaxBatch is the most tasks in such a call, 1-1,000. Default: 500.
	MaxBatch int
	// MaxBatchBytes is the most bytes in such a call, 1 KiB-4 MiB; a larger task travels alone. Default: 1 MiB.
	MaxBatchBytes int
	// CallTimeout is how long one call may take before it counts as lost and is sent again, 10 ms-10
	// min. The context of the caller bounds all calls together. Default: 10 s.
	CallTimeout time.Duration
	// FailOnBackpressure makes submits return *BackpressureError at once. Default: they wait as long as
	// the server asks, and try again.
	FailOnBackpressure bool

	// NeverHoldBack lets every call go, whatever became of those before. Default: while most calls of two minutes have no
	// answer, few are made (HeldBackError), one a second at least.
	NeverHoldBack bool

	// Middleware wraps every submit; the first is the outermost.
	Middleware []Middleware
	// TraceContext returns the W3C traceparent and tracestate that tasks submitted under ctx get, or
	// empty strings. Default: what WithTraceParent put there.
	TraceContext func(ctx context.Context) (traceParent, traceState string)
	// Dialer replaces the network, for other transports and for tests. Default: TCP.
	Dialer func(ctx context.Context, addr string) (net.Conn, error)
}

// Validate reports the first field that is out of its range, as a *task.FieldError.
func (c Config) Validate() error {
	c = c.withDefaults()
	if c.Dialer == nil {
		for _, addr := range grpcx.Addrs(c.Addr) {
			if _, _, err := net.SplitHostPort(addr); err != nil {
				return &task.FieldError{Field: "Addr", Value: c.Addr, Want: "host:port, or several with commas between"}
			}
		}
	}
	if err := task.Name("Tenant", c.Tenant); err != nil {
		return err
	}
	for _, n := range []struct {
		field           string
		value, low, top int
	}{
		{"MaxInFlight", c.MaxInFlight, 1, 64},
		{"MaxBatch", c.MaxBatch, 1, task.MaxBatchItems},
		{"MaxBatchBytes", c.MaxBatchBytes, 1 << 10, task.MaxBatchBytes},
	} {
		if n.value < n.low || n.value > n.top {
			return &task.FieldError{Field: n.field, Value: fmt.Sprint(n.value), Want: fmt.Sprintf("%d to %d", n.low, n.top)}
		}
	}
	for i, m := range c.Middleware {
		if m == nil {
			return &task.FieldError{Field: fmt.Sprintf("Middleware[%d]", i), Want: "a function"}
		}
	}
	return task.Duration("CallTimeout", c.CallTimeout, 10*time.Millisecond, 10*time.Minute)
}

func (c Config) withDefaults() Config {
	if c.Addr == "" {
		c.Addr = "127.0.0.1:7070"
	}
	if c.Tenant == "" {
		c.Tenant = "default"
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = 2
	}
	if c.MaxBatch == 0 {
		c.MaxBatch = 500
	}
	if c.MaxBatchBytes == 0 {
		c.MaxBatchBytes = 1 << 20
	}
	if c.CallTimeout == 0 {
		c.CallTimeout = 10 * time.Second
	}
	if c.TraceContext == nil {
		c.TraceContext = TraceParent
	}
	return c
}
