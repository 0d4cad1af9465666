package demo

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"path/filepath"
	"strconv"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
)

// The functions of the demo.
var (
	Checksum = fn.Define[File, Sum]("checksum", fn.Options{})
	Index    = fn.Define[Entry, struct{}]("index", fn.Options{})
	Tick     = fn.Raw("tick", fn.Options{})
)

// File is the input of checksum.
type File struct {
	Root Path `json:"root"`
	Path Path `json:"path"` // relative to the root
}

// Slots of the executors. Index has as many as its service has places, yet is throttled now and then: the
// tour looks into the service, too (see watchIndex). A throttle closes the downstream for as long as the
// service asks, a second, so that more slots would spend the time with waiting.
const (
	checksumSlots = 64
	indexSlots    = indexAtOnce
	tickSlots     = 4
)

// startExecutors runs one executor for each function and returns when all of them have a session.
func (t *Tour) startExecutors(ctx context.Context) error {
	posts := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: indexSlots}}
	for _, e := range []struct {
		tenant string
		slots  int
		handle func(*executor.Executor)
	}{
		{acme, checksumSlots, func(x *executor.Executor) { executor.Handle(x, Checksum, t.checksum) }},
		{acme, indexSlots, func(x *executor.Executor) {
			executor.Handle(x, Index, func(ctx context.Context, e Entry) (struct{}, error) {
				err := postEntry(ctx, posts, t.index.url, e)
				if errors.Is(err, errTooMany) {
					t.throttled.Add(1)
				}
				return struct{}{}, err
			})
		}},
		{globex, tickSlots, func(x *executor.Executor) {
			executor.Handle(x, Tick, func(context.Context, []byte) ([]byte, error) { return nil, nil })
		}},
	} {
		x, err := executor.New(executor.Config{
			Addr: t.server.GRPC, Tenant: e.tenant, Slots: e.slots, DrainTimeout: 5 * time.Second,
			Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			return err
		}
		e.handle(x)
		ended := make(chan error, 1)
		go func() { ended <- x.Run(context.WithoutCancel(ctx)) }()
		t.stops = append(t.stops, func() { x.Shutdown(context.WithoutCancel(ctx)) })
		select {
		case <-x.Ready():
		case err := <-ended:
			return fmt.Errorf("run the executor of %s: %w", e.tenant, err)
		case <-t.server.Ended():
			return ErrServerGone
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// checksum reads a file and gives the result to index. Its task has an id that follows from the file, so
// that a second run of this handler makes no second one.
func (t *Tour) checksum(ctx context.Context, f File) (Sum, error) {
	sum, err := sumFile(ctx, filepath.Join(string(f.Root), string(f.Path)))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		if string(f.Root) == t.root {
			t.gaveUp.Add(1)
		}
		return sum, executor.NonRetryable(err)
	}
	if err != nil {
		return sum, err
	}
	if string(f.Root) != t.root {
		return sum, nil // submitted by hand: not one of the tour's files
	}
	id := fmt.Sprintf("%s-index-%x", t.id, sha256.Sum256([]byte(f.Path)))
	h, err := client.Submit(ctx, t.client, Index, Entry{f.Path, sum}, client.Options{ID: id})
	if err != nil {
		return sum, err
	}
	t.accepted(acme, h.ID)
	if !h.Deduplicated {
		t.checked.Add(1)
	}
	return sum, nil
}

// errTooMany is the service's 429.
var errTooMany = errors.New("the index says 429, too many requests")

// postEntry posts e to the index service and turns its "too much" into ours.
func postEntry(ctx context.Context, c *http.Client, url string, e Entry) error {
	body, err := json.Marshal(e)
	if err != nil {
		return executor.NonRetryable(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return executor.NonRetryable(err)
	}
	res, err := c.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
	switch {
	case res.StatusCode == http.StatusTooManyRequests:
		after, _ := strconv.Atoi(res.Header.Get("Retry-After"))
		return executor.Throttled(errTooMany, "index", time.Duration(after)*time.Second)
	case res.StatusCode/100 == 2:
		return nil
	case res.StatusCode/100 == 4:
		return executor.NonRetryable(fmt.Errorf("the index says %s: %s", res.Status, text))
	}
	return fmt.Errorf("the index says %s: %s", res.Status, text)
}
