package limits

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"
)

// How often what is done.
const (
	resync   = time.Minute     // everything is listed again
	callMax  = 5 * time.Second // one exchange with the registry
	pauseMin = 50 * time.Millisecond
)

// Run follows the registry until ctx ends; it returns its cause. Call it once.
func (r *Registry[T]) Run(ctx context.Context) error {
	pause := func(d time.Duration) {
		select {
		case <-time.After(d/2 + rand.N(d/2)):
		case <-ctx.Done():
		}
	}
	for wait := pauseMin; ctx.Err() == nil; {
		revision, err := r.list(ctx)
		if err != nil {
			if ctx.Err() == nil {
				r.log.Warn(r.kind.what+" can't be read: those that are known hold", zap.Error(err))
			}
			pause(wait)
			wait = min(2*wait, callMax)
			continue
		}
		wait = pauseMin
		wctx, cancel := context.WithTimeout(ctx, resync)
		began := time.Now()
		for changes := range r.cfg.KV.Watch(wctx, r.cfg.Prefix, revision) {
			for _, ch := range changes {
				if tenant, ok := r.tenantOf(ch.Key); ok {
					r.take(tenant, ch.Value, ch.Revision)
				}
			}
		}
		early := wctx.Err() == nil && time.Since(began) < pauseMin
		cancel()
		if early { // a watch that ends at once must not become a busy loop
			pause(wait)
		}
	}
	return context.Cause(ctx)
}

func (r *Registry[T]) list(ctx context.Context) (int64, error) {
	call, cancel := context.WithTimeout(ctx, callMax)
	defer cancel()
	items, revision, err := r.cfg.KV.List(call, r.cfg.Prefix)
	if err != nil {
		return 0, fmt.Errorf("read the %s: %w (%w)", r.kind.what, ErrRegistry, err)
	}
	first, restored := r.listed == 0, revision < r.listed
	r.listed = max(revision, 1)
	r.takeAll(items, revision, restored)
	if first {
		close(r.loaded)
	}
	return revision, nil
}
