// Package push holds the executors' streams: it reads what they send and hands it to the core, and
// sends what the core has for them. It decides nothing; order, credit, beats and tokens are the core's.
//
// # A session
//
//	           hello (10 s, validated)          welcome, then batches both ways
//	opened ───────────────────────────▶ open ────────────────────────────────────▶ closed
//	                                      │  the peer ends or breaks the stream
//	                                      │  the core closes it (a newer session, a broken rule)
//	                                      │  the peer does not read: a message is stuck for SendTimeout,
//	                                      │  or more than OutboxBytes wait for it
//
// Each has three goroutines: gRPC's handler, which waits for the end; a reader, which blocks while the
// loop's mailbox is full, so that flow control holds back the peer; and a writer, which sends what has
// gathered while the send before was under way, merged into few messages. A peer that reads nothing
// holds back nobody: the loop only appends to its outbox, and no lock is held while sending.
//
// Reader and writer may still sit in a gRPC call when the handler returns, because only its return ends
// those. Wait waits for them.
package push
