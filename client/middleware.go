package client

import "context"

// A SubmitFunc stores tasks and returns their outcomes, one for each, in order. A single Submit comes as
// one task; what it returned then is its outcome's Err, or the error of the whole.
type SubmitFunc func(ctx context.Context, tasks []Task) ([]Outcome, error)

// Middleware wraps the submitting of tasks: it may look at them, change them (they are a copy of the
// caller's, except for payloads and maps), pass another context on, time or refuse them. Of Config's
// middleware A, B, C a submit enters A, B, C and leaves C, B, A.
type Middleware func(next SubmitFunc) SubmitFunc
