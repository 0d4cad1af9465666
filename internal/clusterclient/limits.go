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

// ResetLimit takes what was set away and lets a limit begin anew.
func (c *Client) ResetLimit(ctx context.Context, tenant, downstream string) (*headracev1.ResetLimitResponse, error) {
	res, err := c.limits().ResetLimit(ctx, &headracev1.ResetLimitRequest{Tenant: tenant, Downstream: downstream})
	if err != nil {
		return nil, fmt.Errorf("reset limit %s/%s: %w", tenant, downstream, readable(err))
	}
	return res, nil
}
