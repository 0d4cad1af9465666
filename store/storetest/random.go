package storetest

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/store/memstore"
	"github.com/headrace/headrace/task"
)

var (
	seedFlag  = flag.Uint64("storetest.seed", 0, "seed of the random walk; 0: a few fixed ones")
	stepsFlag = flag.Int("storetest.steps", 0, "steps of the random walk; 0: 300, or 100 with -short")
)

// A random walk of an owner's steps leaves the store and the oracle equal, seen through every read.
func testRandom(t *testing.T, e *env) {
	seeds, steps := []uint64{1, 2, 3}, 300
	if testing.Short() {
		steps = 100
	}
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	}
	if *stepsFlag != 0 {
		steps = *stepsFlag
	}
	oracle := memstore.New()
	w := &walk{t: t, e: e, oracle: oracle}
	for _, seed := range seeds {
		w.r = rand.New(rand.NewPCG(seed, 0))
		w.seed = seed
		for w.step = range steps {
			w.do()
			if t.Failed() {
				t.Fatalf("seed %d, step %d: again with -storetest.seed=%d", seed, w.step, seed)
			}
		}
	}
}

type walk struct {
	t      *testing.T
	e      *env
	oracle *memstore.Store
	r      *rand.Rand
	seed   uint64
	step   int
	now    time.Time
	hot    []*store.Task // as the owner holds them, without payload
	known  []*store.Task // all
	asked  []string      // request ids
}

func (w *walk) where() string { return fmt.Sprintf("seed %d, step %d", w.seed, w.step) }

const walkPartitions = 3

func (w *walk) do() {
	if w.now.IsZero() {
		w.now = base
	}
	w.now = w.now.Add(time.Duration(w.r.IntN(20_000)) * time.Millisecond)
	switch n := w.r.IntN(100); {
	case n < 4 || len(w.e.epochs) < walkPartitions:
		w.acquire()
	case n < 6:
		w.e.reopen()
	default:
		w.commit()
	}
	w.compare()
}

func (w *walk) acquire() {
	id := uint32(w.r.IntN(walkPartitions))
	from := w.e.epochs[id]
	if w.r.IntN(4) == 0 {
		from += uint64(w.r.IntN(2)) + 1
	}
	got, err := w.e.s.Acquire(w.t.Context(), id, from)
	want, wantErr := w.oracle.Acquire(w.t.Context(), id, from)
	if got != want || errors.Is(err, store.ErrFenced) != errors.Is(wantErr, store.ErrFenced) || (err == nil) != (wantErr == nil) {
		w.t.Fatalf("%s: acquire(%d, %d) = %d, %v; want %d, %v", w.where(), id, from, got, err, want, wantErr)
	}
	if err == nil {
		w.e.epochs[id] = got
	}
}

func (w *walk) commit() {
	b := &store.Batch{At: w.now}
	type change struct {
		old, new *store.Task
		part, at int
	}
	var changes []change
	for id := range uint32(walkPartitions) {
		if w.r.IntN(2) == 0 {
			continue
		}
		p := store.Part{Partition: id, Epoch: w.e.epochs[id]}
		if w.r.IntN(10) == 0 {
			p.Epoch--
		}
		part := len(b.Parts)
		add := func(c store.Change) {
			changes = append(changes, change{c.Old, c.Task, part, len(p.Changes)})
			p.Changes = append(p.Changes, c)
		}
		for range w.r.IntN(4) {
			add(insert(w.newTask(id)))
		}
		used := map[task.ID]bool{}
		for range w.r.IntN(4) {
			if len(w.hot) == 0 {
				break
			}
			old := w.hot[w.r.IntN(len(w.hot))]
			if old.ID.Partition() != id || used[old.ID] {
				continue
			}
			used[old.ID] = true
			add(w.next(old))
		}
		if w.r.IntN(5) == 0 {
			p.Changes = append(p.Changes, store.Change{Op: store.PutFunc, Func: &store.Function{
				Tenant: w.name(), Name: w.name(), Policy: task.Policy{Version: w.r.Int64N(9), Exclusive: w.r.IntN(2) == 0}}})
		}
		if w.r.IntN(3) == 0 {
			q := store.Request{ID: fmt.Sprintf("%016x", w.r.Uint64()), Tenant: w.name(), At: w.now}
			for range w.r.IntN(3) {
				q.IDs = append(q.IDs, task.NewID(id, w.r.Uint64N(99), w.r.Uint64()))
			}
			w.asked = append(w.asked, q.ID)
			p.Requests = append(p.Requests, q)
		}
		if w.r.IntN(10) == 0 {
			p.Floor = w.r.Uint64N(20)
		}
		p.Release = w.r.IntN(10) == 0
		p.Seq = w.e.seqs[id]
		b.Parts = append(b.Parts, p)
	}
	got, err := w.e.s.Commit(w.t.Context(), b)
	want, wantErr := w.oracle.Commit(w.t.Context(), b)
	if err != nil || wantErr != nil || len(got) != len(want) {
		w.t.Fatalf("%s: commit = %v, %v; want %v, %v", w.where(), got, err, want, wantErr)
	}
	for i := range want {
		if errors.Is(got[i].Err, store.ErrFenced) != errors.Is(want[i].Err, store.ErrFenced) || len(got[i].Existing) != len(want[i].Existing) {
			w.t.Fatalf("%s: part %d = %v; want %v", w.where(), i, got[i], want[i])
		}
		for at, holder := range want[i].Existing {
			same(w.t, w.where()+": holder", got[i].Existing[at], holder)
		}
	}
	for _, c := range changes {
		r := want[c.part]
		if r.Err != nil || r.Existing[c.at] != nil {
			continue
		}
		if c.old != nil {
			w.hot = slices.DeleteFunc(w.hot, func(t *store.Task) bool { return t == c.old })
		} else {
			w.known = append(w.known, c.new)
		}
		if !c.new.State.Terminal() {
			w.hot = append(w.hot, with(c.new, func(*store.Task) {}))
		}
	}
}

