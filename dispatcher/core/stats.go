package core

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
)

// Stats returns what is known of each partition held, in partition order.
func (c *Core) Stats() []PartitionStat {
	out := make([]PartitionStat, len(c.order))
	for i, p := range c.order {
		out[i] = p.stat
	}
	return out
}

// Dump returns a look at everything, for people.
func (c *Core) Dump() string {
	var b strings.Builder
	fmt.Fprintf(&b, "now %s, trusted until %s, draining %v, %d bytes of tasks in memory\n", c.now.Format(time.RFC3339Nano), c.trust.Format(time.RFC3339Nano), c.draining, c.bytes)
	w := tabwriter.NewWriter(&b, 2, 8, 2, ' ', 0)
	fmt.Fprintln(w, "\npartition\tepoch\tfloor\tstate\tready\tdue\trunning\tin memory\twaits for time\tqueued\tunconfirmed")
	for _, p := range c.order {
		state := "open"
		switch {
		case p.closing:
			state = "closing"
		case p.releasing:
			state = "releasing"
		case p.takeover.active:
			state = "takeover"
		}
		fmt.Fprintf(w, "%d\t%d\t%d\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", p.id, p.epoch, p.floor, state,
			p.stat.Backlog, p.stat.Scheduled, p.stat.Running, len(p.items), p.due.count, p.pending, p.unsure)
	}
	fmt.Fprintln(w, "\nlane\tpartition\twindow\tbytes\tcursor\tmore\treading\tparked")
	for _, p := range c.order {
		for _, l := range p.sortedLanes() {
			f := l.flow.function
			fmt.Fprintf(w, "%s/%s/%v\t%d\t%d\t%d\t%d.%d\t%v\t%v\t%v\n", f.tenant.name, f.name, l.flow.band, p.id,
				l.len(), l.bytes, l.cursor.Sort, l.cursor.Seq, l.more, l.reading != nil, l.parked)
		}
	}
	fmt.Fprintln(w, "\nsession\texecutor\tslots\tcredit\tsent\treturned\tpromised\tdemand told\tkept for\tunacked bytes\ttries\tready\tdraining\theld")
	for _, s := range c.opened {
		fmt.Fprintf(w, "%d\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%v\t%v\t%v\n", s.id, s.executor.name, s.slots, s.credit, s.sent, s.returned, s.promised, s.demand, s.pool.keptFor(s),
			s.unacked, s.executor.flying.n, s.index >= 0, s.draining, s.held)
	}
	fmt.Fprintln(w, "\ndatabase\tqueued\tbytes\tin flight\tto apply\tfull until")
	for _, db := range c.databases {
		if db != nil {
			fmt.Fprintf(w, "%d\t%d\t%d\t%v\t%d\t%s\n", db.index, db.queued, db.bytes, db.inFlight != nil, db.applying.len(), db.fullUntil.Format(time.RFC3339Nano))
		}
	}
	w.Flush()
	return b.String()
}
