package grpcx

import (
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

// Addrs splits a list of addresses at its commas.
func Addrs(list string) []string {
	addrs := strings.Split(list, ",")
	for i := range addrs {
		addrs[i] = strings.TrimSpace(addrs[i])
	}
	return addrs
}

// Target returns what to dial for a connection to the first of some addresses that answers, host:port each: they are
// tried in order, the next one also when one takes longer than a quarter of a second. Names are looked up at each
// attempt: gRPC's own resolver would look at most twice a minute. An address with a scheme, such as unix:///run/x.sock,
// is gRPC's to resolve, and must be alone.
func Target(addrs ...string) (target string, opts []grpc.DialOption) {
	if len(addrs) == 1 && strings.Contains(addrs[0], ":///") {
		return addrs[0], nil
	}
	r := manual.NewBuilderWithScheme("headrace")
	var state resolver.State
	for _, a := range addrs {
		host, _, err := net.SplitHostPort(a)
		if err != nil {
			host = a
		}
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: a, ServerName: host}}})
	}
	r.InitialState(state)
	return "headrace:///" + addrs[0], []grpc.DialOption{grpc.WithResolvers(r)}
}
