package shard

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func place(tenant string, ps []Partition, k int) Placement {
	return Place(Key{Secret: "s", Tenant: tenant}, []uint32{0}, ps, k, nil, noon)
}

// Placements and what becomes of them are frozen as well, with their bytes.
func TestGoldenPlacements(t *testing.T) {
	var b strings.Builder
	line := func(what string, p Placement) {
		fmt.Fprintf(&b, "%s %s v%d salt=%d k=%d home=%d %v before %v %x\n", what, p.Tenant, p.Version, p.Salt, p.K, p.Home, p.Members, p.Before, p.Encode())
	}
	for _, tenant := range []string{"default", "acme", "租户甲"} {
		for _, c := range [][2]int{{64, 4}, {64, 1}, {8, 2}} {
			ps := catalogue(c[0], c[1])
			p := Place(Key{Secret: "golden", Tenant: tenant}, []uint32{0, 1, 2, 3}, ps, 4, map[uint32]float64{ps[0].ID: 1}, noon)
			line(fmt.Sprintf("place %d/%d", c[0], c[1]), p)
			grown, err := Resize("golden", p, ps, 6, noon)
			if err != nil {
				t.Fatal(err)
			}
			line("resize", grown)
			moved, err := Move("golden", p, ps, []uint32{7, 1}, noon)
			if err != nil {
				t.Fatal(err)
			}
			line("move", moved)
			ps[p.Members[1]].State = Draining
			fit, _ := Fit("golden", p, ps, noon)
			line("drain", fit)
			fmt.Fprintf(&b, "key %s k %d\n", tenant, first(Keyed(tenant, "k", p.Members)))
		}
	}
	const file = "testdata/placements.txt"
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

func first(p uint32, ok bool) uint32 {
	if !ok {
		panic("none")
	}
	return p
}

func spread(ps []Partition, members []uint32) map[string]int {
	held := map[string]int{}
	for _, m := range members {
		_, z := homeOf(ps, m)
		held[z]++
	}
	return held
}

// A placement holds what Choose gives for its zone order, two of its directory database, at most one more
// than k, and no partition twice; growing keeps the members; shrinking takes only from what was there.
func TestPlacementShape(t *testing.T) {
	for _, zones := range []int{1, 2, 3, 4, 8} {
		ps := catalogue(32, zones)
		for i := range 200 {
			tenant := fmt.Sprintf("tenant-%d", i)
			p := place(tenant, ps, 1)
			for k := 1; k <= 16; k++ {
				fresh := place(tenant, ps, k)
				if k > 1 {
					old := p
					var err error
					if p, err = Resize("s", p, ps, k, noon); err != nil {
						t.Fatal(err)
					}
					if changed(p.Members, old.Members) != 0 {
						t.Fatalf("%d zones, %s: growing to %d made %v of %v", zones, tenant, k, p.Members, old.Members)
					}
				}
				if !sameSet(p.Members, fresh.Members) {
					t.Fatalf("%d zones, %s, k=%d: grown %v, fresh %v", zones, tenant, k, p.Members, fresh.Members)
				}
				if want := Choose(Key{Secret: "s", Tenant: tenant}, ps, k); !slices.Equal(fresh.Members[:k], want) {
					t.Fatalf("%d zones, %s, k=%d: %v, want %v first", zones, tenant, k, fresh.Members, want)
				}
				held := spread(ps, p.Members)
				_, home := homeOf(ps, p.Home)
				if held[home] < 2 || len(p.Members) > k+1 || len(slices.Compact(slices.Sorted(slices.Values(p.Members)))) != len(p.Members) {
					t.Fatalf("%d zones, %s, k=%d: %v, home %s", zones, tenant, k, p.Members, home)
				}
				shrunk, err := Resize("s", p, ps, max(1, k-1), noon)
				if err != nil || changed(p.Members, shrunk.Members) != 0 || len(shrunk.Members) > k+1 {
					t.Fatalf("%d zones, %s: shrinking %v gave %v, %v", zones, tenant, p.Members, shrunk.Members, err)
				}
			}
		}
	}
}

// A member that drains is replaced by one of its zone; nothing else changes, and nobody who did not hold it
// is touched. A sealed one leaves in the same way. The home stays.
func TestDrainingMembersLeave(t *testing.T) {
	for _, state := range []PartitionState{Draining, Sealed} {
		ps := catalogue(64, 4)
		gone := ps[5].ID
		after := slices.Clone(ps)
		after[5].State = state
		holders := 0
		for i := range 3000 {
			p := place(fmt.Sprintf("tenant-%d", i), ps, 4)
			q, moved := Fit("s", p, after, noon.Add(time.Hour))
			if moved != slices.Contains(p.Members, gone) {
				t.Fatalf("%v: moved %v", p.Members, moved)
			}
			if !moved {
				if !reflect.DeepEqual(p, q) {
					t.Fatalf("%v became %v", p, q)
				}
				continue
			}
			holders++
			if slices.Contains(q.Members, gone) || changed(p.Members, q.Members) != 1 || len(q.Members) != len(p.Members) ||
				!reflect.DeepEqual(spread(ps, p.Members), spread(ps, q.Members)) {
				t.Fatalf("%v became %v", p.Members, q.Members)
			}
			if q.Home != p.Home || q.Version != 2 || q.Reason != Drained || !slices.Equal(q.Before, p.Members) || !q.At.Equal(noon.Add(time.Hour)) {
				t.Fatalf("%+v became %+v", p, q)
			}
			if again, moved := Fit("s", q, after, noon); moved {
				t.Fatalf("%v moved again to %v", q.Members, again.Members)
			}
		}
		if holders < 150 || holders > 350 {
			t.Errorf("%d of 3000 held a partition, want about 3000·4/64 and a few more", holders)
		}
	}
}

// Whole databases drain: the tenants leave them, but their ids do not.
func TestDatabaseDrains(t *testing.T) {
	ps := catalogue(8, 2)
	for i := range 200 {
		p := place(fmt.Sprintf("tenant-%d", i), ps, 4)
		_, home := homeOf(ps, p.Home)
		after := slices.Clone(ps)
		for j := range after {
			if after[j].Zone == home {
				after[j].State = Draining
			}
		}
		q, moved := Fit("s", p, after, noon)
		if !moved || spread(ps, q.Members)[home] != 0 || len(q.Members) != 4 || q.Home != p.Home {
			t.Fatalf("%v became %+v", p.Members, q)
		}
		at := q.AtHome(after, q.Members)
		if len(at) != 4 || spread(ps, at)[home] != 4 {
			t.Fatalf("ids go to %v, home %s", at, home)
		}
		for j := range after {
			after[j].State = Sealed
		}
		if r, moved := Fit("s", q, after, noon); moved {
			t.Fatalf("nothing is left, but %v", r.Members)
		}
		if at := q.AtHome(after, q.Members[:0]); len(at) != 0 {
			t.Fatalf("sealed partitions take ids: %v", at)
		}
	}
}

// One more partition, or a zone more or less, changes a shard by what it must and no more.
func TestZonesComeAndGo(t *testing.T) {
	ps := catalogue(64, 4)
	added := slices.Clone(ps)
	for i := range 16 {
		added = append(added, Partition{ID: uint32(64 + i), Zone: "z4"})
	}
	less := slices.DeleteFunc(slices.Clone(ps), func(p Partition) bool { return p.Zone == "z3" })
	for i := range 2000 {
		key := tenantKey(i)
		for _, k := range []int{4, 8} {
			now := Choose(key, ps, k)
			next := Choose(key, added, k)
			in := spread(added, next)["z4"]
			if n := changed(now, next); n != in || in < k/5 || in > (k+4)/5 {
				t.Fatalf("%s k=%d: %v became %v with a new zone", key.Tenant, k, now, next)
			}
			next = Choose(key, less, k)
			if n := changed(now, next); n != spread(ps, now)["z3"] {
				t.Fatalf("%s k=%d: %v became %v without a zone", key.Tenant, k, now, next)
			}
		}
	}
	slots := 0
	for i := range 2000 {
		p := place(fmt.Sprintf("tenant-%d", i), ps, 4)
		for _, zone := range []string{"z0", "z3", "z9"} {
			q := place(p.Tenant, append(slices.Clone(ps), Partition{ID: 64, Zone: zone}), 4)
			// A new zone may become the home of a new tenant, and moves the one of an extra member with it.
			if n := changed(p.Members, q.Members); zone != "z9" && n > 1 {
				t.Fatalf("%v became %v for one more partition", p.Members, q.Members)
			} else {
				slots += n
			}
		}
	}
	if slots == 0 {
		t.Error("nobody uses a new partition")
	}
}

// Several databases in one zone: ids are unique in one database, so only its partitions take them.
func TestDatabasesInOneZone(t *testing.T) {
	var ps []Partition
	for i := range 24 {
		ps = append(ps, Partition{ID: uint32(i), Zone: fmt.Sprint("z", i%2), Database: fmt.Sprint("db", i%6)})
	}
	for i := range 300 {
		p := place(fmt.Sprintf("tenant-%d", i), ps, 4)
		home := ps[p.Home].In()
		at := p.AtHome(ps, p.Members)
		if len(at) < 2 || len(p.Members) > 5 {
			t.Fatalf("%v, of which %v are in %s", p.Members, at, home)
		}
		for _, m := range at {
			if ps[m].In() != home {
				t.Fatalf("%v, of which %v would be in %s", p.Members, at, home)
			}
		}
		q, err := Move("s", p, ps, []uint32{(p.Home + 2) % 24, (p.Home + 4) % 24}, noon)
		if err != nil || len(q.Members) != 4 || len(q.AtHome(ps, q.Members)) != 2 {
			t.Fatalf("moved within the zone: %v, %v", q.Members, err)
		}
	}
}

// A node that hears of a move before it hears of the new partitions changes nothing, and keeps them when it
// replaces another one.
func TestCatalogueIsLate(t *testing.T) {
	late := catalogue(8, 2)
	ps := append(slices.Clone(late), Partition{ID: 8, Zone: "z0"}, Partition{ID: 9, Zone: "z1"})
	p, err := Move("s", place("acme", late, 4), ps, []uint32{8, 9, 1, 2}, noon)
	if err != nil {
		t.Fatal(err)
	}
	for _, known := range [][]Partition{nil, late} {
		if q, moved := Fit("s", p, known, noon); moved {
			t.Errorf("%v became %v for who knows %d partitions", p.Members, q.Members, len(known))
		}
	}
	late[1].State = Draining
	if q, moved := Fit("s", p, late, noon); !moved || changed(p.Members, q.Members) > 2 || !slices.Equal(q.Members[:3], []uint32{8, 9, 2}) {
		t.Errorf("%v became %v", p.Members, q.Members)
	}
}

func TestMoveByHand(t *testing.T) {
	ps := catalogue(16, 4)
	p := place("acme", ps, 4)
	_, home := homeOf(ps, p.Home)
	to := []uint32{}
	for _, q := range ps {
		if q.Zone != home && len(to) < 3 {
			to = append(to, q.ID)
		}
	}
	q, err := Move("s", p, ps, to, noon.Add(time.Minute))
	if err != nil || !slices.Equal(q.Members[:3], to) || len(q.Members) != 5 || spread(ps, q.Members)[home] != 2 {
		t.Fatalf("moved to %v, %v", q.Members, err)
	}
	if q.K != 3 || q.Version != 2 || q.Reason != Moved || q.Home != p.Home || !slices.Equal(q.Before, p.Members) {
		t.Errorf("%+v", q)
	}
	again, err := Move("s", q, ps, to, noon)
	if err != nil || !slices.Equal(again.Members, q.Members) || !slices.Equal(again.Before, q.Before) {
		t.Errorf("moving to where it is: %+v, %v", again, err)
	}
	for i, d := range []time.Duration{time.Minute, 2 * RetryHorizon} {
		r, err := Resize("s", q, ps, 1, q.At.Add(d))
		if err != nil || len(r.Members) != 3 { // the one, which is elsewhere, and two of its directory
			t.Fatalf("%+v, %v", r, err)
		}
		want := slices.Clone(q.Members)
		for _, m := range p.Members {
			if i == 0 && !slices.Contains(want, m) {
				want = append(want, m)
			}
		}
		if !slices.Equal(r.Before, want) {
			t.Errorf("after %v before is %v, want %v", d, r.Before, want)
		}
	}
	ps[to[0]].State = Draining
	for _, bad := range [][]uint32{nil, {1, 1}, {99}, {to[0]}, make([]uint32, MaxShard+1)} {
		if _, err := Move("s", p, ps, bad, noon); err == nil {
			t.Errorf("moved to %v", bad)
		}
	}
	for _, k := range []int{0, -1, MaxShard + 1} {
		if _, err := Resize("s", p, ps, k, noon); err == nil {
			t.Errorf("k = %d", k)
		}
	}
	if _, err := Resize("s", p, nil, 4, noon); err == nil {
		t.Error("resized with nothing to go to")
	}
}

// A record comes back as it was, the largest is small, and what is none is refused.
func TestRecord(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	largest := 0
	for range 2000 {
		p := Placement{Tenant: "t", Version: r.Uint64N(1 << 35), Salt: r.Uint32(), K: 1 + r.IntN(MaxShard), Home: r.Uint32N(1 << 14),
			Reason: Reason(1 + r.IntN(4)), At: noon.Add(time.Duration(r.IntN(1e6)) * time.Second)}
		for range p.K + r.IntN(3) {
			p.Members = append(p.Members, r.Uint32N(1<<14))
		}
		for range r.IntN(MaxShard + 3) {
			p.Before = append(p.Before, r.Uint32N(1<<14))
		}
		b := p.Encode()
		largest = max(largest, len(b))
		q, err := DecodePlacement("t", b)
		if err != nil || !reflect.DeepEqual(p, q) {
			t.Fatalf("%+v came back as %+v, %v", p, q, err)
		}
		for i := range b {
			if _, err := DecodePlacement("t", b[:i]); err == nil {
				t.Fatalf("%x: the first %d bytes were read", b, i)
			}
		}
		if _, err := DecodePlacement("t", append(b, 0)); err == nil {
			t.Fatal("a longer one was read")
		}
	}
	if largest > MaxRecord || largest < 120 {
		t.Errorf("the largest record has %d bytes", largest)
	}
	if n := len(place("acme", catalogue(64, 4), 4).Encode()); n > 32 {
		t.Errorf("a usual record has %d bytes", n)
	}
}

// A retry looks back as long as a store remembers; behind a first placement not so long.
func TestEarlier(t *testing.T) {
	p := Placement{Reason: Moved, At: noon, Before: []uint32{1}}
	first := p
	first.Reason = Created
	for d, want := range map[time.Duration][2]int{0: {1, 1}, 59 * time.Second: {1, 1}, time.Minute: {1, 0}, RetryHorizon - 1: {1, 0}, RetryHorizon: {0, 0}} {
		if got := [2]int{len(p.Earlier(noon.Add(d))), len(first.Earlier(noon.Add(d)))}; got != want {
			t.Errorf("after %v: %v, want %v", d, got, want)
		}
	}
}

// A salt other than the first leaves word of where a node that does not know it sends.
func TestSaltRemembersTheFirst(t *testing.T) {
	ps := catalogue(64, 4)
	load := map[uint32]float64{}
	salted := 0
	for i := range 200 {
		key := tenantKey(i)
		p := Place(key, []uint32{0, 1, 2, 3}, ps, 4, load, noon)
		for _, m := range p.Members {
			load[m]++
		}
		plain := place(key.Tenant, ps, 4)
		switch {
		case p.Salt == 0 && (p.Before != nil || !slices.Equal(p.Members, plain.Members)):
			t.Fatalf("%+v, plain %+v", p, plain)
		case p.Salt != 0:
			salted++
			if !slices.Equal(p.Before, plain.Members) {
				t.Fatalf("%+v, plain %+v", p, plain)
			}
		}
	}
	if salted < 50 {
		t.Errorf("%d of 200 got another salt", salted)
	}
}

// Keys spread evenly; one more member takes only what it holds.
func TestKeyed(t *testing.T) {
	count := map[uint32]int{}
	for i := range 4000 {
		k := fmt.Sprint(i)
		p := first(Keyed("acme", k, []uint32{4, 9, 2, 7}))
		if p != first(Keyed("acme", k, []uint32{7, 2, 9, 4})) {
			t.Fatal("depends on the order")
		}
		if q := first(Keyed("acme", k, []uint32{4, 9, 2, 7, 5})); q != p && q != 5 {
			t.Fatalf("key %s went from %d to %d", k, p, q)
		}
		count[p]++
	}
	for p, n := range count {
		if math.Abs(float64(n)-1000) > 120 || len(count) != 4 {
			t.Errorf("partition %d has %d of 4000 keys", p, n)
		}
	}
	if _, ok := Keyed("acme", "k", nil); ok {
		t.Error("a key of nobody")
	}
}
