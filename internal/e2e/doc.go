// Package e2e tests the product as its users run it: the built binary in processes of its own, an
// outside executor, real files on disk, kill -9, SIGSTOP, torn writes and proxies that lose answers.
// Each test ends with a ledger: accepted, terminal by state, starts by task, duplicates.
//
// The test binary plays the executor itself: started again with HEADRACE_E2E_EXECUTOR set, it registers
// the functions of executor.go and writes each start and end to a file, so that what really ran is
// counted by the one who ran it.
package e2e
