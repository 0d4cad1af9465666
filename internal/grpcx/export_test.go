package grpcx

import (
	"time"

	"google.golang.org/grpc/keepalive"
)

// AggressivePings are the most frequent ones that gRPC for Go sends.
var AggressivePings = keepalive.ClientParameters{Time: 10 * time.Second, PermitWithoutStream: true}
