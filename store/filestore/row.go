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
//	flags (1 byte)   length of the task (uvarint)   task (store.Encode, without payload and result)
//	length of the payload (uvarint)   payload   result
//
// so that what is small is one read, and the payload can be left alone without decoding the task.
const (
	payloadApart = 1 << iota // the payload is under its own key
	resultApart
)

var errBadRow = errors.New("a row that this version can't read")

// appendForm appends a row's stored form. Payload and result are given apart; above blobMin they
// are only noted.
func appendForm(dst, scratch []byte, t *store.Task, payload, result []byte, payloadElsewhere bool) (form, tmp []byte) {
	bare := *t
	bare.Payload, bare.Result = nil, nil
	scratch = store.Encode(scratch[:0], &bare)
	var flags byte
	if payloadElsewhere || len(payload) > blobMin {
		flags |= payloadApart
		payload = nil
	}
	if len(result) > blobMin {
		flags |= resultApart
		result = nil
	}
	dst = binary.AppendUvarint(append(dst, flags), uint64(len(scratch)))
	dst = append(dst, scratch...)
	dst = binary.AppendUvarint(dst, uint64(len(payload)))
	dst = append(append(dst, payload...), result...)
	return dst, scratch
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
	n, w := binary.Uvarint(v)
	if w <= 0 || n > uint64(len(v)-w) {
		return nil, nil, errBadRow
	}
	return v[w : w+int(n)], v[w+int(n):], nil
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
