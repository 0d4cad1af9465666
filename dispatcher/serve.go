package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"

	"go.uber.org/zap"

	"github.com/headrace/headrace/internal/telemetry"
)

var errStoreFailed = errors.New("the store can't write any more; what was answered OK is on disk: start again once the disk is well")

// serve starts everything, waits for the end of ctx or of a part, and stops everything.
func (n *Node) serve(ctx context.Context, res *resources, grpcLis, httpLis net.Listener) error {
	// Each layer has a context of its own: they end one after the other, not with ctx.
	base := context.WithoutCancel(ctx)
	loopCtx, stopLoop := context.WithCancel(base)
	memberCtx, stopMember := context.WithCancel(base)
	ownersCtx, stopOwners := context.WithCancel(base)
	defer stopLoop()
	defer stopMember()
	defer stopOwners()

	var wg sync.WaitGroup
	failed := make(chan error, 4) // one from each part that may end by itself
	part := func(name string, run func() error) {
		wg.Go(func() {
			if err := run(); err != nil {
				failed <- fmt.Errorf("%s: %w", name, err)
			}
		})
	}
	loopEnded, memberEnded, ownersEnded := make(chan struct{}), make(chan struct{}), make(chan struct{})
	part("loop", func() error { defer close(loopEnded); return n.loop.Run(loopCtx) })
	wg.Go(func() { defer close(ownersEnded); n.owners.run(ownersCtx) })
	if n.roster != nil {
		wg.Go(func() { n.roster.Run(loopCtx) })
	}
	for _, db := range res.databases.list {
		wg.Go(func() { n.alarms.watch(ownersCtx, db.Name, db.watched) })
		if db.late != nil {
			wg.Go(func() {
				select {
				case <-db.late.opened:
					n.grow(ownersCtx)
				case <-ownersCtx.Done():
				}
			})
		}
	}
	part("membership", func() error {
		defer close(memberEnded)
		if err := n.member.Run(memberCtx); memberCtx.Err() == nil {
			return err
		}
		return nil
	})
	if n.dbs.list[0].reaches != nil {
		wg.Go(func() { n.watchReach(ownersCtx) })
	}
	wg.Go(func() { _ = n.placements.Run(memberCtx) }) // its error is the context's
	wg.Go(func() { n.gate.Run(memberCtx, n.leads) })
	wg.Go(func() { _ = n.pauses.Run(memberCtx) })
	wg.Go(func() { _ = n.limits.Run(memberCtx) })
	wg.Go(func() { _ = n.bounds.Run(memberCtx) })
	wg.Go(func() { _ = n.tenants.Run(memberCtx) })
	wg.Go(func() { n.door.Run(loopCtx) })
	if n.shares != nil {
		wg.Go(func() { n.shares.Run(loopCtx) })
	}
	wg.Go(func() { n.pools.Run(loopCtx) })
	part("gRPC", func() error {
		if err := n.grpc.Serve(grpcLis); !errors.Is(err, grpc.ErrServerStopped) {
			return err
		}
		return nil
	})
	if httpLis != nil {
		part("HTTP", func() error {
			if err := n.http.Serve(httpLis); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
	}

	var err error
	select {
	case <-ctx.Done():
		n.log.Info("stopping", zap.String("why", fmt.Sprint(context.Cause(ctx))))
		n.handOver()
	case err = <-failed:
		n.log.Error("a part of the node has ended", telemetry.Err(err))
		n.api.Drain()
	case <-res.etcdFailed():
		// etcd is dead in this process. In a cluster the node would go on; alone, nothing can be acquired any
		// more, and a new process starts it anew.
		err = fmt.Errorf("embedded etcd: %w", res.etcd.Err())
		n.handOver()
	case <-res.storeFailed():
		// Nothing can be written any more by this process; a new one opens what is on disk.
		err = errStoreFailed
		n.log.Error("ending", telemetry.Err(err))
		n.api.Drain()
	}

	// Sessions end with the loop, in answer to which executors look elsewhere; then calls get their grace.
	stopLoop()
	<-loopEnded
	n.peers.Stop()
	n.stopServers()
	n.router.Close()
	stopOwners()
	<-ownersEnded
	stopMember()
	<-memberEnded
	wg.Wait()
	n.push.Wait()
	n.peers.Wait()
	n.wg.Wait()
	return err
}

// handOver refuses what is new, tells executors, and releases every partition, as far as Config.Drain allows.
func (n *Node) handOver() {
	began := time.Now()
	n.health.Shutdown() // NOT_SERVING, whatever the owners say from now on
	n.serving.Store(false)
	n.api.Drain()
	n.loop.Drain()
	ctx, cancel := context.WithTimeout(context.Background(), n.cfg.Drain)
	defer cancel()
	if err := n.member.Drain(ctx); err != nil {
		n.log.Warn("announce the drain", telemetry.Err(err))
	}
	n.owners.startDrain()
	select {
	case <-n.owners.empty:
		n.log.Info("handed over", telemetry.Took(time.Since(began)))
	case <-ctx.Done():
		n.log.Warn("the drain's time is over; what was not handed over is taken over", telemetry.Took(time.Since(began)))
	}
}

// stopServers lets calls under way end, for a moment.
func (n *Node) stopServers() {
	ended := make(chan struct{})
	go func() { // ends with Stop at the latest
		n.grpc.GracefulStop()
		close(ended)
	}()
	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	select {
	case <-ended:
	case <-grace.C:
		n.grpc.Stop()
		<-ended
	}
	_ = n.http.Close()
}
