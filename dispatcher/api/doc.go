// Package api is the door: the gRPC services that clients, executors and operators call, apart from the
// executors' sessions (package push). It checks everything that comes in against the limits of the design,
// turns it into the words of package core and back, and maps errors at one border (status.go).
//
// # What is checked where
//
// A request is checked before anything else happens: one more than a limit is INVALID_ARGUMENT with an
// ErrorInfo whose metadata name the field and what it may be, and nothing is stored. In a batch only
// the items that are wrong are refused. Every request names its tenant; there is no default and no
// wildcard, and an id of another tenant is answered exactly as one that never was.
//
// # Where a task goes
//
// A tenant's shard is k of the partitions; two candidates of it follow from the request id, the one that is likelier to
// take it, or has the shorter backlog, is taken. A retry of a request finds the same two, and its owner looks in both for
// what an earlier call may have stored. The other candidate is taken only when the first certainly
// stored nothing. If neither has an owner the submit is held, or told to come again under another id (submit.go, ADR 19).
//
// # Reads
//
// Rows come from the store; what only the owner's memory knows (that a try runs, its progress, why a task
// waits) is laid over them, from one consistent look at the core. A wait watches first and reads then.
package api
