//go:build invariants

package core

const checked = true
