package pgstore

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// maxTries bounds how often a commit is sent that the server refused for a reason that passes: a
// client id or a partition that somebody else holds at the moment.
const maxTries = 5

// Commit implements store.Store. The context does not cut it short: its outcome would be unknown.
func (s *Store) Commit(ctx context.Context, b *store.Batch) ([]store.PartResult, error) {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	if err := s.tooLarge(); err != nil && hasInserts(b) {
		return nil, fmt.Errorf("commit: %w", err)
	}
	s.commits(b)
	defer s.commits(nil)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.CommitTimeout)
	defer cancel()
	rs := make([]store.PartResult, len(b.Parts))
	w := &s.writer
	if s.acquired.Swap(false) {
		w.forget()
	}
	live := make([]int, 0, len(b.Parts)) // indexes of what is not fenced
	for i := range b.Parts {
		if b.Parts[i].Epoch == 0 {
			rs[i].Err = fenced(&b.Parts[i])
		} else {
			live = append(live, i)
		}
	}
	for try := 1; len(live) > 0; {
		w.live = w.live[:0]
		for _, i := range live {
			w.live = append(w.live, &b.Parts[i])
		}
		if err := w.load(b.At); err != nil {
			return nil, fmt.Errorf("commit: %w", err)
		}
		a, err := s.send(ctx, day(b.At))
		if err != nil {
			if again(err) && try < maxTries {
				try++
				continue
			}
			return nil, fmt.Errorf("commit: %w", classifyCommit(err))
		}
		left := live[:0]
		for i, at := range live {
			if a.ok[i] {
				left = append(left, at)
			} else {
				rs[at].Err = fenced(&b.Parts[at])
			}
		}
		if len(left) < len(a.ok) {
			live = left // nothing was stored yet
			continue
		}
		w.stored()
		if err := s.existing(ctx, a, live, rs); err != nil {
			return nil, fmt.Errorf("read what holds a client id: %w: %v", store.ErrUnknown, err) // the commit is stored
		}
		return rs, nil
	}
	return rs, nil
}

// commits notes which partitions the commit under way names; nil: there is none.
func (s *Store) commits(b *store.Batch) {
	s.partsMu.Lock()
	defer s.partsMu.Unlock()
	s.parts = s.parts[:0]
	if b != nil {
		for i := range b.Parts {
			s.parts = append(s.parts, b.Parts[i].Partition)
		}
	}
}

// committing reports whether the commit under way names a partition.
func (s *Store) committing(partition uint32) bool {
	s.partsMu.Lock()
	defer s.partsMu.Unlock()
	return slices.Contains(s.parts, partition)
}

func fenced(p *store.Part) error {
	return fmt.Errorf("commit to partition %d under epoch %d: %w", p.Partition, p.Epoch, store.ErrFenced)
}

// again says that the server refused a commit, so that nothing was stored, for what may have passed.
func again(err error) bool {
	switch code(err) {
	case codeLockNotAvailable, codeDeadlock, codeSerialization, codeNoPartitionForRow:
		return true
	}
	return false
}

// answer is what commit_v1 returns.
type answer struct {
	ok      []bool    // by live part; if any is false, nothing was stored
	refused []int32   // inserts whose client id was taken, by place in writer.keyed, from 1
	holders []task.ID // the tasks that hold them; zero: somebody is taking it at the moment
}

var commitSQL string

func init() {
	var c columns
	c.init()
	var b strings.Builder
	b.WriteString("SELECT ok, refused, holders FROM headrace.commit_v1(")
	for i := range c.all {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("$" + strconv.Itoa(i+1))
	}
	b.WriteByte(')')
	commitSQL = b.String()
	h := fnv.New64a()
	h.Write([]byte(commitSQL))
	commitName = fmt.Sprintf("headrace_commit_%016x", h.Sum64())
}

