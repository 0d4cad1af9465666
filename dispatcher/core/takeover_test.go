package core

import (
	"testing"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// A takeover in small slices has counted what a tenant has before it adopts the first of its rows: one that has expired
// ends at once, and would leave less than nothing.
func TestTakeoverCountsFirst(t *testing.T) {
	c := New(Config{Random: func() uint64 { return 1 }, Slice: 2})
	r := &store.Recovered{Partition: store.Partition{ID: 1, Seq: 2, Ready: 2}}
	var flows []store.FlowStat
	for seq, function := range []string{"f", "g"} {
		row := &store.Task{ID: task.NewID(1, uint64(seq+1), 1), Tenant: "a", Function: function, Band: task.Normal, State: task.Queued,
			DueAt: began, FirstDueAt: began, Record: &store.Record{Token: task.Token{Epoch: 1, Push: uint64(seq + 1)}, Executor: "x", StartedAt: began}}
		r.Recorded = append(r.Recorded, row)
		flows = append(flows, store.FlowStat{Flow: row.Flow(), Ready: 1})
	}
	c.Trust(began.Add(task.DefaultOrphanTimeout))
	c.Acquired(began, Acquired{Epoch: 2, RaisedAt: began, Recovered: r, Flows: flows})
	if us, rows := c.Usages(), len(c.parts[1].items); len(us) != 1 || us[0].Ready != 2 || rows != 0 {
		t.Errorf("after a slice of two: %+v, and %d rows; want both tasks counted, and no row", us, rows)
	}
	for range 2 {
		c.Tick(began)
		c.Take()
	}
	if us, rows := c.Usages(), len(c.parts[1].items); len(us) != 1 || us[0].Ready != 2 || rows != 2 {
		t.Errorf("in the end: %+v, and %d rows; want both", us, rows)
	}
	if err := c.Check(); err != nil {
		t.Error(err)
	}
}
