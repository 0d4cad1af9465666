// Package clusterclient asks a server what the cluster looks like. It is for operators and tests; the
// SDK for submitters is package client.
package clusterclient

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/headrace/headrace/internal/grpcx"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

// A Client asks one server. Its methods can be called by many goroutines.
type Client struct {
	conn *grpc.ClientConn
	api  headracev1.ClusterServiceClient
}

// Dial returns a client for the server at addr, host:port, or the first that answers of several with commas between. It does not wait for the network.
func Dial(addr, apiKey string) (*Client, error) {
	opts := append(grpcx.DialOptions(0), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if apiKey != "" {
		opts = append(opts, grpc.WithPerRPCCredentials(key(apiKey)))
	}
	target, several := grpcx.Target(grpcx.Addrs(addr)...)
	conn, err := grpc.NewClient(target, append(opts, several...)...)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	return &Client{conn, headracev1.NewClusterServiceClient(conn)}, nil
}

// Close ends the connection.
func (c *Client) Close() { c.conn.Close() }

// Nodes returns the live nodes. It fails at once when the server can't be reached.
func (c *Client) Nodes(ctx context.Context) ([]*headracev1.Node, error) {
	nodes, _, err := c.NodesAndLevel(ctx)
	return nodes, err
}

// NodesAndLevel returns the nodes, and the cluster's feature level.
func (c *Client) NodesAndLevel(ctx context.Context) (nodes []*headracev1.Node, level uint32, err error) {
	res, err := c.api.ListNodes(ctx, &headracev1.ListNodesRequest{})
	if err != nil {
		return nil, 0, fmt.Errorf("list nodes: %w", readable(err))
	}
	return res.Nodes, res.Level, nil
}

// Partitions returns the partitions. It fails at once when the server can't be reached.
func (c *Client) Partitions(ctx context.Context) ([]*headracev1.Partition, error) {
	res, err := c.api.ListPartitions(ctx, &headracev1.ListPartitionsRequest{})
	if err != nil {
		return nil, fmt.Errorf("list partitions: %w", readable(err))
	}
	return res.Partitions, nil
}

// SetIntake says whether partitions take new tasks.
func (c *Client) SetIntake(ctx context.Context, partitions []uint32, intake headracev1.PartitionIntake) error {
	if _, err := c.api.SetPartitionIntake(ctx, &headracev1.SetPartitionIntakeRequest{Partitions: partitions, Intake: intake}); err != nil {
		return fmt.Errorf("set the intake of partitions: %w", readable(err))
	}
	return nil
}

// readable drops what only gRPC's developers read from an error.
func readable(err error) error {
	i := grpcx.Read(err)
	return fmt.Errorf("%s (%v)", i.Message, i.Code)
}

// key puts an API key into every call's metadata.
type key string

func (k key) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(k)}, nil
}

// RequireTransportSecurity is false: a server on the loopback needs no TLS.
func (key) RequireTransportSecurity() bool { return false }
