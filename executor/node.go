package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/headrace/headrace/executor/engine"
	"github.com/headrace/headrace/internal/grpcx"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

const (
	silentMax   = 5 * time.Second // a node answers beats at least once a second; one silent for longer gets a new connection
	backoffBase = 50 * time.Millisecond
	backoffMax  = 5 * time.Second // between streams that fail at once, half to whole of it

	reconnectMax = time.Second // between attempts to connect
	streamInbox  = 8           // messages of a stream that the loop has not seen; then its reader waits
)

// node is one node that we hold a session to.
type node struct {
	name   string // for logs; the loop's goroutine only
	key    string // names it among all nodes; the loop's goroutine only
	addr   string
	conn   *conn // of client; to the same address there is one
	client headracev1.ExecutorServiceClient
	cancel context.CancelFunc
	gone   bool // the directory does not name it any more; the loop's goroutine only
}

// stream is one session's stream. Its reader and its sender are goroutines of their own.
type stream struct {
	id      engine.SessionID // set by the loop before anything is sent
	node    *node
	stream  grpc.BidiStreamingClient[headracev1.SessionRequest, headracev1.SessionResponse]
	cancel  context.CancelFunc
	out     chan *headracev1.SessionRequest // capacity 1: the engine has one message on its way; closed by finish
	inbox   chan struct{}                   // tokens: the reader puts, the loop takes
	heardAt time.Time                       // of the last message; the loop's goroutine only
	// Both the loop's goroutine only.
	welcomed bool
	finished bool
}

// connect dials the configured addresses and follows the directory from the first that answers.
func (l *loop) connect() error {
	for _, addr := range l.bootstrap {
		if _, err := l.dial(addr); err != nil {
			return fmt.Errorf("executor: dial %s: %w", addr, err)
		}
	}
	client := headracev1.NewExecutorServiceClient(l.conns[l.bootstrap[0]])
	l.wg.Go(func() { l.follow(client) })
	return nil
}

// dial returns the connection to addr. The loop's goroutine only.
func (l *loop) dial(addr string) (*conn, error) {
	if c := l.conns[addr]; c != nil {
		return c, nil
	}
	cfg := &l.x.cfg
	// A node that restarts must find its executors again within a second or two: tries wait for it.
	opts := append(grpcx.DialOptions(0), grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: backoffBase, Multiplier: 1.6, Jitter: 0.2, MaxDelay: reconnectMax},
		MinConnectTimeout: 5 * time.Second,
	}))
	if cfg.TLS != nil {
		opts = append(opts, grpc.WithTransportCredentials(credentials.NewTLS(cfg.TLS)))
	} else {
		opts = append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	if cfg.APIKey != "" {
		opts = append(opts, grpc.WithPerRPCCredentials(bearer(cfg.APIKey)))
	}
	if cfg.Dialer != nil {
		opts = append(opts, grpc.WithContextDialer(cfg.Dialer))
	}
	c, err := newConn(func() (*grpc.ClientConn, error) {
		target, several := grpcx.Target(addr)
		return grpc.NewClient(target, slices.Concat(opts, several)...)
	})
	if err == nil {
		l.conns[addr] = c
	}
	return c, err
}

// bearer sends an API key with each call.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

func (bearer) RequireTransportSecurity() bool { return false } // the loopback needs none

