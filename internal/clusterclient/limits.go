package clusterclient

import (
	"context"
	"fmt"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

func (c *Client) limits() headracev1.LimitServiceClient {
	return headracev1.NewLimitServiceClient(c.conn)
}

// Limits calls f with each adaptive limit of a tenant ("": of all), by tenant and downstream ("": any), until one of its
// calls fails. It returns the nodes that did not answer.
func (c *Client) Limits(ctx context.Context, tenant, downstream string, f func(*headracev1.Limit) error) (missing []string, err error) {
	for token := ""; ; {
		res, err := c.limits().ListLimits(ctx, &headracev1.ListLimitsRequest{Tenant: tenant, Downstream: downstream, PageToken: token})
		if err != nil {
			return nil, fmt.Errorf("list limits: %w", readable(err))
		}
		missing = res.MissingNodes
		for _, l := range res.Limits {
			if err := f(l); err != nil {
				return nil, err
			}
		}
		if token = res.NextPageToken; token == "" {
			return missing, nil
		}
	}
}

// SetLimit bounds a limit.
func (c *Client) SetLimit(ctx context.Context, req *headracev1.SetLimitRequest) (*headracev1.LimitOverride, error) {
	res, err := c.limits().SetLimit(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("set limit %s/%s: %w", req.Tenant, req.Downstream, readable(err))
	}
	return res.Override, nil
}

// Bounds calls f with each limit that a user has set for a tenant ("": for all) or its functions, in this order, until one
// of its calls fails. It returns the nodes that did not answer.
func (c *Client) Bounds(ctx context.Context, tenant string, f func(*headracev1.Bound) error) (missing []string, err error) {
	for token := ""; ; {
		res, err := c.limits().ListBounds(ctx, &headracev1.ListBoundsRequest{Tenant: tenant, PageToken: token})
		if err != nil {
			return nil, fmt.Errorf("list limits of tasks: %w", readable(err))
		}
		missing = res.MissingNodes
		for _, b := range res.Bounds {
			if err := f(b); err != nil {
				return nil, err
			}
		}
		if token = res.NextPageToken; token == "" {
			return missing, nil
		}
	}
}

// SetBound limits a tenant or one of its functions.
func (c *Client) SetBound(ctx context.Context, req *headracev1.SetBoundRequest) (*headracev1.Bound, error) {
	res, err := c.limits().SetBound(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("set limit of %s: %w", req.Tenant, readable(err))
	}
	return res.Bound, nil
}

// RemoveBound takes such a limit away and returns it; nil: there was none.
func (c *Client) RemoveBound(ctx context.Context, tenant, function string) (*headracev1.Bound, error) {
	res, err := c.limits().RemoveBound(ctx, &headracev1.RemoveBoundRequest{Tenant: tenant, Function: function})
	if err != nil {
		return nil, fmt.Errorf("reset limit of %s: %w", tenant, readable(err))
	}
	return res.Removed, nil
}

// ResetLimit takes what was set away and lets a limit begin anew.
func (c *Client) ResetLimit(ctx context.Context, tenant, downstream string) (*headracev1.ResetLimitResponse, error) {
	res, err := c.limits().ResetLimit(ctx, &headracev1.ResetLimitRequest{Tenant: tenant, Downstream: downstream})
	if err != nil {
		return nil, fmt.Errorf("reset limit %s/%s: %w", tenant, downstream, readable(err))
	}
	return res, nil
}
