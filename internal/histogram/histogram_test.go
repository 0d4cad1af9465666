package histogram_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/histogram"
)

// Against sorting: quantiles of values over nine decades are never too low and at most 1.6 % too high.
func TestQuantilesAgainstSorting(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var h histogram.Histogram
	var all []time.Duration
	for range 20_000 {
		d := time.Duration(rng.Uint64() >> (1 + rng.IntN(62)))
		all = append(all, d)
		h.Record(d)
	}
	slices.Sort(all)
	for _, q := range []float64{0, 0.001, 0.25, 0.5, 0.9, 0.99, 0.999, 1} {
		exact := all[min(max(int(q*float64(len(all))+0.5), 1), len(all))-1]
		got := h.Quantile(q)
		if got < exact || float64(got) > float64(exact)*1.016+1 {
			t.Errorf("q %v: %d, exactly %d", q, got, exact)
		}
	}
	if h.Max() != all[len(all)-1] || h.Quantile(1) != h.Max() || h.Count() != int64(len(all)) {
		t.Errorf("max %v, count %d", h.Max(), h.Count())
	}
}

func TestEdges(t *testing.T) {
	var h histogram.Histogram
	if h.Quantile(0.5) != 0 || h.Max() != 0 {
		t.Error("empty is not 0")
	}
	h.Record(-time.Second)
	h.Record(1<<63 - 1)
	if h.Quantile(0.5) != 0 || h.Quantile(1) != 1<<63-1 {
		t.Errorf("%v, %v", h.Quantile(0.5), h.Quantile(1))
	}
}

func TestConcurrentRecords(t *testing.T) {
	var h histogram.Histogram
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 1000 {
				h.Record(time.Duration(i*1000 + j))
			}
		})
	}
	wg.Wait()
	if h.Count() != 8000 || h.Max() != 7999 {
		t.Errorf("count %d, max %v", h.Count(), h.Max())
	}
}

func TestAdd(t *testing.T) {
	var a, b, all histogram.Histogram
	for i := range 1000 {
		d := time.Duration(i*i) * time.Microsecond
		all.Record(d)
		if i%3 == 0 {
			a.Record(d)
		} else {
			b.Record(d)
		}
	}
	a.Add(&b)
	if a.Count() != all.Count() || a.Max() != all.Max() || a.Quantile(0.9) != all.Quantile(0.9) {
		t.Errorf("%d values, at most %v, want %d, %v", a.Count(), a.Max(), all.Count(), all.Max())
	}
}
