package client

import (
	"context"

	"github.com/headrace/headrace/task"
)

type traceKey struct{}

type traceContext struct{ parent, state string }

// WithTraceParent returns a context under which submitted tasks carry this W3C trace context: their
// first attempt continues the trace, later ones link to it. Baggage is never taken along.
func WithTraceParent(ctx context.Context, traceParent, traceState string) context.Context {
	return context.WithValue(ctx, traceKey{}, traceContext{traceParent, traceState})
}

// TraceParent returns what WithTraceParent put into ctx.
func TraceParent(ctx context.Context) (traceParent, traceState string) {
	tc, _ := ctx.Value(traceKey{}).(traceContext)
	return tc.parent, tc.state
}

// wellFormed returns the trace context if it is one, and nothing otherwise: a broken header must not
// fail a submit, and a state without parent means nothing.
func wellFormed(parent, state string) (string, string) {
	if len(parent) != 55 || parent[2] != '-' || parent[35] != '-' || parent[52] != '-' || parent[:2] == "ff" {
		return "", ""
	}
	for i := range len(parent) {
		c := parent[i]
		hex := c >= '0' && c <= '9' || c >= 'a' && c <= 'f'
		if !hex && i != 2 && i != 35 && i != 52 {
			return "", ""
		}
	}
	if len(state) > task.MaxTraceState {
		return parent, ""
	}
	for i := range len(state) {
		if state[i] < ' ' || state[i] > '~' {
			return parent, ""
		}
	}
	return parent, state
}