func (w *walk) name() string { return []string{"a", "ab", "b"}[w.r.IntN(3)] }

func (w *walk) time() time.Time {
	return w.now.Add(time.Duration(w.r.IntN(200_000)-100_000) * time.Millisecond)
}

func (w *walk) bytes() []byte {
	b := make([]byte, []int{0, 1, 50, 4096, 4097, 9000}[w.r.IntN(6)])
	for i := range b {
		b[i] = byte(w.r.Uint32())
	}
	return b
}

func (w *walk) newTask(partition uint32) *store.Task {
	t := w.e.newTask(partition, w.name(), w.name())
	t.CreatedAt, t.DueAt = w.time().Truncate(10*time.Second), w.time()
	t.Payload = w.bytes()
	t.PayloadSize = len(t.Payload)
	t.State = []task.State{task.Queued, task.Queued, task.Scheduled}[w.r.IntN(3)]
	t.Band, t.Priority = task.Band(w.r.IntN(task.Bands)), uint8(w.r.IntN(10))
	if w.r.IntN(3) == 0 {
		t.ClientID = fmt.Sprint("c", w.r.IntN(40))
	}
	for range w.r.IntN(3) {
		if t.Labels == nil {
			t.Labels = map[string]string{}
		}
		t.Labels[w.name()] = w.name()
	}
	return t
}

// next returns a change that follows from a hot row.
func (w *walk) next(old *store.Task) store.Change {
	t := *old
	t.LastToken = task.Token{Epoch: w.e.epochs[old.ID.Partition()], Push: w.r.Uint64N(1000)}
	t.TriesTotal++
	t.Tries = append(slices.Clone(t.Tries), store.Try{Attempt: t.Attempt, EndedAt: w.now, Message: "m"})
	if w.r.IntN(2) == 0 {
		t.State = task.Succeeded + task.State(w.r.IntN(4))
		t.FinishedAt, t.Result = w.now, w.bytes()
		return finish(old, &t)
	}
	t.State = []task.State{task.Queued, task.Retrying, task.Scheduled}[w.r.IntN(3)]
	if w.r.IntN(2) == 0 {
		t.DueAt = w.time()
	}
	t.Record, t.Cancel = nil, nil
	if w.r.IntN(3) == 0 {
		t.Record = &store.Record{Token: t.LastToken, Executor: "0123456789abcdef", StartedAt: w.now}
	}
	if w.r.IntN(3) == 0 {
		t.Cancel = &store.Cancel{At: w.now, Reason: "r"}
	}
	if w.r.IntN(4) == 0 { // the payload comes along
		full, err := w.oracle.Get(w.t.Context(), old.ID)
		if err != nil {
			w.t.Fatal(err)
		}
		t.Payload = full.Payload
		return store.Change{Op: store.Update, Old: old, Task: &t}
	}
	return update(old, &t)
}

