package grpcx

import "testing"

// What is lent is as long as was asked for and belongs to one borrower; what comes back is lent again for whatever fits it.
func TestBuffers(t *testing.T) {
	var p buffers
	for _, n := range []int{0, 1, 1023, 1024, 1025, 250_000, 1 << 20, 1<<22 - 1, 1 << 22, 1<<22 + 1} {
		a, b := p.Get(n), p.Get(n)
		if len(*a) != n || len(*b) != n {
			t.Fatalf("asked for %d bytes, got %d and %d", n, len(*a), len(*b))
		}
		if n > 0 && &(*a)[0] == &(*b)[0] {
			t.Fatalf("one buffer of %d bytes was lent twice", n)
		}
		p.Put(a)
		p.Put(b)
		if c := p.Get(n); len(*c) != n {
			t.Fatalf("asked for %d bytes once more, got %d", n, len(*c))
		}
	}
	odd := make([]byte, 3000) // of no power of two: good for 2,048
	p.Put(&odd)
	for range 4 {
		if b := p.Get(4096); len(*b) != 4096 {
			t.Fatalf("asked for 4096 bytes, got %d", len(*b))
		}
	}
}
