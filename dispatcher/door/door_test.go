package door

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/flowcontrol/pressure"
	"github.com/headrace/headrace/task"
)

// rig is a door, or several that tell each other, whose time and counts the test sets.
type rig struct {
	now   time.Time
	doors []*Door
}

func newRig(n int) *rig {
	r := &rig{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	for i := range n {
		r.doors = append(r.doors, New(Config{Now: func() time.Time { return r.now },
			Local: func(context.Context) ([]core.TenantUsage, float64, error) { return nil, 0, nil },
			Peers: func() (rs []*Report) {
				for j, d := range r.doors {
					if j != i {
						rs = append(rs, d.Report())
					}
				}
				return rs
			}}))
	}
	return r
}

func bytesOf(n int) func(int) int { return func(int) int { return n } }

// admit asks for n tasks of 10 bytes that are answered at once.
func (r *rig) admit(d *Door, tenant string, n int) (int, *Refusal) {
	p, refusal := d.Admit(tenant, n, bytesOf(10), false)
	p.Done()
	return p.Items, refusal
}

// A retry at the told time is let in, a millisecond earlier it is not.
func TestToldTimeIsExact(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		r := newRig(1)
		d := r.doors[0]
		g := task.Tenant{Rate: 0.5 + 200*rng.Float64(), Burst: float64(1 + rng.IntN(20))}
		d.Grant("a", g)
		for range 50 {
			n := 1 + rng.IntN(30)
			got, refusal := r.admit(d, "a", n)
			if got == n {
				continue
			}
			if refusal == nil || refusal.Reason != ReasonRate || refusal.RetryAfter <= 0 {
				t.Fatalf("%+v: %d of %d, %+v", g, got, n, refusal)
			}
			again := min(n-got, int(g.Burst))
			if wait := refusal.RetryAfter; wait > time.Millisecond {
				r.now = r.now.Add(wait - time.Millisecond)
				if p, _ := d.Admit("a", again, bytesOf(10), true); p.Items != 0 {
					t.Fatalf("%+v: %d are let in 1 ms before the told time", g, again)
				}
				r.now = r.now.Add(time.Millisecond)
			} else {
				r.now = r.now.Add(wait)
			}
			if got, refusal := r.admit(d, "a", again); got != again {
				t.Fatalf("%+v: %d of %d at the told time: %+v", g, got, again, refusal)
			}
		}
	}
}

// A batch is let in as far as it goes; a repeated one whole or not at all.
func TestPrefix(t *testing.T) {
	r := newRig(1)
	d := r.doors[0]
	d.Grant("a", task.Tenant{Rate: 10, Burst: 100})
	if got, refusal := r.admit(d, "a", 130); got != 100 || refusal == nil || refusal.RetryAfter != 3*time.Second {
		t.Fatalf("%d, %+v: want 100, and 30 after 3 s", got, refusal)
	}
	r.now = r.now.Add(2 * time.Second)
	if p, refusal := d.Admit("a", 30, bytesOf(1), true); p.Items != 0 || refusal.RetryAfter != time.Second {
		t.Fatalf("%+v, %+v: want nothing for another second", p, refusal)
	}
	r.now = r.now.Add(time.Second)
	if p, refusal := d.Admit("a", 30, bytesOf(1), true); p.Items != 30 || refusal != nil {
		t.Fatalf("%+v, %+v", p, refusal)
	}
	// One that is larger than the burst goes through whole, on a whole burst, and is paid for by the next.
	r.now = r.now.Add(time.Hour)
	if p, refusal := d.Admit("a", 300, bytesOf(1), true); p.Items != 300 || refusal != nil {
		t.Fatalf("%+v, %+v", p, refusal)
	}
	if _, refusal := r.admit(d, "a", 1); refusal == nil || refusal.RetryAfter < 20*time.Second {
		t.Fatalf("%+v", refusal)
	}
}

