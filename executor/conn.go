package executor

import (
	"context"
	"sync"

	"google.golang.org/grpc"
)

// conn is a connection to one address that can be made anew while it is in use. gRPC alone notices a dead
// network by its pings, after half a minute: by then the tries of that node would be orphans.
type conn struct {
	dial func() (*grpc.ClientConn, error)
	mu   sync.Mutex // guards cc
	cc   *grpc.ClientConn
}

func newConn(dial func() (*grpc.ClientConn, error)) (*conn, error) {
	cc, err := dial()
	if err != nil {
		return nil, err
	}
	return &conn{dial: dial, cc: cc}, nil
}

// renew replaces the connection: calls on the one before end with an error, later ones use the new one.
func (c *conn) renew() error {
	cc, err := c.dial()
	if err != nil {
		return err
	}
	c.mu.Lock()
	old := c.cc
	c.cc = cc
	c.mu.Unlock()
	go func() { _ = old.Close() }() // takes up to 5 s where the network takes no bytes any more
	return nil
}

func (c *conn) current() *grpc.ClientConn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cc
}

// Invoke is of grpc.ClientConnInterface, as is NewStream.
func (c *conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return c.current().Invoke(ctx, method, args, reply, opts...)
}

func (c *conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.current().NewStream(ctx, desc, method, opts...)
}

func (c *conn) close() error { return c.current().Close() }
