// Package proxy is a TCP proxy on loopback that stands in front of a link between two processes of a local
// cluster and breaks it: cut (connections are reset, new ones too), held (bytes stay here, nothing is closed:
// what a network that drops packets looks like to both ends), healed (what was held goes on, in order).
//
// Connections can be told apart by who made them, so that one link is broken and others through the same
// address are not. It knows nothing of what it carries.
package proxy

import (
	"errors"
	"io"
	"net"
	"sync"
)

// Direction is one way through the proxy.
type Direction int

const (
	Up   Direction = iota // from who connected to who listens
	Down                  // back
)

// Config says what to stand in front of.
type Config struct {
	Listen string // host:port; "": any free port of the loopback
	To     string // host:port that connections are passed on to
	// Group names who made a connection; nil: all are of group "".
	Group func(near net.Conn) string
}

// A Proxy passes connections on. Its methods can be called by many goroutines.
type Proxy struct {
	cfg Config
	l   net.Listener
	wg  sync.WaitGroup

	mu     sync.Mutex // guards what follows
	faults map[string]*fault
	links  map[*link]bool
	made   int
	closed bool
}

// fault is what is wrong with a group; that of group all is wrong with every one.
type fault struct {
	cut  bool
	held [2]chan struct{} // by Direction; nil: open; closed when it opens again
}

const all = "\x00all"

// link is one connection through the proxy.
type link struct {
	group     string
	near, far net.Conn // far is nil until it is connected
	ended     chan struct{}
	once      sync.Once
}

// New starts a proxy. Close ends it.
func New(cfg Config) (*Proxy, error) {
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, err
	}
	p := &Proxy{cfg: cfg, l: l, faults: map[string]*fault{}, links: map[*link]bool{}}
	p.wg.Go(p.accept)
	return p, nil
}

// Addr is where the proxy listens.
func (p *Proxy) Addr() string { return p.l.Addr().String() }

// Made returns how many connections there have been.
func (p *Proxy) Made() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.made
}

// Seen reports whether a connection of the group is open.
func (p *Proxy) Seen(group string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k := range p.links {
		if k.group == group {
			return true
		}
	}
	return false
}

// Close ends the proxy and every connection through it, and waits for its goroutines.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.l.Close()
	p.Cut()
	p.wg.Wait()
}

// Cut resets the connections of the groups, and new ones as soon as they come; no groups: all.
func (p *Proxy) Cut(groups ...string) {
	p.set(groups, func(f *fault) { f.cut = true })
	p.reset(groups)
}

// Reset resets the connections of the groups; new ones are welcome. No groups: all.
func (p *Proxy) Reset(groups ...string) { p.reset(groups) }

// Hold keeps what goes in a direction, the end of a connection included; a new connection waits before it
// reaches the other side. No groups: all.
func (p *Proxy) Hold(d Direction, groups ...string) {
	p.set(groups, func(f *fault) {
		if f.held[d] == nil {
			f.held[d] = make(chan struct{})
		}
	})
}

// Blackhole holds both directions.
func (p *Proxy) Blackhole(groups ...string) {
	p.Hold(Up, groups...)
	p.Hold(Down, groups...)
}

// Heal ends every fault.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.faults {
		for _, held := range f.held {
			if held != nil {
				close(held)
			}
		}
	}
	clear(p.faults)
}

func (p *Proxy) set(groups []string, change func(*fault)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(groups) == 0 {
		groups = []string{all}
	}
	for _, g := range groups {
		if p.faults[g] == nil {
			p.faults[g] = &fault{}
		}
		change(p.faults[g])
	}
}

func (p *Proxy) reset(groups []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k := range p.links {
		if len(groups) == 0 {
			k.reset()
		}
		for _, g := range groups {
			if g == k.group {
				k.reset()
			}
		}
	}
}

func (p *Proxy) accept() {
	for {
		near, err := p.l.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(near) })
	}
}

func (p *Proxy) serve(near net.Conn) {
	k := &link{near: near, ended: make(chan struct{})}
	if p.cfg.Group != nil {
		k.group = p.cfg.Group(near)
	}
	p.mu.Lock()
	cut := p.closed || p.cut(k.group)
	if !cut {
		p.links[k] = true
		p.made++
	}
	p.mu.Unlock()
	if cut {
		k.reset()
		return
	}
	defer func() {
		p.mu.Lock()
		delete(p.links, k)
		p.mu.Unlock()
	}()
	if !p.pass(k, Up) || !p.pass(k, Down) {
		return
	}
	far, err := net.Dial("tcp", p.cfg.To)
	if err != nil {
		k.reset()
		return
	}
	p.mu.Lock()
	k.far = far
	p.mu.Unlock()
	select {
	case <-k.ended: // cut while it was connected
		far.Close()
		return
	default:
	}
	var ways sync.WaitGroup
	ways.Go(func() { p.carry(k, Up, near, far) })
	ways.Go(func() { p.carry(k, Down, far, near) })
	ways.Wait()
	near.Close()
	far.Close()
}

// carry copies one direction until its source has ended and that is told to the other side.
func (p *Proxy) carry(k *link, d Direction, from, to net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if !p.pass(k, d) {
			return
		}
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				k.reset()
				return
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			_ = to.(*net.TCPConn).CloseWrite() // it is gone: as good
			return
		case err != nil:
			k.reset()
			return
		}
	}
}

// pass waits until a direction of a link is open, and reports whether the link still is there.
func (p *Proxy) pass(k *link, d Direction) bool {
	for {
		p.mu.Lock()
		var held chan struct{}
		for _, g := range []string{all, k.group} {
			if f := p.faults[g]; f != nil && f.held[d] != nil {
				held = f.held[d]
			}
		}
		p.mu.Unlock()
		if held == nil {
			select {
			case <-k.ended:
				return false
			default:
				return true
			}
		}
		select {
		case <-held:
		case <-k.ended:
			return false
		}
	}
}

// cut reports whether a group is cut off; under mu.
func (p *Proxy) cut(group string) bool {
	for _, g := range []string{all, group} {
		if f := p.faults[g]; f != nil && f.cut {
			return true
		}
	}
	return false
}

// reset ends both connections with a reset, so that each side sees an error and not an orderly end. far is
// set under the proxy's mu before anybody carries the link.
func (k *link) reset() {
	k.once.Do(func() {
		close(k.ended)
		for _, c := range []net.Conn{k.near, k.far} {
			if tcp, ok := c.(*net.TCPConn); ok && tcp != nil {
				_ = tcp.SetLinger(0)
				tcp.Close()
			}
		}
	})
}
