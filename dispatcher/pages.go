package dispatcher

import (
	"context"
	"fmt"
	"net/http"
	"net/http/pprof"
	"syscall"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
)

// pages serves health and debug pages. They hold ids, names and numbers; never payloads, results or
// secrets (B143).
func (n *Node) pages() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if err := n.loop.Do(ctx, func(*core.Core) {}); err != nil {
			http.Error(w, "the loop does not answer", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !n.serving.Load() {
			http.Error(w, "not ready: a partition is missing, or the node is going away", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /debug/dump", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		var dump string
		if err := n.loop.Do(ctx, func(c *core.Core) { dump = c.Dump() }); err != nil {
			http.Error(w, "the loop does not answer", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		s := n.loop.Stats()
		fmt.Fprintf(w, "node %s\nloop busy %.1f %%, %.1f µs/event, %d events, %d commits (mean %v), %d pushes (%.0f/s), mailbox %d, sessions %d\n\n%s",
			n.id, 100*s.BusyRatio, s.MicrosPerEvent, s.Events, s.Commits, s.CommitTime, s.Pushes, s.PushRate, s.Mailbox, s.Sessions, dump)
	})
	mux.HandleFunc("GET /metrics", n.metrics)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "not shown: arguments may hold secrets", http.StatusNotFound)
	})
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 16 << 10}
}

// self fills in what only this node knows of itself.
func (n *Node) self(m *headracev1.Node) {
	m.Executors = uint32(n.push.Open())
	var running int64
	for _, p := range n.loop.Partitions() {
		running += p.Running
	}
	m.Running = uint32(running)
	m.LoopBusyRatio = n.loop.Stats().BusyRatio
	m.StoreSettings = n.dbs.settings()
	m.DiskWrittenBytes, m.DiskOccupiedBytes = n.dbs.diskBytes()
	m.Alarms = n.alarms.list()
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) == nil {
		m.CpuMicros = (u.Utime.Sec+u.Stime.Sec)*1e6 + u.Utime.Usec + u.Stime.Usec
	}
	if m.Address == "" {
		m.Address = n.grpcAddr.String()
	}
}
