package executor

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/headrace/headrace/fn"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// Task is what a handler gets to know of one try of a task. It must not be changed.
type Task struct {
	ID       task.ID
	Token    task.Token // larger than that of every earlier try of this task
	Tenant   string
	Function string
	Attempt  int    // spent attempts + 1
	ClientID string // the submitter's own id; "" if it gave none

	Payload     []byte
	ContentType string
	Labels      map[string]string
	Checkpoint  []byte // what the last try that made one left behind; nil: nothing

	TraceParent string // W3C trace context of the submit
	TraceState  string
}

// Result is what a handler returns on success. The zero value is an empty result.
type Result struct {
	Body        []byte // at most Config.ResultBytes
	ContentType string // at most 255 bytes
}

// Handler runs one try. It must be safe for use by many goroutines.
type Handler func(ctx context.Context, t *Task) (Result, error)

// Middleware returns a handler that does something around next. It may call next once or not at all.
// A panic of next arrives as its error, a *PanicError: every layer that was entered is also left.
type Middleware func(next Handler) Handler

type functionName struct{ tenant, name string }

// registration is one function with its handler. It does not change.
type registration struct {
	functionName
	policy task.Policy
	handle Handler // with all middleware around it
}

// Handle registers the handler of a function for Config.Tenant. Input that can't be decoded is a failure
// that is not retried, "decode error", as is a result that can't be encoded. What is wrong with the function is reported by Run.
func Handle[In, Out any](x *Executor, f fn.Function[In, Out], h func(context.Context, In) (Out, error)) {
	HandleTenant(x, x.cfg.Tenant, f, h)
}

// HandleTenant is Handle for another tenant than Config.Tenant.
func HandleTenant[In, Out any](x *Executor, tenant string, f fn.Function[In, Out], h func(context.Context, In) (Out, error)) {
	if err := f.Validate(); err != nil {
		x.refuse(err)
		return
	}
	x.HandleRawTenant(tenant, f.Name(), f.Policy(), func(ctx context.Context, t *Task) (Result, error) {
		in, err := f.DecodeInput(t.Payload)
		if err != nil {
			return Result{}, NonRetryable(fmt.Errorf("decode error: %w", err))
		}
		out, err := h(ctx, in)
		if err != nil {
			return Result{}, err
		}
		body, contentType, err := f.EncodeOutput(out)
		if err != nil {
			return Result{}, NonRetryable(err)
		}
		return Result{body, contentType}, nil
	})
}

// HandleRaw registers a handler that takes and returns bytes, for Config.Tenant. What is wrong with the
// name or policy is reported by Run.
func (x *Executor) HandleRaw(name string, policy fn.Options, h Handler) {
	x.HandleRawTenant(x.cfg.Tenant, name, policy, h)
}

// HandleRawTenant is HandleRaw for another tenant than Config.Tenant.
func (x *Executor) HandleRawTenant(tenant, name string, policy fn.Options, h Handler) {
	k := functionName{tenant, name}
	err := errors.Join(task.Name("tenant", tenant), task.Name("function", name), policy.Validate())
	if err == nil && h == nil {
		err = errors.New("the handler is nil")
	}
	if err != nil {
		x.refuse(fmt.Errorf("function %s of tenant %s: %w", task.Shorten(name), task.Shorten(tenant), err))
		return
	}
	h = guard(h)
	for i := len(x.cfg.Middleware) - 1; i >= 0; i-- {
		h = guard(x.cfg.Middleware[i](h))
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.ran:
		x.cfg.Logger.Error("function registered after Run is ignored", "tenant", tenant, "function", name)
	case x.byName[k]:
		x.errs = append(x.errs, fmt.Errorf("executor: function %s of tenant %s is registered twice", name, tenant))
	default:
		x.byName[k] = true
		x.functions = append(x.functions, &registration{k, policy, h})
	}
}

func (x *Executor) refuse(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.errs = append(x.errs, fmt.Errorf("executor: %w", err))
}

// declaration is the function as nodes are told of it.
func (r *registration) declaration() *headracev1.FunctionDeclaration {
	d := &headracev1.FunctionDeclaration{
		Tenant: r.tenant, Name: r.name, Version: r.policy.Version,
		MaxAttempts: uint32(r.policy.MaxAttempts), BackoffFactor: r.policy.Backoff.Factor,
		Exclusive: r.policy.Exclusive, Downstream: r.policy.Downstream,
		Cost: uint32(r.policy.Cost), Requires: r.policy.Requires, Prefers: r.policy.Prefers,
	}
	if v := r.policy.Timeout; v != 0 {
		d.Timeout = durationpb.New(v)
	}
	if v := r.policy.Backoff.Base; v != 0 {
		d.BackoffBase = durationpb.New(v)
	}
	if v := r.policy.Backoff.Max; v != 0 {
		d.BackoffMax = durationpb.New(v)
	}
	if v := r.policy.OrphanTimeout; v != 0 {
		d.OrphanTimeout = durationpb.New(v)
	}
	if v := r.policy.CancelGrace; v != 0 {
		d.CancelGrace = durationpb.New(v)
	}
	return d
}
