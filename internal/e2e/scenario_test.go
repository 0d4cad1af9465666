package e2e

import (
	"bytes"
	"encoding/json"
	"net"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/ledger"
)

// The scenario tests are faults that real systems of this kind have had, each with its number; docs/TESTING.md
// has the table. This file holds what they share.

// headrace runs the command line against the server and returns what it printed.
func (s *server) headrace(args ...string) (stdout, stderr string, code int) {
	s.t.Helper()
	cmd := exec.CommandContext(ledger.Within(s.t, 30*time.Second), binary, append([]string{"--addr", s.listen}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		s.t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// nothingInUse waits until no partition counts a running task: no slot, no permit and no counter has leaked.
func nothingInUse(t *testing.T, s *server) {
	t.Helper()
	var last string
	ledger.Eventually(t, 20*time.Second, "nothing is in use any more", func() bool {
		out, errs, code := s.headrace("partition", "list", "-o", "json")
		if last = out + errs; code != 0 {
			return false
		}
		dec, running, n := json.NewDecoder(bytes.NewBufferString(out)), int64(0), 0
		for dec.More() {
			var p struct {
				Running *int64 `json:"running"`
			}
			if err := dec.Decode(&p); err != nil || p.Running == nil {
				t.Fatalf("partition list: %v in %s", err, out)
			}
			running += *p.Running
			n++
		}
		return n > 0 && running == 0
	})
	if t.Failed() {
		t.Log(last)
	}
}

// wire is a TCP proxy: what it carries can be cut, or go silent with the connections left open.
type wire struct {
	addr string
	mu   sync.Mutex // guards what follows
	open map[*link]bool
	made int // connections so far
	idle int // directions that were silent for longer than patience
}

// link is one connection through the wire.
type link struct {
	near, far net.Conn
	silent    chan struct{} // closed: nothing passes any more
	once      sync.Once
}

// newWire starts a proxy to a server. With a patience it closes connections that are silent for longer, and
// tells neither side before.
func newWire(t *testing.T, to string, patience time.Duration) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{addr: l.Addr().String(), open: map[*link]bool{}}
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				near.Close()
				continue
			}
			k := &link{near: near, far: far, silent: make(chan struct{})}
			w.mu.Lock()
			w.open[k] = true
			w.made++
			w.mu.Unlock()
			go w.carry(k, near, far, patience)
			go w.carry(k, far, near, patience)
		}
	}()
	t.Cleanup(func() { l.Close(); w.cut() })
	return w
}

// carry copies one direction until either side ends, or the link goes silent.
func (w *wire) carry(k *link, from, to net.Conn, patience time.Duration) {
	buf := make([]byte, 64<<10)
	for {
		if patience > 0 {
			_ = from.SetReadDeadline(time.Now().Add(patience))
		}
		n, err := from.Read(buf)
		select {
		case <-k.silent: // it stays open, and carries nothing: the other side can't know
			if err == nil {
				continue
			}
		default:
			if n > 0 {
				_, werr := to.Write(buf[:n])
				if err == nil {
					err = werr
				}
			}
		}
		if err != nil {
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				w.mu.Lock()
				w.idle++
				w.mu.Unlock()
			}
			w.end(k)
			return
		}
	}
}

func (w *wire) end(k *link) {
	w.mu.Lock()
	delete(w.open, k)
	w.mu.Unlock()
	k.near.Close()
	k.far.Close()
}

func (w *wire) links() (ks []*link) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k := range w.open {
		ks = append(ks, k)
	}
	return ks
}

// cut closes all connections; new ones are welcome.
func (w *wire) cut() {
	for _, k := range w.links() {
		w.end(k)
	}
}

// hush makes the open connections silent without closing them.
func (w *wire) hush() {
	for _, k := range w.links() {
		k.once.Do(func() { close(k.silent) })
	}
}

// counts returns how many connections there have been, and how many directions were silent too long.
func (w *wire) counts() (made, idle int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.made, w.idle
}
