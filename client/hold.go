package client

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/headrace/headrace/internal/grpcx"
)

// A HeldBackError says that the client makes few calls for now, because most of those of the last two minutes had no
// answer: the server is down, or what is before it. This call was not sent. Calls are repeated, so the error is seen
// as the last cause of one whose context has ended. Config.NeverHoldBack turns that off.
type HeldBackError struct {
	Wanted, Answered int // calls in two minutes
}

func (e *HeldBackError) Error() string {
	return fmt.Sprintf("the client holds calls back: of %d in two minutes %d were answered", e.Wanted, e.Answered)
}

// GRPCStatus is that of a call that could not be sent.
func (e *HeldBackError) GRPCStatus() *status.Status {
	return status.New(codes.Unavailable, e.Error())
}

// shortCall is how soon a call may run out of time without that saying anything about the server.
const shortCall = time.Second

// mayCall says whether a call may be made now, and whether it counts. Without a connection it fails by itself, unsent.
func (l *link) mayCall() (counts bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hold == nil || l.cc.GetState() != connectivity.Ready {
		return false, nil
	}
	now := time.Now()
	if l.hold.Allow(now, rand.Float64()) {
		return true, nil
	}
	wanted, answers := l.hold.Counts(now)
	return false, &HeldBackError{Wanted: int(wanted), Answered: int(answers)}
}

// count notes how a call has ended that took so long. A server that refuses answers, too: it says itself when to come again.
func (l *link) count(err error, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	switch code := status.Code(err); {
	case answered(err) || grpcx.Read(err).Reason != "":
		l.hold.Answered(now)
	case code == codes.Canceled || code == codes.DeadlineExceeded && took < shortCall:
		// its end says nothing about the server
	default:
		l.hold.Failed(now)
	}
}

// heldBack returns the *HeldBackError in a call's error; nil: it is another.
func heldBack(err error) *HeldBackError {
	var h *HeldBackError
	errors.As(err, &h)
	return h
}
