package pgstore

import (
	"bytes"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// idField is how the id starts in the form that store.Encode writes: field 1, 16 bytes, and first. A
// row has a column for it, so that body goes without: 18 of 90 bytes.
var idField = []byte{1<<3 | 2, 16}

const idLen = 2 + 16

// encode appends a row's body: with the result, without payload and id.
func encode(dst []byte, t *store.Task) []byte {
	at := len(dst)
	if t.State.Terminal() && len(t.Result) > 0 {
		u := *t
		u.Payload = nil
		dst = store.Encode(dst, &u)
	} else {
		dst = store.EncodeBare(dst, t)
	}
	if bytes.HasPrefix(dst[at:], idField) {
		dst = append(dst[:at], dst[at+idLen:]...)
	}
	return dst
}

// decode reads what encode wrote. It keeps nothing of body.
func decode(id task.ID, body []byte) (*store.Task, error) {
	b := make([]byte, 0, idLen+len(body))
	b = append(append(append(b, idField...), id[:]...), body...)
	return store.Decode(b)
}

// row is one that a query returns, up to the next one.
type row struct {
	id            [16]byte
	body, payload pgtype.DriverBytes // the connection's memory
}

// task decodes the row with its payload, if the query returned one.
func (r *row) task() (*store.Task, error) {
	t, err := decode(r.id, r.body)
	if err == nil && len(r.payload) > 0 {
		t.Payload = bytes.Clone(r.payload)
	}
	return t, err
}

// collect decodes the ids and bodies that a query returns.
func collect(rows pgx.Rows) (ts []*store.Task, err error) {
	var r row
	_, err = pgx.ForEachRow(rows, []any{&r.id, &r.body}, func() error {
		t, err := r.task()
		ts = append(ts, t)
		return err
	})
	return ts, err
}
