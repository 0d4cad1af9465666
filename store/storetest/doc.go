// Package storetest is the conformance suite of package store: what every store must do, as tests with
// behaviour names, and a random walk that compares a store with memstore, the oracle, after each step.
//
// A store's test is one call of Run. The suite uses a store as an owner does: it hands in changes that
// follow from the rows that it wrote or read.
package storetest
