package pgstore

import (
	"bytes"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// idField is how the id starts in the form that store.Encode writes: field 1, 16 bytes, and first. A hot
// row has a column for it, so that its body goes without (store.EncodeKeyed): 18 of 90 bytes.
var idField = []byte{1<<3 | 2, 16}

const idLen = 2 + 16

// row is a hot one that a query returns, up to the next one. The queries name its columns: id, body, sort if it is plain.
type row struct {
	id      [16]byte
	body    pgtype.DriverBytes // the connection's memory
	sort    *int64
	payload pgtype.DriverBytes
}

// task decodes the row with its payload, if the query returned one. It keeps nothing of the row.
func (r *row) task() (*store.Task, error) {
	b := make([]byte, 0, idLen+len(r.body))
	t, err := store.Decode(append(append(append(b, idField...), r.id[:]...), r.body...))
	if err != nil {
		return nil, err
	}
	if r.sort != nil {
		t.CreatedAt = time.UnixMicro(*r.sort - plainAge).UTC()
		t.DueAt, t.FirstDueAt = t.CreatedAt, t.CreatedAt
	}
	if len(r.payload) > 0 {
		t.Payload = bytes.Clone(r.payload)
	}
	return t, nil
}

// collect decodes the hot rows that a query returns, without payloads.
func collect(rows pgx.Rows) (ts []*store.Task, err error) {
	var r row
	_, err = pgx.ForEachRow(rows, []any{&r.id, &r.body, &r.sort}, func() error {
		t, err := r.task()
		ts = append(ts, t)
		return err
	})
	return ts, err
}

// collectPacks decodes the tasks in the packs that a query returns.
func collectPacks(rows pgx.Rows, want func(*store.Task) bool) (ts []*store.Task, err error) {
	var body pgtype.DriverBytes
	_, err = pgx.ForEachRow(rows, []any{&body}, func() error {
		return unpack(body, func(t *store.Task) error {
			if want(t) {
				ts = append(ts, t)
			}
			return nil
		})
	})
	return ts, err
}

// wanted is a set of ids.
func wanted(ids []task.ID) map[task.ID]bool {
	set := make(map[task.ID]bool, len(ids))
	for _, id := range ids {
		set[id] = true
	}
	return set
}
