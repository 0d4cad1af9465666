// Package ledger keeps the books of tests with real processes: what was accepted, what ran and how often, what
// ended and how. It is for internal/e2e and internal/chaos.
//
// The executor is an outside process that writes each start and end of a handler to a file, so that what really ran
// is counted by the one who ran it. The test's own binary plays it, started again with HEADRACE_E2E_EXECUTOR set;
// the functions are those of ExecutorMain.
package ledger
