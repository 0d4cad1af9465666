package clusterclient

import (
	"context"
	"fmt"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

func (c *Client) tenants() headracev1.TenantServiceClient {
	return headracev1.NewTenantServiceClient(c.conn)
}

// SetTenant changes what a tenant may use.
func (c *Client) SetTenant(ctx context.Context, req *headracev1.SetTenantRequest) (*headracev1.Tenant, error) {
	res, err := c.tenants().SetTenant(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("set tenant %s: %w", req.Tenant, readable(err))
	}
	return res.Tenant, nil
}

// Tenant returns a tenant's settings, and what it uses.
func (c *Client) Tenant(ctx context.Context, tenant string) (*headracev1.Tenant, error) {
	res, err := c.tenants().GetTenant(ctx, &headracev1.GetTenantRequest{Tenant: tenant})
	if err != nil {
		return nil, fmt.Errorf("show tenant %s: %w", tenant, readable(err))
	}
	return res.Tenant, nil
}

// Tenants calls f with each tenant, by name, until one of its calls fails.
func (c *Client) Tenants(ctx context.Context, f func(*headracev1.Tenant) error) error {
	for token := ""; ; {
		res, err := c.tenants().ListTenants(ctx, &headracev1.ListTenantsRequest{PageToken: token})
		if err != nil {
			return fmt.Errorf("list tenants: %w", readable(err))
		}
		for _, t := range res.Tenants {
			if err := f(t); err != nil {
				return err
			}
		}
		if token = res.NextPageToken; token == "" {
			return nil
		}
	}
}
