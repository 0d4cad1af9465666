package filestore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// blobMin is the size in bytes above which a payload or result has a key of its own: a retry then
// does not write it again, and a refill or a list does not read it.
const blobMin = 4 << 10

// A row is stored as
//
//	flags (1 byte)   length of the task (4 bytes)   task (store.EncodeBare)
//	length of the payload (4 bytes)   payload   result
//
// so that what is small is one read, and the payload can be left alone without decoding the task.
const (
	payloadApart = 1 << iota // the payload is under its own key
	resultApart
)

var errBadRow = errors.New("a row that this version can't read")

// appendForm appends a row's stored form. Payload and result above blobMin are only noted.
func appendForm(dst []byte, t *store.Task, payload, result []byte, payloadElsewhere bool) []byte {
	var flags byte
	if payloadElsewhere || len(payload) > blobMin {
		flags |= payloadApart
		payload = nil
	}
	if len(result) > blobMin {
		flags |= resultApart
		result = nil
	}
	at := len(dst) + 1
	dst = store.EncodeBare(append(dst, flags, 0, 0, 0, 0), t)
	binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(payload)))
	return append(append(dst, payload...), result...)
}

// form is a stored row taken apart. Its slices lie in the engine's memory.
type form struct {
	flags                 byte
	task, payload, result []byte
}

func readForm(v []byte) (f form, err error) {
	if len(v) == 0 {
		return f, errBadRow
	}
	f.flags, v = v[0], v[1:]
	if f.task, v, err = cutBytes(v); err != nil {
		return f, err
	}
	f.payload, f.result, err = cutBytes(v)
	return f, err
}

func cutBytes(v []byte) (b, rest []byte, err error) {
	if len(v) < 4 || int(binary.BigEndian.Uint32(v)) > len(v)-4 {
		return nil, nil, errBadRow
	}
	n := binary.BigEndian.Uint32(v) + 4
	return v[4:n], v[n:], nil
}

// want says how much of a row to load.
type want struct {
	inline int  // payloads above are left out; -1: all are
	result bool // false: it is left out
}

var (
	whole = want{inline: int(^uint(0) >> 1), result: true}
	bare  = want{inline: -1}
)

// load reads the row of a key. Errors: store.ErrNotFound.
func load(r pebble.Reader, key []byte, w want) (*store.Task, error) {
	v, closer, err := r.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, store.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	defer closer.Close()
	return decode(r, v, w)
}

// decode reads a stored row, and from r what is not in it. It keeps nothing of v.
func decode(r pebble.Reader, v []byte, w want) (*store.Task, error) {
	f, err := readForm(v)
	if err != nil {
		return nil, err
	}
	t, err := store.Decode(slices.Clone(f.task))
	if err != nil {
		return nil, err
	}
	if t.PayloadSize <= w.inline {
		if t.Payload, err = f.part(r, t.ID, payloadApart, f.payload, payloadBlob); err != nil {
			return nil, err
		}
	}
	if w.result {
		if t.Result, err = f.part(r, t.ID, resultApart, f.result, resultBlob); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// part returns a copy of the payload or the result.
func (f *form) part(r pebble.Reader, id task.ID, apart byte, here []byte, kind byte) ([]byte, error) {
	if f.flags&apart == 0 {
		return append([]byte(nil), here...), nil // nil if it is empty
	}
	v, closer, err := r.Get(append(appendRow(nil, blobSpace, id), kind))
	if err != nil {
		return nil, fmt.Errorf("bytes of task %s: %w", id, err)
	}
	defer closer.Close()
	return slices.Clone(v), nil
}
