// Package demo is the guided tour: the platform's main job on real files, through the public SDKs and
// over real gRPC, against a server in a process of its own.
//
//	acme    submit ──▶ checksum: reads a file ──▶ submit ──▶ index: posts the sum ──▶ the index service
//	        one task for every file                          one task for every sum   8 requests at once,
//	globex  submit ──▶ tick: does nothing                                              429 above
//	        one every 20 ms, all the while
//
// The index service is the judge: the digest is computed from what reached it. How many tasks succeeded,
// in how many attempts, and how long they waited is asked of the server, task by task, at the end.
package demo
