package grpcx

import (
	"math/bits"
	"sync"
)

// buffers is a pool of buffers by powers of two. gRPC's own clears what it lends, all of it, and its sizes are so far
// apart that a message of 250 KB gets a megabyte cleared: the codec writes every byte of the length that it asks for.
type buffers struct {
	sizes [maxPooled - minPooled + 1]sync.Pool // of *[]byte of at least that power of two
}

// What is pooled, as powers of two of bytes. Larger buffers are left to the collector: they are rare.
const (
	minPooled = 10
	maxPooled = 22
)

// Get implements mem.BufferPool. What is in the buffer is anything.
func (p *buffers) Get(length int) *[]byte {
	n := max(bits.Len(uint(max(length, 1)-1)), minPooled)
	if n > maxPooled {
		b := make([]byte, length)
		return &b
	}
	if b, ok := p.sizes[n-minPooled].Get().(*[]byte); ok {
		*b = (*b)[:length]
		return b
	}
	b := make([]byte, length, 1<<n)
	return &b
}

// Put implements mem.BufferPool.
func (p *buffers) Put(b *[]byte) {
	if n := bits.Len(uint(cap(*b))) - 1; n >= minPooled && n <= maxPooled {
		p.sizes[n-minPooled].Put(b)
	}
}
