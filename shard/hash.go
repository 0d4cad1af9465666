package shard

import "strconv"

// hash is FNV-1a over the parts, each followed by a zero byte, finished by splitmix64. FNV alone
// leaves neighbours ("p1", "p2") correlated in the high bits that rendezvous compares; the finisher
// cures that. Frozen: see testdata/golden.txt.
type hash uint64

const newHash hash = 14695981039346656037

func (h hash) str(s string) hash {
	for i := range len(s) {
		h = (h ^ hash(s[i])) * 1099511628211
	}
	return h * 1099511628211 // the zero byte: h ^ 0 = h
}

func (h hash) num(n uint32) hash {
	var buf [10]byte
	for _, c := range strconv.AppendUint(buf[:0], uint64(n), 10) {
		h = (h ^ hash(c)) * 1099511628211
	}
	return h * 1099511628211
}

func (h hash) sum() uint64 {
	x := uint64(h) + 0x9e3779b97f4a7c15
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	x ^= x >> 31
	return x
}
