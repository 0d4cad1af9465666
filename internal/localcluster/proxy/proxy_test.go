package proxy

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// echo answers each line with itself.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); io.Copy(c, c) }()
		}
	}()
	return l.Addr().String()
}

type lines struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, p *Proxy) *lines {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &lines{t, c, bufio.NewReader(c)}
}

func (l *lines) say(s string) {
	l.t.Helper()
	if _, err := l.Write([]byte(s + "\n")); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lines) hear(within time.Duration) (string, error) {
	_ = l.SetReadDeadline(time.Now().Add(within))
	s, err := l.r.ReadString('\n')
	if err != nil {
		return s, err
	}
	return s[:len(s)-1], nil
}

func (l *lines) want(s string) {
	l.t.Helper()
	if got, err := l.hear(10 * time.Second); got != s || err != nil {
		l.t.Fatalf("heard %q, %v; want %q", got, err, s)
	}
}

func start(t *testing.T, cfg Config) *Proxy {
	t.Helper()
	cfg.To = echo(t)
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// What is held arrives in order after the network has healed, and no connection has noticed.
func TestHeldBytesArriveLater(t *testing.T) {
	t.Parallel()
	p := start(t, Config{})
	c := dial(t, p)
	c.say("one")
	c.want("one")
	for _, fault := range []func(){func() { p.Hold(Up) }, func() { p.Hold(Down) }, func() { p.Blackhole() }} {
		fault()
		c.say("two")
		c.say("three")
		fresh := dial(t, p)
		fresh.say("four")
		if got, err := c.hear(50 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("heard %q, %v through a network that holds", got, err)
		}
		if got, err := fresh.hear(50 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("a new connection heard %q, %v through a network that holds", got, err)
		}
		p.Heal()
		c.want("two")
		c.want("three")
		fresh.want("four")
	}
}

// The end of one side is held as well: the other learns of it after the network has healed.
func TestHeldEndArrivesLater(t *testing.T) {
	t.Parallel()
	p := start(t, Config{})
	c := dial(t, p)
	c.say("one")
	c.want("one")
	p.Hold(Down)
	c.say("two")
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := c.hear(50 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("heard %q, %v through a network that holds", got, err)
	}
	p.Heal()
	c.want("two")
	if got, err := c.hear(10 * time.Second); err != io.EOF {
		t.Fatalf("heard %q, %v; want the end", got, err)
	}
}

// A cut resets what is open and what comes, until it is healed.
func TestCutResets(t *testing.T) {
	t.Parallel()
	p := start(t, Config{})
	c := dial(t, p)
	c.say("one")
	c.want("one")
	p.Cut()
	if _, err := c.hear(10 * time.Second); err == nil || err == io.EOF || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("after a cut: %v, want a reset", err)
	}
	late, err := net.Dial("tcp", p.Addr())
	if err == nil {
		defer late.Close()
		_ = late.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err = late.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("a new connection through a cut: %v, want its end", err)
		}
	}
	p.Heal()
	again := dial(t, p)
	again.say("two")
	again.want("two")
}

// One group is cut off, the other does not notice.
func TestGroupsBreakApart(t *testing.T) {
	t.Parallel()
	names := make(chan string, 2)
	p := start(t, Config{Group: func(net.Conn) string { return <-names }})
	names <- "a"
	a := dial(t, p)
	a.say("one")
	a.want("one")
	names <- "b"
	b := dial(t, p)
	b.say("one")
	b.want("one")
	p.Cut("a")
	if got, err := a.hear(10 * time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a heard %q, %v after its cut", got, err)
	}
	b.say("two")
	b.want("two")
	p.Blackhole("b")
	b.say("three")
	if got, err := b.hear(50 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("b heard %q, %v through a network that holds", got, err)
	}
	p.Heal()
	b.want("three")
}
