// Package memstore is the store as plain maps: the oracle that the real stores are compared with, and
// the store of simulations and of tests in fake time.
//
// Everything but a client's id is found by looking at every row: there is no index that could be wrong,
// and no answer whose order depends on a map. A row has been through the codec before it is kept, so
// that it is what would have been read from a disk, and no writer can change it through a pointer. Where a caller breaks the contract of Change (an update of a row that is not
// there, or an Old that is not what is stored) it panics: a real store would keep a wrong index.
//
// # Crashes and faults
//
// Data outlives the Stores that are opened on it, as a disk outlives a process: Open it again for a
// restart, or several times for owners that do not know of each other. Store.Fail is asked at each
// call and makes it fail.
//
// It starts no goroutine and never waits but for a lock that is held for moments, so it works in a
// synctest bubble as well as in a simulation on one goroutine.
package memstore
