// Package grpcx is what both ends of our gRPC connections have in common: the codec, the options
// of a connection that must fit each other, and how an error is carried in a status.
//
// A client or executor dials with DialOptions, a node serves with ServerOptions. They fit: the
// client's keep-alive pings are rarer than the least the server tolerates, flow-control windows and
// message limits are the same, both speak the codec. A stock gRPC client or server in any language
// works with either side, too; that includes health checks and reflection.
//
// Nothing is registered globally: a user's program that embeds the SDK keeps its own codec for its
// own services.
package grpcx
