// Package executor is the Go SDK for handlers, and the runtime that runs them. A program registers plain
// functions, calls Run, and Headrace pushes tasks to it:
//
//	x, err := executor.New(executor.Config{Addr: "localhost:7070"})
//	executor.Handle(x, Render, func(ctx context.Context, in Form) (Report, error) { … })
//	err = x.Run(ctx)
//
// example_test.go is the manual.
//
// # What a handler can rely on
//
// It may run more than once for a task (at least once), but each try has a Token that is larger than
// that of every try before: hand it to whatever must refuse the work of an older one. TaskKey is the same
// for all tries: hand it to whatever removes duplicates. Its outcome counts once, if its token is still
// the current one.
//
// What it returns decides what comes next:
//
//	nil                          success; the result is stored
//	NonRetryable(err)            dead letter at once
//	RetryAfter(err, d)           a failure; again in d
//	Throttled(err, name, d)      the downstream said "too much"; no attempt is spent, others are slowed down too
//	Snooze(d)                    not yet; no attempt is spent
//	any other error, or a panic  a failure; again after the function's back-off
//
// A gRPC status RESOURCE_EXHAUSTED counts as throttled, and its RetryInfo is honoured; HTTPError reads HTTP answers. The classes are
// found through wrapping (%w, errors.Join).
//
// Its context ends when the try shall stop; context.Cause says why: ErrCancelled, ErrTimeout, ErrStale,
// ErrOrphaned or ErrDrained. A handler that returns an error then is not blamed for it (of a timeout an
// attempt is spent); success stays success. One that does not return keeps its slot.
//
// # How it runs
//
// One goroutine owns the protocol (package engine), two a node read and write its stream, one follows
// the directory of nodes, and handlers run on a pool of goroutines. The connection comes back by itself,
// for ever; tries go on meanwhile, and outcomes are kept until the owner has them on disk. If no owner
// can be reached for four fifths of a function's orphan timeout, the try is cancelled: somebody else may
// run the task soon after. With Config.Reserve there is all of this for each part of the slots.
//
// Everything is bounded: tries at once by Config.Slots, results waiting for confirmation by 64 MiB, log
// lines by 64 KiB an attempt and 8 MiB in all; the last two of each part.
package executor
