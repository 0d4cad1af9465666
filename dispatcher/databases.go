package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/internal/telemetry"
	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/store"
)

// databases are the node's, in the order of their index. Which one holds a partition is in the catalogue, which
// the registry holds for all nodes.
type databases struct {
	list      []*database
	directory func() *shard.Directory
	log       *zap.Logger
	asking    sync.WaitGroup // questions about disks
}

// database is one of them.
type database struct {
	Database
	store store.Store
	late  *lateStore // what store is while Open has not worked yet; nil: it was open from the start
	own   bool       // store is ours to close
	// watched is store as the loop commits to it.
	watched *watchedStore
	disk    diskUse
	// reaches is whether it is within reach; nil: there is no other node that could be nearer.
	reaches *reaches
}

var errUnknownDatabase = errors.New("the catalogue has the partition in a database that this node's configuration does not name")

// index returns which database holds a partition; false: there is no such partition, or no such database here.
func (d *databases) index(partition uint32) (int, bool) {
	ps := d.directory().Partitions
	i, ok := slices.BinarySearchFunc(ps, partition, func(p shard.Partition, id uint32) int { return cmp.Compare(p.ID, id) })
	if !ok {
		return 0, false
	}
	name := ps[i].In()
	j := slices.IndexFunc(d.list, func(db *database) bool { return db.Name == name })
	return j, j >= 0
}

// of is storeOf for the owners.
func (d *databases) of(partition uint32) (store.Store, core.Database, error) {
	i, ok := d.index(partition)
	if !ok {
		return nil, 0, errUnknownDatabase
	}
	return d.list[i].store, core.Database(i), nil
}

func (d *databases) stores() []store.Store {
	out := make([]store.Store, len(d.list))
	for i, db := range d.list {
		out[i] = db.store
	}
	return out
}

func (d *databases) names() []string {
	out := make([]string, len(d.list))
	for i, db := range d.list {
		out[i] = db.Name
	}
	return out
}

// opened reports whether all of them are open.
func (d *databases) opened() bool {
	return !slices.ContainsFunc(d.list, func(db *database) bool { return db.late != nil && db.late.get() == nil })
}

// settings are those of all databases, with their names where there are several.
func (d *databases) settings() map[string]string {
	if len(d.list) == 1 {
		return d.list[0].store.Settings()
	}
	out := map[string]string{}
	for _, db := range d.list {
		for k, v := range db.store.Settings() {
			out[db.Name+"."+k] = v
		}
	}
	return out
}

// firstOpen is how long the start waits for databases to open. Later they open beside everything else.
const firstOpen = 3 * time.Second

// open opens what is to be opened and waits a moment for it.
func (d *databases) open(ctx context.Context) {
	timeout := time.NewTimer(firstOpen)
	defer timeout.Stop()
	for _, db := range d.list {
		if db.late == nil {
			continue
		}
		db.late.start(ctx)
		select {
		case <-db.late.opened:
		case <-timeout.C:
			timeout.Reset(0) // the others have had the time too
		case <-ctx.Done():
			return
		}
	}
}

// close closes what is ours.
func (d *databases) close() error {
	d.asking.Wait()
	var err error
	for _, db := range d.list {
		if db.own {
			if e := db.store.Close(); e != nil {
				err = errors.Join(err, fmt.Errorf("close database %s: %w", db.Name, e))
			}
		}
	}
	return err
}

// missing returns what the catalogue lacks: partitions that a database holds (a registry that was lost), and
// those that the configuration wants. Their numbers follow the highest that is known. It needs all
// databases, so that no number is given twice.
func (d *databases) missing(ctx context.Context, have []shard.Partition) ([]shard.Partition, error) {
	var add []shard.Partition
	next := uint32(0)
	count := map[string]int{}
	known := map[uint32]string{}
	sealed := map[uint32]shard.Partition{}
	note := func(p shard.Partition) {
		next = max(next, p.ID)
		count[p.In()]++
		known[p.ID] = p.In()
		if p.State == shard.Sealed {
			sealed[p.ID] = p
		}
	}
	for _, p := range have {
		note(p)
	}
	for _, db := range d.list {
		stored, err := db.store.Partitions(ctx)
		if err != nil {
			return nil, fmt.Errorf("list the partitions of database %s: %w", db.Name, err)
		}
		for _, p := range stored {
			if s, there := sealed[p.ID]; there && s.In() == db.Name && p.Ready+p.Due > 0 {
				d.log.Error("a sealed partition has tasks: it drains again", telemetry.Partition(p.ID))
				s.State = shard.Draining
				add = append(add, s)
			}
			switch in, there := known[p.ID]; {
			case !there:
				add = append(add, db.partition(p.ID))
				note(add[len(add)-1])
			case in != db.Name:
				// Two databases with one number: a configuration that exchanged them. Who owns it writes to the one of
				// the catalogue; the other one's tasks are not seen.
				d.log.Error("a database holds a partition that the catalogue has in another one: are their names exchanged?",
					telemetry.Partition(p.ID), telemetry.Database(db.Name), zap.String("catalogue", in))
			}
		}
	}
	for _, db := range d.list {
		for count[db.Name] < db.Partitions {
			add = append(add, db.partition(next+1))
			note(add[len(add)-1])
		}
	}
	return add, nil
}

func (db *database) partition(id uint32) shard.Partition {
	p := shard.Partition{ID: id, Zone: db.Zone}
	if db.Zone != db.Name {
		p.Database = db.Name
	}
	return p
}
