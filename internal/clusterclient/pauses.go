package clusterclient

import (
	"context"
	"fmt"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

func (c *Client) pauses() headracev1.PauseServiceClient {
	return headracev1.NewPauseServiceClient(c.conn)
}

// Pause makes a pause rule. The answer may name owners that have not said that it is in force.
func (c *Client) Pause(ctx context.Context, req *headracev1.PauseRequest) (*headracev1.PauseResponse, error) {
	res, err := c.pauses().Pause(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("pause %s: %w", req.Tenant, readable(err))
	}
	return res, nil
}

// Resume takes pause rules away.
func (c *Client) Resume(ctx context.Context, req *headracev1.ResumeRequest) (*headracev1.ResumeResponse, error) {
	res, err := c.pauses().Resume(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("resume %s: %w", req.Tenant, readable(err))
	}
	return res, nil
}

// Pauses calls f with each rule of a tenant ("": of all), by tenant, until one of its calls fails.
func (c *Client) Pauses(ctx context.Context, tenant string, f func(*headracev1.PauseRule) error) error {
	for token := ""; ; {
		res, err := c.pauses().ListPauses(ctx, &headracev1.ListPausesRequest{Tenant: tenant, PageToken: token})
		if err != nil {
			return fmt.Errorf("list pause rules: %w", readable(err))
		}
		for _, r := range res.Rules {
			if err := f(r); err != nil {
				return err
			}
		}
		if token = res.NextPageToken; token == "" {
			return nil
		}
	}
}
