package clusterclient

import (
	"context"
	"fmt"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

// Status returns whether the registry and the databases agree on the configuration.
func (c *Client) Status(ctx context.Context) (*headracev1.GetClusterStatusResponse, error) {
	res, err := c.api.GetClusterStatus(ctx, &headracev1.GetClusterStatusRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask for the cluster's status: %w", readable(err))
	}
	return res, nil
}

// AcceptRestore says which of the two is true, and returns the configuration's version from now on.
func (c *Client) AcceptRestore(ctx context.Context, source headracev1.RestoreSource) (uint64, error) {
	res, err := c.api.AcceptRestore(ctx, &headracev1.AcceptRestoreRequest{Source: source})
	if err != nil {
		return 0, fmt.Errorf("accept the restore: %w", readable(err))
	}
	return res.RegistryVersion, nil
}
