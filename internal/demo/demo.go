package demo

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/devserver"
)

// Config says what the tour goes through.
type Config struct {
	Dir  string // whose files; required
	Data string // directory for the server's data, kept; empty: a temporary one, removed at the end
	Exe  string // the headrace program; empty: this process's own
}

const (
	acme   = "acme"
	globex = "globex"

	globexEvery    = 20 * time.Millisecond
	indexLookEvery = time.Second
	stallTimeout   = time.Minute // without any progress the tour is over, and something was lost
)

// A Tour is a demo under way.
type Tour struct {
	cfg        Config
	id         string // new for each tour: kept data may hold the tasks of earlier ones
	files      []Path
	unreadable int
	root       string // absolute
	tempData   string // to be removed; empty: none
	server     *devserver.Server
	index      *indexService
	client     *client.Client // of acme
	globex     *client.Client
	stops      []func() // of executors

	checked   atomic.Int64 // files whose sum was handed on
	gaveUp    atomic.Int64 // files that can't be read any more
	throttled atomic.Int64 // posts that the index refused for now

	mu        sync.Mutex                 // guards following
	submitted map[string]map[string]bool // by tenant: ids that were answered OK
	errs      []error                    // of submits
}

// Start looks for the files and starts a server, the index service, and the executors. Stop it in any case
// that has no error.
func Start(ctx context.Context, cfg Config) (*Tour, error) {
	id := make([]byte, 4)
	rand.Read(id)
	t := &Tour{cfg: cfg, id: hex.EncodeToString(id), submitted: map[string]map[string]bool{acme: {}, globex: {}}}
	if err := t.start(ctx); err != nil {
		t.Stop()
		return nil, err
	}
	return t, nil
}

func (t *Tour) start(ctx context.Context) (err error) {
	if t.root, err = filepath.Abs(t.cfg.Dir); err != nil {
		return err
	}
	if t.files, t.unreadable, err = listFiles(t.root, t.cfg.Data); err != nil {
		return fmt.Errorf("look for files: %w", err)
	}
	data := t.cfg.Data
	if data == "" {
		if t.tempData, err = os.MkdirTemp("", "headrace-demo-"); err != nil {
			return err
		}
		data = t.tempData
	}
	if t.server, err = devserver.Start(ctx, devserver.Config{Exe: t.cfg.Exe, Data: data}); err != nil {
		return err
	}
	if t.index, err = startIndex(); err != nil {
		return err
	}
	if t.client, err = client.Dial(client.Config{Addr: t.server.GRPC, Tenant: acme}); err != nil {
		return err
	}
	if t.globex, err = client.Dial(client.Config{Addr: t.server.GRPC, Tenant: globex}); err != nil {
		return err
	}
	return t.startExecutors(ctx)
}

// Stop ends everything that was started, in order: executors drain, the server writes what it has.
func (t *Tour) Stop() error {
	var wg sync.WaitGroup
	for _, stop := range t.stops {
		wg.Go(stop)
	}
	wg.Wait()
	for _, c := range []*client.Client{t.client, t.globex} {
		if c != nil {
			c.Close()
		}
	}
	if t.index != nil {
		t.index.stop()
	}
	var err error
	if t.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		err = t.server.Stop(ctx)
	}
	if t.tempData != "" {
		err = errors.Join(err, os.RemoveAll(t.tempData))
	}
	return err
}

// Addr returns where the server listens; Files how many files there are.
func (t *Tour) Addr() string { return t.server.GRPC }

// HTTP returns the server's HTTP address.
func (t *Tour) HTTP() string { return t.server.HTTP }

// Root returns the directory, absolute.
func (t *Tour) Root() string { return t.root }

// Files returns how many files there are, and how many more could not be read.
func (t *Tour) Files() (files, unreadable int) { return len(t.files), t.unreadable }

// Progress returns how many steps of how many are done: a file has two, checksum and index.
func (t *Tour) Progress() (done, total, throttled int64) {
	return t.checked.Load() + int64(t.index.count()) + 2*t.gaveUp.Load(), 2 * int64(len(t.files)), t.throttled.Load()
}

// ErrServerGone says that the server ended amid the tour.
var ErrServerGone = errors.New("the server has ended")

// Run submits everything and returns the report once all of it has finished, or nothing moves any more.
func (t *Tour) Run(ctx context.Context) (*Report, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-t.server.Ended():
			cancel(ErrServerGone)
		case <-ctx.Done():
		}
	}()
	begin := time.Now()
	ticking, stopTicking := context.WithCancel(ctx)
	defer stopTicking()
	var ticks sync.WaitGroup
	ticks.Go(func() { t.tick(ctx, ticking.Done()) })
	ticks.Go(func() { t.watchIndex(ticking) })
	err := t.submitFiles(ctx)
	if err == nil {
		err = t.untilIndexed(ctx)
	}
	stopTicking()
	ticks.Wait()
	if err != nil {
		return nil, err
	}
	tasks, err := t.untilFinished(ctx)
	if err != nil {
		return nil, err
	}
	return t.report(tasks, time.Since(begin)), nil
}

// submitFiles submits a checksum task for every file.
func (t *Tour) submitFiles(ctx context.Context) error {
	const atOnce = 1000
	for rest := t.files; len(rest) > 0; {
		n := min(atOnce, len(rest))
		tasks := make([]client.Task, n)
		for i, p := range rest[:n] {
			var err error
			if tasks[i], err = client.NewTask(Checksum, File{Path(t.root), p}, client.Options{}); err != nil {
				return err
			}
		}
		out, err := t.client.SubmitBatch(ctx, tasks)
		if err != nil {
			return err
		}
		for _, o := range out {
			if o.Err != nil {
				return o.Err
			}
			t.accepted(acme, o.ID)
		}
		rest = rest[n:]
	}
	return nil
}

func (t *Tour) accepted(tenant, id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.submitted[tenant][id] = true
}

// tick submits a small task of globex every 20 ms until stop is closed, and returns when all are answered.
func (t *Tour) tick(ctx context.Context, stop <-chan struct{}) {
	var wg sync.WaitGroup
	defer wg.Wait()
	ticker := time.NewTicker(globexEvery)
	defer ticker.Stop()
	for {
		wg.Go(func() {
			h, err := client.Submit(ctx, t.globex, Tick, nil, client.Options{})
			if err == nil {
				t.accepted(globex, h.ID)
			} else if ctx.Err() == nil {
				t.mu.Lock()
				t.errs = append(t.errs, err)
				t.mu.Unlock()
			}
		})
		select {
		case <-ticker.C:
		case <-stop:
			return
		}
	}
}

// watchIndex asks the index service once a second how far it is, as a page for people would: the
// service has other users than our tasks.
func (t *Tour) watchIndex(ctx context.Context) {
	ticker := time.NewTicker(indexLookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.index.url, nil)
		if err != nil {
			return
		}
		if res, err := http.DefaultClient.Do(req); err == nil {
			io.Copy(io.Discard, res.Body) // a 429 is as good: the next look comes by itself
			res.Body.Close()
		}
	}
}

// untilIndexed returns when the index has every file, but those that are gone, or nothing moves any more.
func (t *Tour) untilIndexed(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	last, moved := int64(-1), time.Now()
	for {
		done, total, _ := t.Progress()
		if done != last {
			last, moved = done, time.Now()
		}
		if done == total || time.Since(moved) > stallTimeout {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
