package clusterclient

import (
	"context"
	"fmt"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

func (c *Client) placements() headracev1.PlacementServiceClient {
	return headracev1.NewPlacementServiceClient(c.conn)
}

// Placements calls f with each stored placement, by tenant, until one of its calls fails.
func (c *Client) Placements(ctx context.Context, f func(*headracev1.Placement) error) error {
	for token := ""; ; {
		res, err := c.placements().ListPlacements(ctx, &headracev1.ListPlacementsRequest{PageToken: token})
		if err != nil {
			return fmt.Errorf("list placements: %w", readable(err))
		}
		for _, p := range res.Placements {
			if err := f(p); err != nil {
				return err
			}
		}
		if token = res.NextPageToken; token == "" {
			return nil
		}
	}
}

// ExplainPlacement returns why a tenant is where it is, and with whom.
func (c *Client) ExplainPlacement(ctx context.Context, tenant string) (*headracev1.ExplainPlacementResponse, error) {
	res, err := c.placements().ExplainPlacement(ctx, &headracev1.ExplainPlacementRequest{Tenant: tenant})
	if err != nil {
		return nil, fmt.Errorf("explain the placement of %s: %w", tenant, readable(err))
	}
	return res, nil
}

// MovePlacement sends a tenant's new tasks elsewhere.
func (c *Client) MovePlacement(ctx context.Context, req *headracev1.MovePlacementRequest) (*headracev1.Placement, error) {
	res, err := c.placements().MovePlacement(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("move %s: %w", req.Tenant, readable(err))
	}
	return res.Placement, nil
}

// PlacementEvents returns the newest changes, newest first.
func (c *Client) PlacementEvents(ctx context.Context) ([]*headracev1.PlacementEvent, error) {
	res, err := c.placements().ListPlacementEvents(ctx, &headracev1.ListPlacementEventsRequest{})
	if err != nil {
		return nil, fmt.Errorf("list placement events: %w", readable(err))
	}
	return res.Events, nil
}
