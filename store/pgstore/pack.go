package pgstore

import (
	"encoding/binary"
	"errors"
	"math/bits"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// A pack is the stored form of tasks that ended together: a row of history. Each task is its message (store.Encode) as the
// difference to the one before it: they share names, most bytes of times, and the shape. A hundred and fifty bytes
// become twenty to sixty, and need no index entries of their own.
//
//	pack:  task…
//	task:  length of the message; until it is complete: step, bytes as they are
//	step:  a byte: 3 bits, how many bytes come as they are; 1 bit, the shift changes; 4 bits, how many bytes before them are those
//	       of the message before, from here + shift. Where the bits are all set, what is over comes as a number, in this
//	       order; then the shift, if it changes.
//
// Numbers are varints, the shift is signed (zig-zag). It starts with 0.

// Limits of a pack.
const (
	packTasks = 64
	fewTasks  = 7    // so many are not worth a pack: a look-up reads those of its block, which are at most 128 then
	packBytes = 7000 // a row that stays in its page, but for a task that is larger alone
)

// packSpan bounds how far apart the times of submission in a pack are, as a power of two of microseconds: a list reads
// packs by their newest task, so what straddles its cursor is of one such span.
const packSpan = 17

// packKey says which tasks may be in one pack.
type packKey struct {
	flow  *flow // so tenant and function are the same
	state task.State
	block int64
	span  int64
}

// pack is one in the making. Its memory is used again.
type pack struct {
	packKey
	n              int
	first          [fewTasks]*store.Task
	newest, oldest int64
	mask           uint64
	keyed, move    bool
	id             task.ID // of what must be alone; zero: the pack may grow
	payload        []byte
	b              []byte // as it will be stored
	last           []byte // the last message
}

func (p *pack) reset(k packKey) {
	*p = pack{packKey: k, b: p.b[:0], last: p.last[:0]}
}

// add appends a task's message, which it copies.
func (p *pack) add(t *store.Task, message []byte) {
	created := t.CreatedAt.UnixMicro()
	if p.n == 0 {
		p.newest, p.oldest = created, created
	}
	if p.n < len(p.first) {
		p.first[p.n] = t
	}
	p.newest, p.oldest = max(p.newest, created), min(p.oldest, created)
	p.n++
	p.mask |= maskOf(t.ID)
	p.keyed = p.keyed || t.ClientID != ""
	p.b = appendDifference(binary.AppendUvarint(p.b, uint64(len(message))), p.last, message)
	p.last = append(p.last[:0], message...)
}

// full says that a task with a message of this size goes into another pack.
func (p *pack) full(size int) bool {
	return p.n >= packTasks || !p.id.IsZero() || len(p.b)+size > packBytes
}

var errPack = errors.New("decode a pack: it is damaged")

// unpack calls f with each task of a pack. Tasks share memory of their own.
func unpack(b []byte, f func(*store.Task) error) error {
	var last []byte
	for len(b) > 0 {
		size, n := binary.Uvarint(b)
		if n <= 0 || size > 1<<30 {
			return errPack
		}
		message, rest, err := applyDifference(last, b[n:], int(size))
		if err != nil {
			return err
		}
		t, err := store.Decode(message)
		if err != nil {
			return err
		}
		if err := f(t); err != nil {
			return err
		}
		last, b = message, rest
	}
	return nil
}

const (
	minCopy  = 2  // a shorter one saves nothing
	maxShift = 12 // how far a varint or a text that grew moves what follows
	maxLit   = 7  // what a step says in its byte
	maxCopy  = 15
)

// appendDifference appends what makes cur from prev.
func appendDifference(dst, prev, cur []byte) []byte {
	shift, last := 0, 0
	for i := 0; i < len(cur); {
		from := i + common(prev, i+shift, cur[i:])
		end, next := from, shift
		for end < len(cur) && common(prev, end+shift, cur[end:]) < minCopy {
			if run := end - from; run >= 8 && run%4 == 0 { // longer than what is random in an id
				if s, ok := realign(prev, cur[end:], end, shift); ok {
					next = s
					break
				}
			}
			end++
		}
		dst = appendStep(dst, from-i, shift, shift != last, cur[from:end])
		i, last, shift = end, shift, next
	}
	return dst
}

func appendStep(dst []byte, n, shift int, moved bool, lit []byte) []byte {
	step := byte(min(len(lit), maxLit)<<5 | min(n, maxCopy))
	if moved {
		step |= 1 << 4
	}
	dst = append(dst, step)
	if len(lit) >= maxLit {
		dst = binary.AppendUvarint(dst, uint64(len(lit)-maxLit))
	}
	if n >= maxCopy {
		dst = binary.AppendUvarint(dst, uint64(n-maxCopy))
	}
	if moved {
		dst = binary.AppendVarint(dst, int64(shift))
	}
	return append(dst, lit...)
}

// realign looks for another shift under which what follows is the same.
func realign(prev, rest []byte, i, shift int) (best int, ok bool) {
	for d := 1; d <= maxShift; d++ {
		n := 0
		for _, s := range [2]int{shift + d, shift - d} {
			if m := common(prev, i+s, rest); m > n && m >= 10 {
				best, n = s, m
			}
		}
		if n > 0 {
			return best, true
		}
	}
	return 0, false
}

// common returns how many bytes of cur are in prev from at on.
func common(prev []byte, at int, cur []byte) (n int) {
	if at < 0 || at >= len(prev) {
		return 0
	}
	prev = prev[at:]
	for len(prev)-n >= 8 && len(cur)-n >= 8 {
		if x := binary.LittleEndian.Uint64(prev[n:]) ^ binary.LittleEndian.Uint64(cur[n:]); x != 0 {
			return n + bits.TrailingZeros64(x)/8
		}
		n += 8
	}
	for n < len(prev) && n < len(cur) && prev[n] == cur[n] {
		n++
	}
	return n
}

// applyDifference is the inverse of appendDifference, for a message of a size; it returns what follows in b.
func applyDifference(prev, b []byte, size int) (cur, rest []byte, err error) {
	if size > len(b)*(len(prev)+1)+len(prev) {
		return nil, nil, errPack // no difference of this length makes that much
	}
	cur = make([]byte, 0, size)
	bad := false
	number := func() uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > 1<<30 {
			bad = true
			return 0
		}
		b = b[n:]
		return v
	}
	for shift := 0; len(cur) < size; {
		if len(b) == 0 {
			return nil, nil, errPack
		}
		step := b[0]
		b = b[1:]
		lit, n := int(step>>5), int(step&maxCopy)
		if lit == maxLit {
			lit += int(number())
		}
		if n == maxCopy {
			n += int(number())
		}
		if step&(1<<4) != 0 {
			v := number()
			shift = int(v>>1) ^ -int(v&1) // as binary.AppendVarint has it
		}
		at := len(cur) + shift
		if bad || n > 0 && (at < 0 || n > len(prev)-at) || lit > len(b) || n+lit == 0 || n+lit > size-len(cur) {
			return nil, nil, errPack
		}
		if n > 0 {
			cur = append(cur, prev[at:at+n]...)
		}
		cur, b = append(cur, b[:lit]...), b[lit:]
	}
	return cur, b, nil
}