func TestHardCaps(t *testing.T) {
	r := newRig(1)
	d := r.doors[0]
	d.Grant("a", task.Tenant{MaxRows: 50, MaxBytes: 1000})
	usage := func(ready, scheduled, bytes int64) []core.TenantUsage {
		return []core.TenantUsage{{Tenant: "a", Ready: ready, Scheduled: scheduled, Bytes: bytes}}
	}
	if got, refusal := r.admit(d, "a", 60); got != 50 || refusal == nil || refusal.Reason != ReasonRows || refusal.RetryAfter < time.Second {
		t.Fatalf("%d, %+v", got, refusal)
	}
	r.now = r.now.Add(every)
	d.Step(usage(30, 10, 400), 0)
	// 10 rows are left, of 60 bytes each.
	p, refusal := d.Admit("a", 9, bytesOf(100), false)
	if p.Items != 6 || refusal == nil || refusal.Reason != ReasonBytes {
		t.Fatalf("%+v, %+v: want 6, by their bytes", p, refusal)
	}
	// They are not among the rows yet.
	r.now = r.now.Add(every)
	d.Step(usage(30, 10, 400), 0)
	if got, refusal := r.admit(d, "a", 9); got != 0 || refusal.Reason != ReasonBytes {
		t.Fatalf("%d, %+v", got, refusal)
	}
	p.Done()
	r.now = r.now.Add(every)
	d.Step(usage(36, 10, 500), 0)
	if got, refusal := r.admit(d, "a", 9); got != 4 || refusal.Reason != ReasonRows {
		t.Fatalf("%d, %+v", got, refusal)
	}
	// The caps hold when nothing is known any more, and a larger grant holds at once.
	r.now = r.now.Add(time.Hour)
	if got, _ := r.admit(d, "a", 1); got != 0 {
		t.Fatal("without news a cap is forgotten")
	}
	d.Grant("a", task.Tenant{MaxRows: 60, MaxBytes: 1000})
	if got, _ := r.admit(d, "a", 100); got != 10 {
		t.Fatalf("%d of 10 new rows", got)
	}
	if got, refusal := r.admit(d, "b", 1000); got != 1000 || refusal != nil {
		t.Fatalf("somebody else: %d, %+v", got, refusal)
	}
}

// Two doors, one owner: what the tenant may is divided as it asks, and the limit does not outlive its reports.
func TestDoorsShareALimit(t *testing.T) {
	r := newRig(2)
	for _, d := range r.doors {
		d.Grant("a", task.Tenant{DrainMax: 10 * time.Second})
	}
	ready, ended, in := 5000.0, 0.0, [2]int{}
	second := func(count bool) {
		for range 4 {
			r.now = r.now.Add(every)
			let := 0
			for i, offer := range []int{75, 25} {
				got, _ := r.admit(r.doors[i], "a", offer)
				if let += got; count {
					in[i] += got
				}
			}
			ready, ended = ready+float64(let)-25, ended+25 // 100 a second finish
			r.doors[0].Step([]core.TenantUsage{{Tenant: "a", Ready: int64(ready), Ended: uint64(ended)}}, 0)
			r.doors[1].Step(nil, 0)
		}
	}
	for range 10 {
		second(false)
	}
	for range 60 {
		second(true)
	}
	if sum := in[0] + in[1]; sum < 60*85 || sum > 60*105 || in[0] < 2*in[1] {
		t.Errorf("let in at the doors: %v, want 90 a second together, three quarters at the first", in)
	}
	s := r.doors[1].Status("a")
	if s.Limit == nil || s.Limit.Reason != pressure.Drain || s.Pressure != 1 || !s.DrainOK {
		t.Errorf("%+v", s)
	}
	_, refusal := r.admit(r.doors[1], "a", 1000)
	if refusal == nil || refusal.Reason != "tenant_drain" || refusal.Level != pressure.Soft {
		t.Fatalf("%+v", refusal)
	}
	r.now = r.now.Add(reportLife + time.Second)
	if got, refusal := r.admit(r.doors[1], "a", 1000); got != 1000 || refusal != nil {
		t.Errorf("11 s without news: %d, %+v", got, refusal)
	}
}

// Of more tenants than there is room for, who asks for most has a gate, and gates go.
func TestManyTenants(t *testing.T) {
	r := newRig(1)
	d := r.doors[0]
	for round := range 8 {
		for i := range 3000 {
			r.admit(d, fmt.Sprintf("light-%d-%d", round, i), 1)
		}
		for range 100 {
			r.admit(d, "heavy", 5)
		}
		for range 20 {
			r.now = r.now.Add(every)
			d.Step(nil, 0)
		}
	}
	gates := 0
	d.gates.Range(func(any, any) bool { gates++; return true })
	if _, ok := d.gates.Load("heavy"); !ok || gates > 4000 {
		t.Errorf("%d gates, heavy: %v", gates, ok)
	}
	if n := len(d.Report().Tenants); n > maxUsages {
		t.Errorf("a report of %d tenants", n)
	}
	r.now = r.now.Add(2 * gateLife)
	for range 8 {
		r.now = r.now.Add(10 * time.Second)
		d.Step(nil, 0)
	}
	gates = 0
	d.gates.Range(func(any, any) bool { gates++; return true })
	if gates > 0 {
		t.Errorf("%d gates of tenants that have nothing", gates)
	}
}

func BenchmarkAdmit(b *testing.B) {
	for name, g := range map[string]task.Tenant{"open": {}, "rate": {Rate: 1e6, Burst: 1e6}} {
		b.Run(name, func(b *testing.B) {
			d := New(Config{Now: time.Now, Peers: func() []*Report { return nil }})
			d.Grant("a", g)
			d.gate("a")
			size := bytesOf(200)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					p, _ := d.Admit("a", 1, size, false)
					p.Done()
				}
			})
		})
	}
}
