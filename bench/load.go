package main

import (
	"context"
	"sync"
	"time"
)

const payloadBytes = 200

// together has callers do something again and again for a while, or until one fails.
func together(callers int, for_ time.Duration, do func() error) error {
	end := time.Now().Add(for_)
	errs := make([]error, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for errs[i] == nil && time.Now().Before(end) {
				errs[i] = do()
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// atRate does something at fixed intervals for a while, whether or not it has returned from the times before.
func atRate(ctx context.Context, perSecond int, for_ time.Duration, do func() error) error {
	n := int(for_.Seconds() * float64(perSecond))
	errs := make([]error, n)
	var wg sync.WaitGroup
	begin := time.Now()
	for i := range n {
		time.Sleep(time.Until(begin.Add(time.Duration(i) * time.Second / time.Duration(perSecond))))
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() { errs[i] = do() })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// peerMeasure returns the figures of a peer's run of n tasks; inserted is when the last one was, bytes what its store
// has logged.
func peerMeasure(n int64, before, after usage, inserted time.Time, bytes int64) *measure {
	each := float64(max(n, 1))
	span := after.at.Sub(before.at).Seconds()
	used := after.self - before.self + after.all - before.all
	return &measure{
		Tasks: n, Seconds: span, TasksPerS: each / span, SubmitPerS: each / inserted.Sub(before.at).Seconds(),
		CPUMicros: float64(used.Microseconds()) / each, WALBytes: float64(bytes) / each, Foreign: after.foreign(before),
		dbMicro: float64((after.all - before.all).Microseconds()) / each,
	}
}
