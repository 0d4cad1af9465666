// Package client submits tasks and tells what became of them.
//
//	c, err := client.Dial(client.Config{Tenant: "forms"})
//	h, err := client.Submit(ctx, c, Render, Form{ID: 7}, client.Options{ID: "form-7"})
//	report, err := h.Wait(ctx)
//
// Submit takes one task and returns when that task is on disk. Callers need not gather tasks
// themselves: while a few calls are under way, what arrives waits and then goes together, so that 256
// callers share a call and one caller alone waits for nobody. SubmitBatch is for who has many at once.
//
// # What an error means
//
// A submit ends in one of three ways, and says in which.
//
//	nil                  the task is stored, once, whatever was lost and sent again on the way
//	a refusal            it is not stored: *Error, *DuplicateError, *BackpressureError, *task.FieldError
//	no answer in time    the context or the client ended first: errors.Is(err, ErrNotSent) if the task
//	                     certainly never left, errors.Is(err, ErrOutcomeUnknown) if it may be stored
//
// After ErrOutcomeUnknown submit again with the same Options.ID: that never makes a second task.
//
// Calls whose answer got lost are sent again, under the same request id, with jittered pauses of 50 ms to
// 5 s, until the context ends: give contexts a deadline. So are submits that the server refuses for now
// (backpressure), exactly after the pause that it asks for. A refusal for good is returned at once,
// after one call. The connection comes back by itself; with several addresses in Config.Addr, to the next node at
// once. A network that drops everything and says nothing is noticed within 3 s while a call is under way, within
// 10 s while there are only waits: a health check is sent beside them, and without an answer the connection is left.
// While most calls of the last two minutes had no answer, few are made: one a second at least (HeldBackError).
//
// Goroutines: a Client has at most Config.MaxInFlight senders and one that looks after the connection, none while nothing waits; SubmitBatch
// and the rest run in their caller's. All end with Close.
package client
