package client

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/connectivity"
)

// Pauses between calls that got no answer.
const (
	retryBase = 50 * time.Millisecond
	retryMax  = 5 * time.Second
)

// backoff returns the pause after the n-th failed call in a row, n from 1: 50 ms·2^(n-1), at most 5 s,
// less up to a half by jitter.
func backoff(n int) time.Duration {
	d := retryMax
	if n < 8 {
		d = min(retryBase<<(max(n, 1)-1), retryMax)
	}
	return d/2 + rand.N(d/2)
}

// pause waits for d or until ctx ends, whose error it returns then.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ended(ctx)
	}
}

// usable waits while the connection is being made, and returns ctx's error if that ends first. It lets
// calls go to a connection that is ready, and to one that just failed: they fail at once, unsent, and
// learn why. Hence a call that is under way was sent, or is so within moments.
func (c *Client) usable(ctx context.Context) error {
	for ctx.Err() == nil {
		cc := c.conn.current()
		s := cc.GetState()
		switch s {
		case connectivity.Idle:
			cc.Connect()
		case connectivity.Connecting:
		default:
			return nil
		}
		cc.WaitForStateChange(ctx, s)
	}
	return ended(ctx)
}

// offline pauses after the n-th call in a row that could not be sent, until the connection's state
// changes or it is time to look for the cause anew.
func (c *Client) offline(ctx context.Context, n int) {
	ctx, cancel := context.WithTimeout(ctx, backoff(n))
	defer cancel()
	cc := c.conn.current()
	cc.WaitForStateChange(ctx, cc.GetState())
}

// noteFailure logs what degrades the client: not calls that we ended ourselves.
func (c *Client) noteFailure(ctx context.Context, v verdict, err error) {
	switch v {
	case ambiguous, again:
		if heldBack(err) != nil {
			c.log.warn("most calls have no answer, few are made", zap.Error(err))
			return
		}
		if ctx.Err() == context.Canceled {
			return
		}
		c.log.warn("no answer to a call, it is repeated", zap.Error(err))
	case later:
		c.log.warn("submits are refused for now, they wait", zap.Error(err))
	}
}

// rateLogger writes each message at most once in ten seconds.
type rateLogger struct {
	log  *zap.Logger
	mu   sync.Mutex           // guards following
	next map[string]time.Time // by message; a handful of constants
}

func (r *rateLogger) warn(msg string, fields ...zap.Field) {
	r.mu.Lock()
	now := time.Now()
	due := !now.Before(r.next[msg])
	if due {
		if r.next == nil {
			r.next = map[string]time.Time{}
		}
		r.next[msg] = now.Add(10 * time.Second)
	}
	r.mu.Unlock()
	if due {
		r.log.Warn(msg, fields...)
	}
}
