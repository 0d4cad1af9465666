package pgstore

import (
	"bytes"
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// The driver encodes into lent memory, and holds it no longer once it was taken back: what a connection sends later must not be
// written over what another one is sending.
func TestLentMemoryComesBack(t *testing.T) {
	ctx := context.Background()
	conn, err := pgconn.Connect(ctx, server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	var l lent
	query := func(ctx context.Context, size int) error {
		l.to(conn, size+100)
		defer l.back(conn)
		arg := bytes.Repeat([]byte{'x'}, size)
		r := conn.ExecParams(ctx, "SELECT length($1)", [][]byte{arg}, []uint32{oidText}, nil, nil).Read()
		return r.Err
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for _, c := range []struct {
		name string
		ctx  context.Context
		size int
	}{{"large", ctx, 100_000}, {"small: the driver keeps such buffers", ctx, 10}, {"nothing is sent", ended, 10}} {
		if err := query(c.ctx, c.size); (err != nil) != (c.ctx == ended) {
			t.Fatalf("%s: %v", c.name, err)
		}
		if l.b == nil {
			t.Fatalf("%s: the memory did not come back", c.name)
		}
		held := false
		conn.Frontend().Send(exchange(func(dst []byte) []byte {
			held = cap(dst) > 0 && &dst[:1][0] == &l.b[:1][0]
			return dst
		}))
		if held {
			t.Fatalf("%s: the connection still holds the memory", c.name)
		}
		if c.size > 1000 && !bytes.Contains(l.b[:c.size], []byte("xxxxxxxx")) {
			t.Errorf("%s: the driver did not use the memory", c.name)
		}
	}
	conn.Close(ctx)
	if l.back(conn); l.b != nil {
		t.Error("memory came back from a connection that is closed")
	}
}
