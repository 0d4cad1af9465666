package grpcx

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"
)

// Defaults of both ends.
const (
	// DefaultMessageBytes bounds one message, received or sent: a batch of 4 MiB or a payload of
	// 16 MiB, the largest that can be configured, fit with all that surrounds them.
	DefaultMessageBytes = 24 << 20
	// DefaultStreams bounds the open calls of one connection: 10,000 waits, and submits beside them.
	DefaultStreams = 20_000

	streamWindow = 4 << 20   // flow control: what may be in flight in one stream
	connWindow   = 16 << 20  // and in all streams of a connection
	ioBuffer     = 256 << 10 // of reads and writes; gRPC shares write buffers among connections by itself

	// Pings of clients, also while no call is open, so that a dead peer behind a silent network is
	// noticed in half a minute. The server tolerates pings four times as frequent, and those of
	// foreign clients at gRPC's own least interval (10 s): nobody gets ENHANCE_YOUR_CALM for them.
	pingEvery   = 20 * time.Second
	pingTimeout = 10 * time.Second
	pingLeast   = 5 * time.Second

	reconnectBase = 50 * time.Millisecond
	reconnectMax  = 5 * time.Second
)

// DialOptions returns what every connection of ours is dialled with. Credentials are the caller's to
// add, and a dialler in tests. The connection comes back by itself, for ever, after pauses of 50 ms
// that grow by 1.6 to 5 s, with 20 % jitter. Retries by gRPC's service config are off: each call is
// sent once (or again where it certainly did not reach the server's handler).
//
// maxMessage bounds a message in bytes; 0 means DefaultMessageBytes.
func DialOptions(maxMessage int) []grpc.DialOption {
	if maxMessage == 0 {
		maxMessage = DefaultMessageBytes
	}
	return []grpc.DialOption{
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(Codec()),
			grpc.MaxCallRecvMsgSize(maxMessage),
			grpc.MaxCallSendMsgSize(maxMessage),
		),
		grpc.WithInitialWindowSize(streamWindow),
		grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithReadBufferSize(ioBuffer),
		grpc.WithWriteBufferSize(ioBuffer),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time:                pingEvery,
			Timeout:             pingTimeout,
			PermitWithoutStream: true,
		}),
		Reconnect(reconnectMax),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
	}
}

// Reconnect lets a connection come back after pauses of 50 ms that grow by 1.6 to longest, with 20 % jitter. gRPC's own
// grow to two minutes: after an outage of one minute they go on for half of another.
func Reconnect(longest time.Duration) grpc.DialOption {
	return grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: reconnectBase, Multiplier: 1.6, Jitter: 0.2, MaxDelay: longest},
		MinConnectTimeout: 5 * time.Second,
	})
}

// ServerOptions returns what a node serves with. Credentials and interceptors are the caller's to add.
//
// maxMessage bounds a message in bytes; 0 means DefaultMessageBytes. maxStreams bounds the open calls of
// one connection, of which further ones wait at the client; 0 means DefaultStreams.
func ServerOptions(maxMessage int, maxStreams uint32) []grpc.ServerOption {
	if maxMessage == 0 {
		maxMessage = DefaultMessageBytes
	}
	if maxStreams == 0 {
		maxStreams = DefaultStreams
	}
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(Codec()),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(maxMessage),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(connWindow),
		grpc.ReadBufferSize(ioBuffer),
		grpc.WriteBufferSize(ioBuffer),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingEvery, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingLeast, PermitWithoutStream: true}),
	}
}
