// Package filestore is the embedded store: one directory, one process, no server. It is an LSM tree
// (Pebble; docs/adr/0012-embedded-engine.md says why), with one batch and one fdatasync for a commit.
package filestore
