//go:build !invariants

package core

// checked says that every Take looks whether the state is consistent: with the build tag invariants.
const checked = false
