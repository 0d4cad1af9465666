package shard

import (
	"cmp"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "rewrite testdata: a changed hash reshuffles every tenant")

// catalogue returns n partitions, number i in zone i mod zones.
func catalogue(n, zones int) []Partition {
	ps := make([]Partition, n)
	for i := range ps {
		ps[i] = Partition{ID: uint32(i), Zone: fmt.Sprintf("z%d", i%zones)}
	}
	return ps
}

func tenantKey(i int) Key { return Key{Secret: "s", Tenant: fmt.Sprintf("tenant-%d", i)} }

// The hash and the interleaving give the published vectors of the simulation that the design rests on.
func TestPublishedVectors(t *testing.T) {
	if got := newHash.str("a").str("b").sum(); got != 0xdda5d2bfdb6b35a9 {
		t.Errorf(`hash("a","b") = %#x`, got)
	}
	for tenant, want := range map[string]string{
		"tenant-0": "q0055 q0060 q0029 q0042 q0051 q0004 q0013 q0038",
		"tenant-1": "q0051 q0018 q0028 q0057 q0043 q0022 q0052 q0033",
		"acme":     "q0002 q0037 q0000 q0063 q0006 q0029 q0024 q0023",
		"租户甲":      "q0052 q0058 q0011 q0009 q0008 q0026 q0059 q0025",
	} {
		id := func(i int) string { return fmt.Sprintf("q%04d", i) }
		base := newHash.str(tenant)
		order := interleave(64,
			func(i int) string { return fmt.Sprintf("z%d", i%4) },
			func(z string) uint64 { return base.str("z").str(z).sum() },
			func(i, j int) int { return cmp.Compare(base.str("p").str(id(j)).sum(), base.str("p").str(id(i)).sum()) })
		var got []string
		for _, i := range order[:8] {
			got = append(got, id(i))
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s: %s, want %s", tenant, s, want)
		}
	}
}

// What a tenant's shard is today it is for ever: the file is frozen.
func TestGolden(t *testing.T) {
	var b strings.Builder
	for _, tenant := range []string{"default", "tenant-0", "tenant-1", "acme", "租户甲"} {
		for _, salt := range []uint32{0, 7} {
			key := Key{Secret: "golden", Tenant: tenant, Salt: salt}
			fmt.Fprintf(&b, "shard %s salt=%d 64/4 %v\n", tenant, salt, Choose(key, catalogue(64, 4), 8))
			fmt.Fprintf(&b, "shard %s salt=%d 8/1 %v\n", tenant, salt, Choose(key, catalogue(8, 1), 4))
		}
	}
	for i := range 8 {
		id := fmt.Sprintf("request-%d", i)
		p, q, _ := Candidates(id, []uint32{0, 1, 2, 3, 4, 5, 6, 7})
		fmt.Fprintf(&b, "candidates %s %d %d\n", id, p, q)
	}
	const file = "testdata/golden.txt"
	if *rewrite {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("differs from %s; now:\n%s", file, b.String())
	}
}

// A shard does not depend on the catalogue's order, has no duplicates, is a prefix of the next larger
// one and spreads over zones evenly.
func TestShardShape(t *testing.T) {
	ps := catalogue(64, 4)
	shuffled := slices.Clone(ps)
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	for i := range 300 {
		whole := Choose(tenantKey(i), ps, 100)
		if len(whole) != 64 || len(slices.Compact(slices.Sorted(slices.Values(whole)))) != 64 {
			t.Fatalf("tenant %d: %v is no permutation of all", i, whole)
		}
		for k := range 16 {
			s := Choose(tenantKey(i), shuffled, k)
			if !slices.Equal(s, whole[:k]) {
				t.Fatalf("tenant %d, k=%d: %v is no prefix of %v", i, k, s, whole)
			}
			zones := [4]int{}
			for _, p := range s {
				zones[p%4]++
			}
			if slices.Max(zones[:])-slices.Min(zones[:]) > 1 {
				t.Fatalf("tenant %d, k=%d: zones hold %v", i, k, zones)
			}
		}
	}
}

func changed(a, b []uint32) (n int) {
	for _, p := range b {
		if !slices.Contains(a, p) {
			n++
		}
	}
	return n
}