// send sends what the writer has loaded.
func (s *Store) send(ctx context.Context, today int32) (*answer, error) {
	c := &s.writer.columns
	if c.hID.n > 0 {
		if err := s.ensureDay(ctx, today); err != nil {
			return nil, notSent(fmt.Errorf("make day %d of history: %w", today, err))
		}
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, notSent(fmt.Errorf("connect: %w", err))
	}
	defer conn.Release()
	r := s.execCommit(ctx, conn, c.params(today))
	if r.Err != nil {
		if code(r.Err) == codeNoPartitionForRow {
			clear(s.writer.days)
		}
		return nil, r.Err
	}
	if len(r.Rows) != 1 || len(r.Rows[0]) != 3 {
		return nil, fmt.Errorf("commit_v1 returned %d rows: %w", len(r.Rows), store.ErrUnknown)
	}
	a, row, types := new(answer), r.Rows[0], conn.Conn().TypeMap()
	var holders [][16]byte
	for i, dst := range []any{&a.ok, &a.refused, &holders} {
		oid := []uint32{oidBools, oidInt4s, oidUUIDs}[i]
		if err := types.Scan(oid, pgtype.BinaryFormatCode, row[i], dst); err != nil {
			return nil, fmt.Errorf("answer of commit_v1: %w: %w", err, store.ErrUnknown)
		}
	}
	for _, h := range holders {
		a.holders = append(a.holders, h)
	}
	return a, nil
}

// existing adds the holders of refused client ids to the answers.
func (s *Store) existing(ctx context.Context, a *answer, live []int, rs []store.PartResult) error {
	if len(a.refused) == 0 {
		return nil
	}
	w := &s.writer
	var ask []task.ID
	for _, id := range a.holders {
		if _, here := w.index[id]; !here && !id.IsZero() {
			ask = append(ask, id)
		}
	}
	stored, err := s.bare(ctx, ask)
	if err != nil {
		return err
	}
	for i, k := range a.refused {
		n := &w.effects[w.keyed[k-1]]
		if a.holders[i].IsZero() {
			r := &rs[live[n.part]]
			if r.Busy == nil {
				r.Busy = map[int]bool{}
			}
			r.Busy[n.at] = true
			continue
		}
		holder := stored[a.holders[i]]
		if _, here := w.index[a.holders[i]]; here {
			if holder, err = w.holder(a.holders[i], n.part, n.at); err != nil {
				return err
			}
		}
		if holder == nil { // purged a moment ago: its id is all there is
			holder = &store.Task{ID: a.holders[i], Tenant: n.first.Task.Tenant, ClientID: n.first.Task.ClientID}
		}
		r := &rs[live[n.part]]
		if r.Existing == nil {
			r.Existing = map[int]*store.Task{}
		}
		r.Existing[n.at] = holder
	}
	return nil
}

// holder returns a task of this batch as it was before a change of the batch.
func (w *writer) holder(id task.ID, part, at int) (*store.Task, error) {
	var found *store.Task
	for i := range w.live {
		for j := range w.live[i].Changes {
			ch := &w.live[i].Changes[j]
			before := i < part || i == part && j < at
			switch {
			case ch.Task == nil || ch.Task.ID != id:
			case before:
				found = ch.Task
			case found == nil:
				found = ch.Old
			}
		}
	}
	if found == nil {
		return nil, nil
	}
	t := *found
	t.Payload, t.Result = nil, nil
	return store.Decode(store.Encode(nil, &t)) // as it will be read
}

// bare reads tasks without payloads and results. What is not there is left out.
func (s *Store) bare(ctx context.Context, ids []task.ID) (map[task.ID]*store.Task, error) {
	found := make(map[task.ID]*store.Task, len(ids))
	if len(ids) == 0 {
		return found, nil
	}
	take := func(ts []*store.Task, err error) error {
		for _, t := range ts {
			t.Result = nil
			found[t.ID] = t
		}
		return err
	}
	err := s.read(ctx, "BareHot", []any{ids}, func(rows pgx.Rows) error { return take(collect(rows)) })
	if err != nil {
		return nil, err
	}
	var partitions, blocks, packs, masks []int64
	var soles []int16
	var left []task.ID
	for _, id := range ids {
		if found[id] == nil {
			left = append(left, id)
			partitions = append(partitions, int64(id.Partition()))
			blocks = append(blocks, int64(id.Seq()>>blockBits))
			packs = append(packs, blockOf(id))
			soles = append(soles, soleOf(id))
			masks = append(masks, int64(maskOf(id)))
		}
	}
	if len(left) == 0 {
		return found, nil
	}
	return found, s.read(ctx, "BareHistory", []any{partitions, blocks, packs, soles, masks}, func(rows pgx.Rows) error {
		asked := wanted(left)
		return take(collectPacks(rows, func(t *store.Task) bool { return asked[t.ID] }))
	})
}
