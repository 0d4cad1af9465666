package task

import (
	"cmp"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
)

// ID names a task in the whole platform. It holds the partition and the partition's sequence
// number, so that a look-up by id needs no search, and random bits, so that ids can't be guessed:
//
//	byte 0..2  partition (24 bits)     3..8  sequence number (48 bits)     9..15  random (56 bits)
//
// Its text is 26 characters of lower-case base32 (RFC 4648 alphabet without padding).
type ID [16]byte

// Largest values that fit an ID.
const (
	MaxPartition = 1<<24 - 1
	MaxSeq       = 1<<48 - 1
)

// lower keeps the order of the bytes: its alphabet is ascending in ASCII.
var lower = base32.NewEncoding("234567abcdefghijklmnopqrstuvwxyz").WithPadding(base32.NoPadding)

// ErrBadID says that a text is no task id.
var ErrBadID = errors.New("not a task id (26 characters of a-z and 2-7)")

// NewID builds an id. Of random only the low 56 bits are used.
func NewID(partition uint32, seq, random uint64) ID {
	var id ID
	binary.BigEndian.PutUint64(id[8:], random)
	id[0], id[1], id[2] = byte(partition>>16), byte(partition>>8), byte(partition)
	id[3], id[4], id[5] = byte(seq>>40), byte(seq>>32), byte(seq>>24)
	id[6], id[7], id[8] = byte(seq>>16), byte(seq>>8), byte(seq)
	return id
}

// Partition returns the partition that holds the task, for its whole life.
func (id ID) Partition() uint32 {
	return uint32(id[0])<<16 | uint32(id[1])<<8 | uint32(id[2])
}

// Seq returns the task's number in its partition. Owners give it in commit order, from 1.
func (id ID) Seq() uint64 {
	return uint64(id[3])<<40 | uint64(id[4])<<32 | uint64(id[5])<<24 | uint64(id[6])<<16 | uint64(id[7])<<8 | uint64(id[8])
}

// IsZero reports whether id is the zero value, which names no task.
func (id ID) IsZero() bool { return id == ID{} }

// Compare orders ids by their bytes, as their texts are ordered.
func (id ID) Compare(o ID) int {
	if c := cmp.Compare(binary.BigEndian.Uint64(id[:8]), binary.BigEndian.Uint64(o[:8])); c != 0 {
		return c
	}
	return cmp.Compare(binary.BigEndian.Uint64(id[8:]), binary.BigEndian.Uint64(o[8:]))
}

func (id ID) String() string { return lower.EncodeToString(id[:]) }

// ParseID reads the text of an id. Its error is ErrBadID.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) != 26 {
		return id, ErrBadID
	}
	if _, err := lower.Decode(id[:], []byte(s)); err != nil || id.String() != s {
		return ID{}, ErrBadID
	}
	return id, nil
}

// IDFromBytes reads the 16 bytes of an id. Its error is ErrBadID.
func IDFromBytes(b []byte) (ID, error) {
	if len(b) != len(ID{}) {
		return ID{}, ErrBadID
	}
	return ID(b), nil
}

// Token is the fencing token of one push: the epoch of the owner that made it and the number of
// the push within that epoch. It only grows for a task. No two pushes share one.
type Token struct {
	Epoch uint64
	Push  uint64
}

// IsZero reports whether t is the zero value, which no push has.
func (t Token) IsZero() bool { return t == Token{} }

// Compare orders tokens by epoch, then push number.
func (t Token) Compare(o Token) int {
	if c := cmp.Compare(t.Epoch, o.Epoch); c != 0 {
		return c
	}
	return cmp.Compare(t.Push, o.Push)
}

// After reports whether t is newer than o.
func (t Token) After(o Token) bool { return t.Compare(o) > 0 }

// String returns the token as text whose byte order is the order of tokens, so that a downstream
// can compare it as a string.
func (t Token) String() string { return fmt.Sprintf("%010x-%012x", t.Epoch, t.Push) }

// ParseToken reads what String wrote.
func ParseToken(s string) (Token, error) {
	var t Token
	if n, err := fmt.Sscanf(s, "%10x-%12x", &t.Epoch, &t.Push); err != nil || n != 2 || t.String() != s {
		return Token{}, fmt.Errorf("%q is not a token", s)
	}
	return t, nil
}
