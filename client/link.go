package client

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/headrace/headrace/internal/grpcx"
	"github.com/headrace/headrace/internal/holdback"
)

// How a dead network is noticed that no packet tells of: gRPC's own pings may come every ten seconds at most. While
// calls are under way and nothing was heard for a while, a health check is sent beside them. Without an
// answer the connection is made anew, to the next address if there are several.
const (
	quietCalls = 2 * time.Second // while there is a call that is answered once
	quietWaits = 8 * time.Second // while there are waits only, which may be silent for hours
	probeMax   = time.Second
	watchEvery = 500 * time.Millisecond
	retireMax  = 15 * time.Second // a connection that is left has as long for the calls on it
)

// link is the connection to one of several nodes. It can be made anew while it is in use: calls on the one before
// end with an error that says nothing of their outcome, later ones use the new one.
type link struct {
	dial func(addrs []string) (*grpc.ClientConn, error)
	wg   sync.WaitGroup
	ctx  context.Context // ends with close
	stop context.CancelFunc

	mu       sync.Mutex // guards following
	addrs    []string   // in the order in which they are tried
	cc       *grpc.ClientConn
	old      []*grpc.ClientConn // left, with calls that may go on
	calls    int                // under way, but for waits
	waits    int
	since    time.Time // when something was heard last, or when the first of what is under way began
	watching bool
	hold     *holdback.Throttle // nil: nothing is held back
}

func newLink(addrs []string, holds bool, dial func([]string) (*grpc.ClientConn, error)) (*link, error) {
	addrs = slices.Clone(addrs)
	rand.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] }) // clients spread over the nodes
	cc, err := dial(addrs)
	if err != nil {
		return nil, err
	}
	l := &link{dial: dial, addrs: addrs, cc: cc}
	if holds {
		l.hold = &holdback.Throttle{}
	}
	l.ctx, l.stop = context.WithCancel(context.Background())
	return l, nil
}

func (l *link) current() *grpc.ClientConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cc
}

// leave replaces the connection cc, unless somebody did, by one to the next address. With several addresses calls on
// a gentle one may end; else they end now.
func (l *link) leave(cc *grpc.ClientConn, gentle bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cc != cc || l.ctx.Err() != nil {
		return
	}
	next := append(slices.Clone(l.addrs[1:]), l.addrs[0])
	made, err := l.dial(next)
	if err != nil {
		return // the addresses were good once: this does not happen
	}
	l.addrs, l.cc, l.since = next, made, time.Now()
	made.Connect()
	if !gentle {
		go func() { _ = cc.Close() }() // takes up to 5 s where the network takes no bytes any more
		return
	}
	l.old = append(l.old, cc)
	l.wg.Go(func() {
		t := time.NewTimer(retireMax)
		defer t.Stop()
		select {
		case <-t.C:
		case <-l.ctx.Done():
		}
		_ = cc.Close()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.old = slices.DeleteFunc(l.old, func(o *grpc.ClientConn) bool { return o == cc })
	})
}

// goElsewhere leaves a node that says that it goes away, if there is another.
func (l *link) goElsewhere(cc *grpc.ClientConn) {
	l.mu.Lock()
	several := len(l.addrs) > 1
	l.mu.Unlock()
	if several {
		l.leave(cc, true)
	}
}

// close ends all calls and returns when nothing is left.
func (l *link) close() {
	l.mu.Lock()
	l.stop()
	cc := l.cc
	l.mu.Unlock()
	_ = cc.Close()
	l.wg.Wait()
}

// begin counts a call; end must follow.
func (l *link) begin(wait bool) *grpc.ClientConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls+l.waits == 0 || l.calls == 0 && !wait {
		l.since = time.Now()
	}
	if wait {
		l.waits++
	} else {
		l.calls++
	}
	if !l.watching && l.ctx.Err() == nil {
		l.watching = true
		l.wg.Go(l.watch)
	}
	return l.cc
}

func (l *link) end(cc *grpc.ClientConn, wait bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if wait {
		l.waits--
	} else {
		l.calls--
	}
	l.note(cc, err)
}

// note says how a message or a call ended; mu is held.
func (l *link) note(cc *grpc.ClientConn, err error) {
	if cc == l.cc && answered(err) {
		l.since = time.Now()
	}
}

// goesAway reports whether a node said that it ends, and takes no calls any more.
func goesAway(err error) bool { return err != nil && grpcx.Read(err).Reason == "draining" }

// answered reports whether an error, or none, can only come from a peer that lives.
func answered(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return false
	}
	return true
}

// watch looks after the connection while calls are under way.
func (l *link) watch() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-l.ctx.Done():
			return
		}
		l.mu.Lock()
		if l.calls+l.waits == 0 {
			l.watching = false
			l.mu.Unlock()
			return
		}
		quiet := quietCalls
		if l.calls == 0 {
			quiet = quietWaits
		}
		cc, since := l.cc, l.since
		l.mu.Unlock()
		if time.Since(since) < quiet || cc.GetState() != connectivity.Ready {
			continue
		}
		if !l.probe(cc) && cc.GetState() == connectivity.Ready {
			l.mu.Lock()
			heard := l.since != since
			l.mu.Unlock()
			if !heard {
				l.leave(cc, false)
			}
		}
	}
}

// probe asks whether anybody is there; any answer will do.
func (l *link) probe(cc *grpc.ClientConn) bool {
	ctx, cancel := context.WithTimeout(context.Background(), probeMax)
	defer cancel()
	stop := context.AfterFunc(l.ctx, cancel)
	defer stop()
	_, err := healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note(cc, err)
	return answered(err)
}

// Invoke is of grpc.ClientConnInterface, as is NewStream.
func (l *link) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	counts, err := l.mayCall()
	if err != nil {
		return err
	}
	began := time.Now()
	cc := l.begin(false)
	err = cc.Invoke(ctx, method, args, reply, opts...)
	l.end(cc, false, err)
	if counts {
		l.count(err, time.Since(began))
	}
	if goesAway(err) {
		l.goElsewhere(cc)
	}
	return err
}

func (l *link) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	cc := l.begin(true)
	st, err := cc.NewStream(ctx, desc, method, opts...)
	if err != nil {
		l.end(cc, true, err)
		return nil, err
	}
	return &linkStream{ClientStream: st, l: l, cc: cc}, nil
}

// linkStream is a stream that is read until its first error.
type linkStream struct {
	grpc.ClientStream
	l     *link
	cc    *grpc.ClientConn
	ended bool // the reader's only
}

func (s *linkStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	switch {
	case err == nil:
		s.l.mu.Lock()
		s.l.note(s.cc, nil)
		s.l.mu.Unlock()
	case !s.ended:
		s.ended = true
		s.l.end(s.cc, true, err)
		if goesAway(err) {
			s.l.goElsewhere(s.cc)
		}
	}
	return err
}
