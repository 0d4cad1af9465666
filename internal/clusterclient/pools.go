package clusterclient

import (
	"context"
	"fmt"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

// Pools calls f with each executor pool that req asks for, by tenant and name, until one of its calls fails. It returns
// the nodes that have told nothing lately.
func (c *Client) Pools(ctx context.Context, req *headracev1.ListPoolsRequest, f func(*headracev1.Pool) error) (missing []string, err error) {
	pools := headracev1.NewPoolServiceClient(c.conn)
	for {
		res, err := pools.ListPools(ctx, req)
		if err != nil {
			return nil, fmt.Errorf("list pools: %w", readable(err))
		}
		missing = res.MissingNodes
		for _, p := range res.Pools {
			if err := f(p); err != nil {
				return nil, err
			}
		}
		if req.PageToken = res.NextPageToken; req.PageToken == "" {
			return missing, nil
		}
	}
}
