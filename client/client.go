package client

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/headrace/headrace/internal/grpcx"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

// A Client submits and reads the tasks of one tenant over one connection at a time. Its methods can be called by
// any number of goroutines.
type Client struct {
	cfg    Config
	conn   *link
	tasks  headracev1.TaskServiceClient
	ctx    context.Context // ends with Close, cause ErrClosed
	close  context.CancelCauseFunc
	submit SubmitFunc // middleware around submitTasks
	queue  *coalescer
	parent *Client // whose connection this is; nil: its own
	log    rateLogger

	mu       sync.Mutex // guards following
	children map[*Client]struct{}
}

// Dial returns a client. It does not wait for the network: the first call connects. Its error names
// the field of cfg that is wrong.
func Dial(cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("client config: %w", err)
	}
	cfg = cfg.withDefaults()
	creds := insecure.NewCredentials()
	opts := grpcx.DialOptions(0)
	if cfg.TLS != nil {
		creds = credentials.NewTLS(cfg.TLS.Clone())
	}
	if cfg.Dialer != nil {
		opts = append(opts, grpc.WithContextDialer(cfg.Dialer))
	}
	if cfg.APIKey != "" {
		opts = append(opts, grpc.WithPerRPCCredentials(apiKey(cfg.APIKey)))
	}
	opts = append(opts, grpc.WithTransportCredentials(creds))
	conn, err := newLink(grpcx.Addrs(cfg.Addr), !cfg.NeverHoldBack, func(addrs []string) (*grpc.ClientConn, error) {
		target, several := grpcx.Target(addrs...)
		return grpc.NewClient(target, slices.Concat(opts, several)...)
	})
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", cfg.Addr, err)
	}
	return newClient(context.Background(), cfg, conn), nil
}

func newClient(ctx context.Context, cfg Config, conn *link) *Client {
	c := &Client{cfg: cfg, conn: conn, tasks: headracev1.NewTaskServiceClient(conn), log: rateLogger{log: cfg.Logger}}
	c.children = map[*Client]struct{}{}
	c.ctx, c.close = context.WithCancelCause(ctx)
	c.queue = &coalescer{c: c}
	c.submit = c.submitTasks
	for i := len(cfg.Middleware) - 1; i >= 0; i-- {
		c.submit = cfg.Middleware[i](c.submit)
	}
	return c
}

// ForTenant returns a client of another tenant over the same connection. It ends with its own Close or
// with that of c.
func (c *Client) ForTenant(tenant string) (*Client, error) {
	cfg := c.cfg
	cfg.Tenant = tenant
	if tenant == "" { // never somebody else's by omission
		cfg.Tenant = " "
	}
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("client config: %w", err)
	}
	child := newClient(c.ctx, cfg, c.conn)
	child.parent = c
	c.mu.Lock()
	defer c.mu.Unlock()
	c.children[child] = struct{}{}
	return child, nil
}

// Tenant returns whose tasks the client submits and reads.
func (c *Client) Tenant() string { return c.cfg.Tenant }

// Close ends the client: submits and waits that are under way return errors that wrap ErrClosed and say
// whether the task may be stored. It returns when everything the client started has ended. Wait for
// your submits before you close. Closing twice is fine.
func (c *Client) Close() {
	c.close(ErrClosed)
	c.mu.Lock()
	children := slices.Collect(maps.Keys(c.children))
	c.mu.Unlock()
	for _, child := range children {
		child.Close()
	}
	c.queue.stop()
	if c.parent == nil {
		c.conn.close()
		return
	}
	c.parent.mu.Lock()
	defer c.parent.mu.Unlock()
	delete(c.parent.children, c)
}

// during returns a context that ends with ctx or the client, whichever is first.
func (c *Client) during(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.ctx, func() { cancel(ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// apiKey puts a key into every call's metadata.
type apiKey string

func (k apiKey) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(k)}, nil
}

// RequireTransportSecurity is false: a server on the loopback needs no TLS. The doc of Config.APIKey warns.
func (apiKey) RequireTransportSecurity() bool { return false }
