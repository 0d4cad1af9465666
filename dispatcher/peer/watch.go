package peer

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc"

	"github.com/headrace/headrace/dispatcher/core"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// watches is the one stream that carries all watches of tasks that a peer owns. It opens with the first
// watch; when it breaks, all its watches end, and the next one opens another.
type watches struct {
	client headracev1.PeerServiceClient
	ctx    context.Context // of the peer
	wg     *sync.WaitGroup

	mu      sync.Mutex // guards following
	current *watchStream
}

type watchStream struct {
	out  chan *headracev1.WatchTasksRequest
	done chan struct{} // closed when the stream has ended

	mu    sync.Mutex // guards following
	last  uint64
	open  map[uint64]*remoteWatch
	ended bool
}

type remoteWatch struct {
	events chan core.Event // capacity 1; written and closed by the stream's reader
	opened chan struct{}   // closed by the reader, at events' close at the latest
}

// watch follows a task as loop.Watch does; a stream that breaks closes its events.
func (ws *watches) watch(ctx context.Context, id task.ID) (events <-chan core.Event, stop func(), err error) {
	s := ws.stream()
	w := &remoteWatch{events: make(chan core.Event, 1), opened: make(chan struct{})}
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		close(w.events)
		return w.events, func() {}, nil
	}
	s.last++
	number := s.last
	s.open[number] = w
	s.mu.Unlock()
	stop = func() {
		s.mu.Lock()
		delete(s.open, number)
		s.mu.Unlock()
		select {
		case s.out <- &headracev1.WatchTasksRequest{Watch: number}:
		case <-s.done:
		}
	}
	select {
	case s.out <- &headracev1.WatchTasksRequest{Watch: number, TaskId: id[:]}:
	case <-s.done:
	case <-ctx.Done():
	}
	select {
	case <-w.opened:
		return w.events, stop, nil
	case <-ctx.Done():
		stop()
		return nil, nil, context.Cause(ctx)
	}
}

func (ws *watches) stream() *watchStream {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if s := ws.current; s != nil {
		s.mu.Lock()
		ended := s.ended
		s.mu.Unlock()
		if !ended {
			return s
		}
	}
	s := &watchStream{out: make(chan *headracev1.WatchTasksRequest), done: make(chan struct{}), open: map[uint64]*remoteWatch{}}
	ws.current = s
	ws.wg.Go(func() { s.run(ws.ctx, ws.client) })
	return s
}

// run carries the stream to its end, which closes all watches.
func (s *watchStream) run(ctx context.Context, client headracev1.PeerServiceClient) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sent := make(chan struct{})
	stream, err := client.WatchTasks(ctx)
	if err == nil {
		go func() {
			defer close(sent)
			s.send(ctx, stream)
		}()
	} else {
		close(sent)
	}
	for err == nil {
		var m *headracev1.WatchTasksResponse
		if m, err = stream.Recv(); err == nil {
			err = s.take(m)
		}
	}
	cancel()
	s.mu.Lock()
	s.ended = true
	for number, w := range s.open {
		w.end()
		delete(s.open, number)
	}
	s.mu.Unlock()
	close(s.done)
	<-sent
}

func (s *watchStream) send(ctx context.Context, stream grpc.BidiStreamingClient[headracev1.WatchTasksRequest, headracev1.WatchTasksResponse]) {
	for {
		select {
		case m := <-s.out:
			if stream.Send(m) != nil {
				return // the reader hears why
			}
		case <-ctx.Done():
			return
		}
	}
}

// take hands on what came, the newest only.
func (s *watchStream) take(m *headracev1.WatchTasksResponse) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.open[m.Watch]
	if w == nil {
		return nil // it was stopped meanwhile
	}
	if m.Opened {
		select {
		case <-w.opened:
			return errors.New("a watch was opened twice")
		default:
			close(w.opened)
		}
	}
	if m.Task != nil {
		l, err := readLive(m.Task)
		if err != nil {
			return err
		}
		select {
		case <-w.events: // an older one that nobody has read
		default:
		}
		w.events <- core.Event{Task: l.Task, View: l.View}
	}
	if m.Closed {
		delete(s.open, m.Watch)
		w.end()
	}
	return nil
}

// end is called once, under the stream's lock.
func (w *remoteWatch) end() {
	select {
	case <-w.opened:
	default:
		close(w.opened)
	}
	close(w.events)
}
