package dispatcher

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/internal/telemetry"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/store"
)

// reaches notes whether this node reaches a database, by the calls of the loop and by looks where there are none.
type reaches struct {
	name  string
	store store.Store
	now   func() time.Time

	mu    sync.Mutex // guards following
	state *shard.Reach
}

func newReaches(name string, s store.Store, after time.Duration, now func() time.Time) *reaches {
	return &reaches{name: name, store: s, now: now, state: shard.NewReach(after, now())}
}

// ended takes how a call of the loop ended. Nil: nobody wants to know.
func (r *reaches) ended(sentAt time.Time, err error) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.Ended(r.now(), sentAt, err == nil)
}

// cut is shard.Reach.Cut.
func (r *reaches) cut() (since time.Time, cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.Cut()
}

// away is shard.Reach.Doubtful.
func (r *reaches) away() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.Doubtful(r.now())
}

// tick decides, and starts a look if it is time for one. It does not wait.
func (r *reaches) tick(ctx context.Context, looks *sync.WaitGroup, max time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.state.Tick(r.now()) {
		return
	}
	r.state.Probing(r.now())
	looks.Go(func() {
		call, cancel := context.WithTimeout(ctx, max)
		defer cancel()
		_, err := r.store.Epoch(call, 0)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.state.Probed(r.now(), err == nil)
	})
}

// watchReach tells the leader which databases this node can't reach, until ctx ends.
func (n *Node) watchReach(ctx context.Context) {
	every := n.dbs.list[0].reaches.state.Every()
	tick := time.NewTicker(every)
	defer tick.Stop()
	var looks sync.WaitGroup
	defer looks.Wait()
	told := []shard.CutOff{}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		cut := []shard.CutOff{}
		for _, db := range n.dbs.list {
			db.reaches.tick(ctx, &looks, n.cfg.TTL)
			if since, is := db.reaches.cut(); is {
				cut = append(cut, shard.CutOff{Database: db.Name, Since: since.UTC(), Back: !db.reaches.away()})
			}
		}
		if slices.Equal(cut, told) {
			continue
		}
		call, cancel := context.WithTimeout(ctx, every) // the registry may be away as well: once more then
		err := n.member.CutOff(call, cut)
		cancel()
		if err != nil {
			n.log.Warn("tell which databases are out of reach", telemetry.Err(err))
			continue
		}
		if told = cut; len(cut) == 0 {
			n.log.Info("all databases are within reach of this node again")
			continue
		}
		n.log.Warn("databases out of reach of this node", zap.Int("databases", len(cut)), zap.Any("cut", cut))
	}
}

// databaseAway is api.Config.DatabaseAway.
func (n *Node) databaseAway(i int) bool { r := n.dbs.list[i].reaches; return r != nil && r.away() }

// cutFrom is owners.cut: while the database answers a partition is handed over in order.
func (n *Node) cutFrom(partition uint32) bool {
	i, ok := n.dbs.index(partition)
	if !ok || n.dbs.list[i].reaches == nil {
		return false
	}
	_, cut := n.dbs.list[i].reaches.cut()
	return cut && n.databaseAway(i)
}
