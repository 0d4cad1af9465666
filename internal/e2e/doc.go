// Package e2e tests the product as its users run it: the built binary in processes of its own, an
// outside executor, real files on disk, kill -9, SIGSTOP, torn writes and proxies that lose answers.
// Each test ends with a ledger: accepted, terminal by state, starts by task, duplicates.
//
// The test binary plays the executor itself; internal/ledger has it, and the books.
package e2e
