package api

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/dispatcher/door"
	"github.com/headrace/headrace/dispatcher/loop"
	"github.com/headrace/headrace/internal/grpcx"
	"github.com/headrace/headrace/internal/telemetry"
	"github.com/headrace/headrace/shard/limits"
	"github.com/headrace/headrace/shard/pause"
	"github.com/headrace/headrace/shard/placement"
	"github.com/headrace/headrace/shard/tenants"
	"github.com/headrace/headrace/shard/truth"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// Errors of the door itself.
var (
	errDraining     = errors.New("this node is going away")
	errTooManyWaits = errors.New("the tenant has too many open waits")
	errBusy         = errors.New("too many bytes of submits are under way on this node")
	errStaleToken   = errors.New("the token is not that of the running try")
	errWatchEnded   = errors.New("the partition changes its owner")
	errCutOff       = errors.New("this node is cut off from the registry: another may know more")
	errElsewhere    = errors.New("the partitions of this request are away, others of the tenant are not")
	errNoPartition  = errors.New("the tenant has no partition yet: the node starts up")
)

// border maps an error of ours to what the caller is told. False: it has no mapping.
func border(err error) (grpcx.Info, bool) {
	var field *task.FieldError
	var exists *core.ExistsError
	var refusal *door.Refusal
	var missing *missingError
	switch {
	case errors.As(err, &refusal):
		return grpcx.Info{Code: codes.ResourceExhausted, Reason: refusal.Reason, Message: refusal.Error(), RetryAfter: refusal.RetryAfter,
			Metadata: map[string]string{grpcx.MetaTenant: refusal.Tenant, grpcx.MetaLevel: refusal.Level.String(), grpcx.MetaLimit: refusal.Limit}}, true
	case errors.As(err, &missing):
		info := grpcx.Info{Code: codes.Unavailable, Reason: "database_unavailable", Message: missing.Error(), RetryAfter: time.Second,
			Metadata: map[string]string{grpcx.MetaDatabase: missing.database}}
		if missing.submit {
			info.Metadata[grpcx.MetaStored] = grpcx.StoredNo
		}
		return info, true
	case errors.As(err, &field):
		return grpcx.Info{Code: codes.InvalidArgument, Reason: "invalid_argument", Message: field.Error(),
			Metadata: map[string]string{grpcx.MetaField: field.Field, grpcx.MetaWant: field.Want}}, true
	case errors.As(err, &exists):
		return grpcx.Info{Code: codes.AlreadyExists, Reason: "client_id_taken",
			Message:  "the client id belongs to a task with another function or payload",
			Metadata: map[string]string{grpcx.MetaExistingID: exists.ID.String()}}, true
	case errors.Is(err, store.ErrNotFound):
		return grpcx.Info{Code: codes.NotFound, Reason: "task_not_found", Message: "the tenant has no such task"}, true
	case errors.Is(err, store.ErrFull):
		return grpcx.Info{Code: codes.ResourceExhausted, Reason: "disk_full",
			Message: "the disk is full; nothing was stored", RetryAfter: 5 * time.Second}, true
	case errors.Is(err, store.ErrUnavailable):
		return grpcx.Info{Code: codes.Unavailable, Reason: "database_unavailable",
			Message: "the database is not available; nothing was done", RetryAfter: time.Second}, true
	case errors.Is(err, errTooManyWaits):
		return grpcx.Info{Code: codes.ResourceExhausted, Reason: "too_many_waits", Message: err.Error(), RetryAfter: time.Second}, true
	case errors.Is(err, errBusy):
		return grpcx.Info{Code: codes.ResourceExhausted, Reason: "node_busy", Message: err.Error(), RetryAfter: 200 * time.Millisecond}, true
	case errors.Is(err, errStaleToken):
		return grpcx.Info{Code: codes.FailedPrecondition, Reason: "stale_token", Message: err.Error()}, true
	case errors.Is(err, core.ErrNotOwner), errors.Is(err, errWatchEnded), errors.Is(err, errNoPartition):
		return grpcx.Info{Code: codes.Unavailable, Reason: "not_owner",
			Message: "the partition has no owner here now; nothing was stored", RetryAfter: 200 * time.Millisecond, Metadata: nothing()}, true
	case errors.Is(err, errElsewhere):
		return grpcx.Info{Code: codes.Unavailable, Reason: "candidates_away",
			Message:    "the partitions that this request id may go to are away; nothing was stored: another id goes to others",
			RetryAfter: 20 * time.Millisecond, Metadata: nothing()}, true
	case errors.Is(err, placement.ErrPending):
		return grpcx.Info{Code: codes.Unavailable, Reason: "placement_pending",
			Message: "where the tenant's client ids are kept is not settled yet, which happens once; nothing was stored", RetryAfter: 200 * time.Millisecond, Metadata: nothing()}, true
	case errors.Is(err, tenants.ErrTooMany):
		return grpcx.Info{Code: codes.ResourceExhausted, Reason: "too_many_tenants", Message: err.Error()}, true
	case errors.Is(err, pause.ErrTooMany):
		return grpcx.Info{Code: codes.ResourceExhausted, Reason: "too_many_pauses", Message: err.Error()}, true
	case errors.Is(err, core.ErrStoreSlow):
		return grpcx.Info{Code: codes.Unavailable, Reason: "store_slow",
			Message: "the database does not keep up; nothing was stored", RetryAfter: time.Second, Metadata: nothing()}, true
	case errors.Is(err, core.ErrUnknownOutcome), errors.Is(err, loop.ErrStopped):
		return grpcx.Info{Code: codes.Unavailable, Reason: "outcome_unknown",
			Message: "nobody knows whether it was stored: send the same request again, marked as a retry", RetryAfter: 200 * time.Millisecond}, true
	case errors.Is(err, truth.ErrHeld):
		return grpcx.Info{Code: codes.Unavailable, Reason: "registry_behind", Message: truth.ErrHeld.Error(), RetryAfter: 5 * time.Second}, true
	case errors.Is(err, pause.ErrRegistry), errors.Is(err, limits.ErrRegistry), errors.Is(err, tenants.ErrRegistry):
		return grpcx.Info{Code: codes.Unavailable, Reason: "registry_unavailable",
			Message: "the registry does not answer; nobody knows whether it was done: try again", RetryAfter: time.Second}, true
	case errors.Is(err, truth.ErrAgreed):
		return grpcx.Info{Code: codes.FailedPrecondition, Reason: "nothing_to_accept", Message: err.Error()}, true
	case errors.Is(err, truth.ErrNoCopies):
		return grpcx.Info{Code: codes.FailedPrecondition, Reason: "no_copies", Message: truth.ErrNoCopies.Error()}, true
	case errors.Is(err, errPoolsUnknown):
		return grpcx.Info{Code: codes.Unavailable, Reason: "pools_unknown", Message: err.Error(), RetryAfter: time.Second}, true
	case errors.Is(err, errCutOff):
		return grpcx.Info{Code: codes.Unavailable, Reason: "cut_off", Message: err.Error()}, true
	case errors.Is(err, errDraining):
		return grpcx.Info{Code: codes.Unavailable, Reason: "draining", Message: err.Error(), RetryAfter: 100 * time.Millisecond, Metadata: nothing()}, true
	case errors.Is(err, context.DeadlineExceeded):
		return grpcx.Info{Code: codes.DeadlineExceeded, Reason: "deadline_exceeded", Message: "the call's deadline passed"}, true
	case errors.Is(err, context.Canceled):
		return grpcx.Info{Code: codes.Canceled, Reason: "cancelled", Message: "the call was cancelled"}, true
	}
	return grpcx.Info{}, false
}

