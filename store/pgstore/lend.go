package pgstore

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// lent is memory that the driver encodes commits into, the same one each time. The driver's own starts with a kilobyte for each
// statement, doubles until a megabyte of parameters fits, and is dropped. One commit uses it at a time.
type lent struct{ b []byte }

// maxLent bounds what is kept between commits, in bytes.
const maxLent = 8 << 20

// to makes a connection that is idle encode the next statement, of about size bytes, into the memory.
func (l *lent) to(c *pgconn.PgConn, size int) {
	if size > maxLent {
		return
	}
	if cap(l.b) < size {
		l.b = make([]byte, 0, size+size/4)
	}
	c.Frontend().Send(exchange(func(dst []byte) []byte {
		if len(dst) > 0 {
			return dst // something waits to be sent
		}
		return l.b[:0]
	}))
}

// back takes the memory back after the statement, so that nobody writes from it any more; from a connection that broke, which
// may still do so, it does not come back.
func (l *lent) back(c *pgconn.PgConn) {
	if c.IsClosed() || c.IsBusy() {
		l.b = nil
		return
	}
	c.Frontend().Send(exchange(func(dst []byte) []byte {
		if cap(dst) > 0 && cap(l.b) > 0 && &dst[:1][0] == &l.b[:1][0] {
			return append([]byte(nil), dst...)
		}
		return dst
	}))
}

// exchange is no message: it exchanges the buffer that messages are encoded into, and adds nothing to it.
type exchange func(dst []byte) []byte

// Frontend implements pgproto3.FrontendMessage.
func (exchange) Frontend() {}

// Encode implements pgproto3.FrontendMessage.
func (f exchange) Encode(dst []byte) ([]byte, error) { return f(dst), nil }

// Decode implements pgproto3.FrontendMessage.
func (exchange) Decode([]byte) error { return errors.New("pgstore: nobody sends this") }
