// Package telemetry fixes how the platform speaks about itself: one way to build a logger, and one
// spelling for each field, so that a search for a task or a partition finds every line about it.
//
// Texts that come from outside (names, reasons, addresses, error texts of users) go through Text:
// control characters are escaped and the length is bounded, so that nobody can forge a line or fill
// the disk. Payloads, results and keys are never logged, at any level.
package telemetry