// nothing says that the refused call stored nothing.
func nothing() map[string]string { return map[string]string{grpcx.MetaStored: grpcx.StoredNo} }

// status returns what the caller is told: a status is passed on, what has no mapping is logged once, here,
// and told as an id only.
func (s *Services) info(what string, err error) grpcx.Info {
	if info, ok := border(err); ok {
		return info
	}
	id := hex.EncodeToString([]byte(randomID()[:8]))
	s.log.Error("internal error", zap.String("call", what), zap.String("error_id", id), telemetry.Err(err))
	return grpcx.Info{Code: codes.Internal, Reason: "internal",
		Message:  "internal error " + id + ": the server's log has more",
		Metadata: map[string]string{grpcx.MetaErrorID: id}}
}

func (s *Services) toStatus(what string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return s.info(what, err).Err()
}

// recovered turns a panic of a handler into an error: it costs the call, not the node.
func (s *Services) recovered(what string, r any) error {
	s.log.Error("a call panicked", zap.String("call", what), zap.String("panic", telemetry.Escape(fmt.Sprint(r))), zap.ByteString("stack", debug.Stack()))
	return fmt.Errorf("panic in %s", what)
}

// Interceptors returns the border as server options: every service of the node goes through it.
func (s *Services) Interceptors() []grpc.ServerOption {
	unary := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (res any, err error) {
		defer func() {
			if r := recover(); r != nil {
				err = s.recovered(info.FullMethod, r)
			}
			if err = s.toStatus(info.FullMethod, err); err != nil {
				res = nil
			}
		}()
		return handler(ctx, req)
	}
	stream := func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
		defer func() {
			if r := recover(); r != nil {
				err = s.recovered(info.FullMethod, r)
			}
			err = s.toStatus(info.FullMethod, err)
		}()
		return handler(srv, ss)
	}
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(unary), grpc.ChainStreamInterceptor(stream)}
}
