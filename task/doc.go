// Package task holds the nouns that every other package shares: ids, tokens, states, bands,
// error classes, function policies and what a client may ask for, with their validation.
//
// It is pure: no clock, lock, goroutine or I/O. What a name means is in docs/GLOSSARY.md.
//
// The states of a task:
//
//	             due                 push acknowledged
//	scheduled ────────▶ queued ────────────────────────▶ running
//	                      ▲                                 │
//	                      │ due               retry, snooze │ throttle, loss
//	                   retrying ◀───────────────────────────┤
//	                                                        ▼
//	   any of the four above ─▶ succeeded │ failed │ cancelled │ expired      (terminal: no way back)
package task
