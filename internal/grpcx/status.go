package grpcx

import (
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Domain is the domain of every ErrorInfo that a server of ours sends.
const Domain = "headrace"

// Keys of ErrorInfo's metadata.
const (
	MetaField      = "field"       // INVALID_ARGUMENT: the field, as in the API
	MetaWant       = "want"        // INVALID_ARGUMENT: its accepted range, in words
	MetaExistingID = "existing_id" // ALREADY_EXISTS: the task that holds the client id
	MetaErrorID    = "error_id"    // INTERNAL: to be found in the server's log
	MetaTenant     = "tenant"      // RESOURCE_EXHAUSTED by a limit of a tenant: whose
	MetaLevel      = "level"       // the same: how bad it is, soft or hard
	MetaLimit      = "limit"       // the same: what it is held to, in words
	MetaDatabase   = "database"    // UNAVAILABLE: the database that does not answer
	MetaStored     = "stored"      // UNAVAILABLE: StoredNo if the refused call certainly stored nothing
)

// StoredNo is the value of MetaStored: the caller may send the same tasks as a new request, which has other candidates.
const StoredNo = "no"

// Info is an error as it crosses the wire: a status with ErrorInfo and, if a retry may help, RetryInfo.
type Info struct {
	Code     codes.Code
	Reason   string // machine-readable, lower case with underscores, such as "store_slow"; "" where the peer gave none
	Message  string // for people
	Metadata map[string]string
	// RetryAfter is the pause that the server asks for; 0 when it says nothing.
	RetryAfter time.Duration
}

// Err returns i as a gRPC error.
func (i Info) Err() error { return i.Status().Err() }

// Status returns i as a gRPC status.
func (i Info) Status() *status.Status {
	st := status.New(i.Code, i.Message)
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: i.Reason, Domain: Domain, Metadata: i.Metadata}}
	if i.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(i.RetryAfter)})
	}
	with, err := st.WithDetails(details...)
	if err != nil { // OK has no details
		return st
	}
	return with
}

// Read returns what err carries. Errors that come from elsewhere, also from proxies, have at least a
// code; nil has codes.OK; an error that is no status has codes.Unknown, and context errors their own.
func Read(err error) Info {
	st, ok := status.FromError(err)
	if !ok {
		st = status.FromContextError(err)
	}
	i := Info{Code: st.Code(), Message: st.Message()}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			i.Reason, i.Metadata = d.GetReason(), d.GetMetadata()
		case *errdetails.RetryInfo:
			i.RetryAfter = max(d.GetRetryDelay().AsDuration(), 0)
		}
	}
	return i
}