// compare asks both stores the same, everything there is to ask with random limits.
func (w *walk) compare() {
	t, ctx := w.t, w.t.Context()
	t.Helper()
	what := func(s string) string { return w.where() + ": " + s }
	equal := func(name string, got, want any, err, wantErr error) {
		t.Helper()
		if (err == nil) != (wantErr == nil) || errors.Is(err, store.ErrNotFound) != errors.Is(wantErr, store.ErrNotFound) || !reflect.DeepEqual(got, want) {
			t.Fatalf("%s = %+v, %v; want %+v, %v", what(name), got, err, want, wantErr)
		}
	}
	page := func(name string, read func(s store.Store) ([]*store.Task, bool, error)) {
		t.Helper()
		got, more, err := read(w.e.s)
		want, wantMore, wantErr := read(w.oracle)
		equal(name, more, wantMore, err, wantErr)
		sameRows(t, what(name), got, want)
	}
	parts, err := w.e.s.Partitions(ctx)
	wantParts, wantErr := w.oracle.Partitions(ctx)
	equal("partitions", parts, wantParts, err, wantErr)
	limit, maxBytes, inline := w.r.IntN(12)+1, w.r.IntN(20_000), w.r.IntN(10_000)
	for id := range uint32(walkPartitions) {
		flows, err := w.e.s.Flows(ctx, id)
		wantFlows, wantErr := w.oracle.Flows(ctx, id)
		equal("flows", byFlow(flows), byFlow(wantFlows), err, wantErr)
		for _, f := range wantFlows {
			var at store.Key
			for _, a := range w.hot {
				if w.r.IntN(10) == 0 && a.Flow() == f.Flow {
					at = a.Key()
				}
			}
			page(fmt.Sprintf("ready(%d, %v, %v, %d, %d, %d)", id, f.Flow, at, limit, maxBytes, inline), func(s store.Store) ([]*store.Task, bool, error) {
				return s.Ready(ctx, id, f.Flow, at, limit, maxBytes, inline)
			})
		}
		until := w.time()
		page("due", func(s store.Store) ([]*store.Task, bool, error) {
			return s.Due(ctx, id, store.Key{}, until, limit, maxBytes, inline)
		})
		r, err := w.e.s.Recover(ctx, id)
		wr, wantErr := w.oracle.Recover(ctx, id)
		if err != nil || wantErr != nil {
			t.Fatal(what("recover"), err, wantErr)
		}
		equal("recovered partition", r.Partition, wr.Partition, nil, nil)
		equal("recovered functions", r.Functions, wr.Functions, nil, nil)
		sameRows(t, what("recorded"), r.Recorded, wr.Recorded)
		sameRows(t, what("cancels"), r.Cancels, wr.Cancels)
		if len(w.asked) > 0 {
			ask, tenant := w.asked[max(0, len(w.asked)-1-w.r.IntN(20))], w.name()
			q, err := w.e.s.Request(ctx, id, tenant, ask, w.now)
			wq, wantErr := w.oracle.Request(ctx, id, tenant, ask, w.now)
			equal("request", q, wq, err, wantErr)
		}
	}
	for range 3 {
		if len(w.known) > 0 {
			id := w.known[w.r.IntN(len(w.known))].ID
			got, err := w.e.s.Get(ctx, id)
			want, wantErr := w.oracle.Get(ctx, id)
			equal("get", err == nil, wantErr == nil, err, wantErr)
			same(t, what("get"), got, want)
		}
	}
	tenant, client := w.name(), fmt.Sprint("c", w.r.IntN(40))
	id, err := w.e.s.ByClientID(ctx, tenant, client)
	wantID, wantErr := w.oracle.ByClientID(ctx, tenant, client)
	equal("by client id", id, wantID, err, wantErr)
	f := store.Filter{Tenant: w.name()}
	if w.r.IntN(2) == 0 {
		f.Function = w.name()
	}
	if w.r.IntN(2) == 0 {
		f.State = task.State(w.r.IntN(9))
	}
	if w.r.IntN(3) == 0 {
		f.Label = w.name() + "=" + w.name()
	}
	switch w.r.IntN(3) {
	case 0:
		f.Live = true
	case 1:
		f.Finished = true
	}
	var at store.Cursor
	if len(w.known) > 0 && w.r.IntN(2) == 0 {
		k := w.known[w.r.IntN(len(w.known))]
		at = store.Cursor{CreatedAt: k.CreatedAt, ID: k.ID}
	}
	page(fmt.Sprintf("list(%+v, %v, %d)", f, at, limit), func(s store.Store) ([]*store.Task, bool, error) {
		return s.List(ctx, f, at, limit)
	})
}

func byFlow(fs []store.FlowStat) map[store.Flow]store.FlowStat {
	m := map[store.Flow]store.FlowStat{}
	for _, f := range fs {
		m[f.Flow] = f
	}
	return m
}
