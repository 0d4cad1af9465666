package executor

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

const (
	fetchTries   = 4
	fetchTimeout = 10 * time.Second // of one call
)

// fetch gets a payload that was too large for its push from the node that pushed it. If that fails, the
// try is given back and nothing is counted: its handler has not been called.
func (c *call) fetch() error {
	var err error
	for n := range fetchTries {
		if n > 0 && !pause(c, n) {
			break
		}
		var r *headracev1.FetchPayloadResponse
		ctx, cancel := context.WithTimeout(c, fetchTimeout)
		r, err = c.node.client.FetchPayload(ctx, &headracev1.FetchPayloadRequest{Tenant: c.Tenant, TaskId: c.ID[:], Token: c.try.Push.Token})
		cancel()
		if err == nil {
			if len(r.Payload) != int(c.try.Push.PayloadSize) {
				return fmt.Errorf("fetch the payload: %d bytes came instead of %d", len(r.Payload), c.try.Push.PayloadSize)
			}
			c.Payload = r.Payload
			return nil
		}
		switch status.Code(err) {
		case codes.NotFound, codes.FailedPrecondition, codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument:
			return fmt.Errorf("fetch the payload: %w", err)
		}
	}
	return fmt.Errorf("fetch the payload: %w", err)
}
