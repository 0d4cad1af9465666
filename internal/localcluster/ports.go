package localcluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// Ports that we take: above those of well-known services, below those that the kernel gives to outgoing connections
// (32768 and up): a port that a killed process leaves is its own again when it starts.
const (
	portMin = 15_000
	portMax = 32_000
)

// ports hands out free ports, each once.
type ports map[int]bool

func (ps ports) next() (int, error) {
	for range 1000 {
		port := portMin + rand.IntN(portMax-portMin)
		if ps[port] {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		l.Close()
		ps[port] = true
		return port, nil
	}
	return 0, errors.New("no free port found on the loopback")
}

func (ps ports) addr() (string, error) {
	port, err := ps.next()
	return fmt.Sprintf("127.0.0.1:%d", port), err
}