// One more partition changes at most one member and it is the new one; about 1/65 of the slots in all.
// One less changes only its holders, by one.
func TestShardMovesLittle(t *testing.T) {
	const tenants, k = 5000, 4
	ps := catalogue(64, 4)
	more := append(slices.Clone(ps), Partition{ID: 64, Zone: "z0"})
	slots, load := 0, make([]float64, 64)
	for i := range tenants {
		now := Choose(tenantKey(i), ps, k)
		for _, p := range now {
			load[p]++
		}
		next := Choose(tenantKey(i), more, k)
		n := changed(now, next)
		if n > 1 || n == 1 && !slices.Contains(next, 64) {
			t.Fatalf("tenant %d: %v became %v for one more partition", i, now, next)
		}
		slots += n
		less := Choose(tenantKey(i), ps[1:], k)
		want := 0
		if slices.Contains(now, 0) {
			want = 1
		}
		if n := changed(now, less); n != want {
			t.Fatalf("tenant %d: %v became %v without partition 0", i, now, less)
		}
	}
	if share := float64(slots) / (tenants * k); share < .008 || share > .022 {
		t.Errorf("one more partition moves %.4f of the slots, want about 1/65", share)
	}
	if ratio := slices.Max(load) / (tenants * k / 64.0); ratio > 1.2 {
		t.Errorf("the fullest partition has %.2f times the mean", ratio)
	}
}

// Partitions that drain take no new tasks; a partition of twice the weight gets about twice the tenants.
func TestStateAndWeight(t *testing.T) {
	ps := catalogue(8, 1)
	ps[3].State, ps[4].State = Draining, Sealed
	ps[5].Weight = 2
	got := map[uint32]float64{}
	for i := range 7000 {
		for _, p := range Choose(tenantKey(i), ps, 1) {
			got[p]++
		}
	}
	if got[3]+got[4] != 0 {
		t.Errorf("closed partitions were chosen: %v", got)
	}
	if ratio := got[5] / ((7000 - got[5]) / 5); ratio < 1.8 || ratio > 2.2 {
		t.Errorf("weight 2 gets %.2f times the others' share", ratio)
	}
	if ids := IDs(ps); !slices.Equal(ids, []uint32{0, 1, 2, 3, 5, 6, 7}) {
		t.Errorf("IDs = %v: all but the sealed need an owner", ids)
	}
}

// Four salts even out skewed tenants better than one.
func TestSaltsEvenOutLoad(t *testing.T) {
	ps := catalogue(64, 4)
	worst := func(salts []uint32) float64 {
		load := map[uint32]float64{}
		total := 0.0
		for i := 1; i <= 2000; i++ {
			total += 1 / float64(i)
		}
		for i := 1; i <= 2000; i++ {
			w := 1 / float64(i) / total
			k := int(min(32, max(4, math.Ceil(w*128))))
			p := Place(tenantKey(i), salts, ps, k, load, noon)
			for _, m := range p.Members[:k] {
				load[m] += w / float64(k)
			}
		}
		top := 0.0
		for _, l := range load {
			top = max(top, l)
		}
		return top * 64
	}
	if one, four := worst([]uint32{0}), worst([]uint32{0, 1, 2, 3}); four > 1.25 || one < 1.6 {
		t.Errorf("fullest partition: %.2f of the mean with one salt, %.2f with four; want ≥ 1.6 and ≤ 1.25", one, four)
	}
}

// Both candidates are members, distinct, the same for every order, and spread evenly.
func TestCandidates(t *testing.T) {
	if _, _, ok := Candidates("r", nil); ok {
		t.Error("candidates of nothing")
	}
	if a, b, ok := Candidates("r", []uint32{9}); !ok || a != 9 || b != 9 {
		t.Errorf("one member: %d %d %v", a, b, ok)
	}
	count := map[uint32]int{}
	for i := range 8000 {
		id := fmt.Sprint(i)
		a, b, ok := Candidates(id, []uint32{4, 9, 2, 7})
		a2, b2, _ := Candidates(id, []uint32{7, 2, 9, 4})
		if !ok || a == b || a != a2 || b != b2 {
			t.Fatalf("request %s: %d %d, in other order %d %d", id, a, b, a2, b2)
		}
		count[a]++
		count[b]++
	}
	for p, n := range count {
		if n < 3700 || n > 4300 || len(count) != 4 {
			t.Errorf("partition %d is a candidate of %d of 8000 requests, want about half", p, n)
		}
	}
}

func BenchmarkCandidates(b *testing.B) {
	b.ReportAllocs()
	members := []uint32{4, 9, 2, 7}
	for b.Loop() {
		Candidates("0123456789abcdef", members)
	}
}