// pause waits before the n-th retry in a row, n from 0, and reports whether to go on.
func pause(ctx context.Context, n int) bool {
	d := min(backoffBase<<min(n, 10), backoffMax)
	d -= time.Duration(rand.Int64N(int64(d)/2 + 1)) // jitter: half to whole
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// follow reads the directory for ever and tells the loop of each change. It asks the configured addresses first,
// and when none answers, the nodes that the directory has named, one after the other. A server without
// a directory is one node by itself.
func (l *loop) follow(client headracev1.ExecutorServiceClient) {
	addrs, at := l.bootstrap, 0
	for n := 0; ; n++ {
		err := l.followOne(client, len(addrs) > 1, func(nodes []*headracev1.DirectoryNode) {
			n = 0
			known := slices.Clone(l.bootstrap)
			for _, d := range nodes {
				if d.Address != "" && !slices.Contains(known, d.Address) {
					known = append(known, d.Address)
				}
			}
			from := addrs[at]
			at = max(slices.Index(known, from), 0)
			addrs = known
			l.box.call(func() { l.directory(from, nodes) })
		})
		if status.Code(err) == codes.Unimplemented {
			from := addrs[at]
			l.box.call(func() { l.directory(from, []*headracev1.DirectoryNode{{Partitions: []uint32{0}}}) })
			return
		}
		if l.ctx.Err() != nil {
			return
		}
		if n > 0 {
			l.x.cfg.Logger.Warn("directory stream ended", "addr", addrs[at], "err", err)
		}
		if !pause(l.ctx, n/len(addrs)) {
			return
		}
		at = (at + 1) % len(addrs)
		if client = l.clientAt(addrs[at]); client == nil {
			return
		}
	}
}

// followMax is how long a node may take to send its directory while there are others to ask.
const followMax = 2 * time.Second

// followOne reads one node's directory until its stream ends.
func (l *loop) followOne(client headracev1.ExecutorServiceClient, others bool, changed func([]*headracev1.DirectoryNode)) error {
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	if others {
		late := time.AfterFunc(followMax, cancel)
		defer late.Stop()
		next := changed
		changed = func(nodes []*headracev1.DirectoryNode) {
			late.Stop()
			next(nodes)
		}
	}
	stream, err := client.Directory(ctx, &headracev1.DirectoryRequest{}, grpc.WaitForReady(true))
	for err == nil {
		var d *headracev1.DirectoryResponse
		if d, err = stream.Recv(); err == nil {
			changed(d.Nodes)
		}
	}
	return err
}

// clientAt returns a client for an address; nil when the loop ends. The loop's goroutine owns the connections.
func (l *loop) clientAt(addr string) headracev1.ExecutorServiceClient {
	got := make(chan grpc.ClientConnInterface, 1)
	l.box.call(func() {
		conn, err := l.dial(addr)
		if err != nil { // it was an address once
			conn = l.conns[l.bootstrap[0]]
		}
		got <- conn
	})
	select {
	case conn := <-got:
		return headracev1.NewExecutorServiceClient(conn)
	case <-l.ctx.Done():
		return nil
	}
}

// directory opens a session to each node that owns partitions and has none, and marks the nodes that
// own none any more. A node that tells no address is the one that was asked. An empty list says nothing: a
// cluster that starts has no owners yet.
func (l *loop) directory(from string, nodes []*headracev1.DirectoryNode) {
	if l.drains {
		return
	}
	named := make(map[string]bool)
	for _, d := range nodes {
		if len(d.Partitions) == 0 {
			continue
		}
		// By address: a node that has restarted has another id and the same address, and for a while the directory
		// may name both. With two sessions to one process, the claims of each would be missing from the other's hello.
		addr := cmp.Or(d.Address, from)
		key := addr
		named[key] = true
		if n := l.nodes[key]; n != nil {
			n.name, n.gone = cmp.Or(d.Id, addr), false
			continue
		}
		conn, err := l.dial(addr)
		if err != nil {
			l.x.cfg.Logger.Error("node can't be dialled", "node", d.Id, "addr", addr, "err", err)
			continue
		}
		ctx, cancel := context.WithCancel(l.ctx)
		n := &node{name: cmp.Or(d.Id, addr), key: key, addr: addr, conn: conn, client: headracev1.NewExecutorServiceClient(conn), cancel: cancel}
		l.nodes[key] = n
		l.wg.Go(func() { n.run(ctx, l) })
	}
	if len(named) == 0 {
		return
	}
	for key, n := range l.nodes {
		n.gone = !named[key]
	}
}

// retire ends sessions that are silent, and those to nodes that own nothing any more once nothing is
// left to be said there.
func (l *loop) retire() {
	for _, s := range l.streams {
		if l.now.Sub(s.heardAt) > silentMax && !s.finished {
			s.heardAt = l.now
			l.x.cfg.Logger.Warn("node is silent; trying a new connection", "node", s.node.name, "for", silentMax)
			s.cancel()
			// A new stream would share the fate of this one if it is the network that is dead.
			if err := s.node.conn.renew(); err != nil {
				l.x.cfg.Logger.Error("node can't be dialled", "node", s.node.name, "err", err)
			}
		}
	}
	for key, n := range l.nodes {
		if !n.gone || slices.ContainsFunc(l.engine.Sessions(), func(id engine.SessionID) bool {
			s := l.streams[id]
			return s != nil && s.node == n && l.engine.Held(id) > 0
		}) {
			continue
		}
		n.cancel()
		delete(l.nodes, key)
	}
}

// run holds a session to the node until ctx ends, with a new stream whenever one breaks.
func (n *node) run(ctx context.Context, l *loop) {
	defer n.cancel()
	for retry := 0; ctx.Err() == nil; retry++ {
		began := time.Now()
		heard, err := n.session(ctx, l)
		switch {
		case ctx.Err() != nil:
			return
		case heard && time.Since(began) > time.Second:
			retry = 0
		case heard: // it was let in: a node that restarts again and again must not wait long for us
			retry = min(retry, 3)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			l.x.cfg.Logger.Warn("session ended", "addr", n.addr, "err", err)
		}
		if !pause(ctx, retry) {
			return
		}
	}
}

// session opens one stream and reads it to its end. It reports whether the node said anything.
func (n *node) session(ctx context.Context, l *loop) (heard bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st, err := n.client.Session(ctx, grpc.WaitForReady(true))
	if err != nil {
		return false, err
	}
	s := &stream{
		node: n, stream: st, cancel: cancel,
		out:   make(chan *headracev1.SessionRequest, 1),
		inbox: make(chan struct{}, streamInbox),
	}
	sender := make(chan struct{})
	go func() {
		defer close(sender)
		s.sendAll(l)
	}()
	l.box.call(func() { l.open(s) })
	for {
		m, err := st.Recv()
		if err != nil {
			closed := make(chan struct{})
			l.box.call(func() { l.closed(s); close(closed) })
			cancel()
			<-sender
			<-closed
			return heard, err
		}
		heard = true
		select {
		case s.inbox <- struct{}{}:
		case <-ctx.Done():
			continue // Recv says why
		}
		l.box.put(func(e *events) { e.received = append(e.received, receivedMessage{s, m}) })
	}
}

// sendAll sends what the loop gives until out is closed.
func (s *stream) sendAll(l *loop) {
	for m := range s.out {
		if s.stream.Send(m) != nil {
			continue // the reader hears why
		}
		l.box.put(func(e *events) { e.sent = append(e.sent, sentMessage{s, m}) })
	}
	s.stream.CloseSend()
}

// open makes a session of a new stream.
func (l *loop) open(s *stream) {
	s.heardAt = l.now
	s.id = l.engine.Open(l.now, s.node.key)
	l.streams[s.id] = s
}

// closed forgets a stream.
func (l *loop) closed(s *stream) {
	l.engine.Closed(l.now, s.id)
	delete(l.streams, s.id)
	if s.welcomed {
		l.x.sessions.Add(-1)
	}
	s.finish()
}

// send gives the sender the next message, if there is one and the one before is sent.
func (l *loop) send(s *stream) {
	if s.finished {
		return
	}
	if m := l.engine.Message(l.now, s.id); m != nil {
		s.out <- m // never waits: there is one message at a time
	}
}

// finish lets the sender end the stream from our side once it has sent what it has.
func (s *stream) finish() {
	if !s.finished {
		s.finished = true
		close(s.out)
	}
}
