package sim

import (
	"slices"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/task"
)

// pauses are the rules in the registry, and the people who set them (ADR 21).
type pauses struct {
	w        *world
	tenants  []*tenantRules
	standing []*pause
}

// tenantRules is one tenant's key.
type tenantRules struct {
	tenant   string
	revision int64
	rules    []task.Pause
}

// pause is one call of a user's: it goes on until every partition is answered for.
type pause struct {
	tenant     string
	rule       task.Pause
	revision   int64
	sure       []bool // by partition
	answeredAt time.Duration
	answered   bool
	over       bool // resumed
}

// begin plans pauses, and their ends.
func (ps *pauses) begin(w *world) {
	ps.w = w
	for _, f := range w.plan.functions {
		if !slices.ContainsFunc(ps.tenants, func(t *tenantRules) bool { return t.tenant == f.tenant }) {
			ps.tenants = append(ps.tenants, &tenantRules{tenant: f.tenant})
		}
	}
	if !w.plan.faults[faultRules] {
		return
	}
	for range 1 + w.rand.IntN(6) {
		w.after(w.between(0, w.plan.busy), ps.pause)
	}
}

// pause stores a rule and brings it to all owners; some time later it is taken away again.
func (ps *pauses) pause() {
	w := ps.w
	if w.calm {
		return
	}
	f := &w.plan.functions[w.rand.IntN(len(w.plan.functions))]
	p := &pause{tenant: f.tenant, rule: task.Pause{Band: task.AnyBand}, sure: make([]bool, w.plan.partitions)}
	if w.chance(2) {
		p.rule.Function = f.name
	}
	if w.chance(4) {
		p.rule.Band = task.Band(w.rand.IntN(task.Bands))
	}
	t := ps.of(p.tenant)
	t.revision++
	t.rules = append(slices.Clone(t.rules), p.rule)
	p.revision = t.revision
	ps.standing = append(ps.standing, p)
	w.log("", "pause", "%s", p.rule.Name(p.tenant))
	ps.bring(p)
	w.after(w.between(time.Second, 30*time.Second), func() { ps.resume(p) })
}

// resume takes a rule away and tells it to everybody for as long as somebody may not have heard.
func (ps *pauses) resume(p *pause) {
	if p.over {
		return
	}
	p.over = true
	t := ps.of(p.tenant)
	t.revision++
	t.rules = slices.Clone(t.rules)
	if i := slices.IndexFunc(t.rules, p.rule.Same); i >= 0 {
		t.rules = slices.Delete(t.rules, i, i+1)
	}
	ps.w.log("", "resume", "%s", p.rule.Name(p.tenant))
	ps.tell(t, 0)
}

// tell is the watch of the nodes: some hear it late.
func (ps *pauses) tell(t *tenantRules, n int) {
	for _, n := range ps.w.nodes {
		ps.w.on(&n.process, ps.w.around(5*time.Millisecond), func() { n.take(t) })
	}
	if n < 200 {
		ps.w.after(time.Second, func() { ps.tell(t, n+1) })
	}
}

func (ps *pauses) of(tenant string) *tenantRules {
	i := slices.IndexFunc(ps.tenants, func(t *tenantRules) bool { return t.tenant == tenant })
	return ps.tenants[i]
}

// take makes the rules of a tenant, as they are now, the node's.
func (n *node) take(t *tenantRules) {
	if n.rules[t.tenant] < t.revision {
		n.rules[t.tenant] = t.revision
		n.call("pauses", func(now time.Time) { n.core.SetPauses(now, t.tenant, t.rules) })
	}
}

// bring asks the owners that the registry names now, and asks again until each partition is answered for.
func (ps *pauses) bring(p *pause) {
	w := ps.w
	if p.over || p.answered {
		return
	}
	if !slices.Contains(p.sure, false) {
		p.answered, p.answeredAt = true, w.now
		w.log("", "paused", "%s", p.rule.Name(p.tenant))
		return
	}
	for _, n := range w.nodes {
		var owned []uint32
		for i := range p.sure {
			if w.registry.now.owner(uint32(i)) == n && !p.sure[i] {
				owned = append(owned, uint32(i))
			}
		}
		if len(owned) == 0 || !n.up {
			continue
		}
		w.on(&n.process, w.around(w.plan.delay), func() {
			n.take(ps.of(p.tenant))
			w.clients.replies++
			reply := w.clients.replies
			n.paused[reply] = func(a core.PauseAnswer) {
				for _, i := range a.Partitions {
					if slices.Contains(owned, i) {
						w.log(n.name, "answer", "pause of %s for partition %d", p.tenant, i)
						p.sure[i] = true
					}
				}
			}
			n.call("await pause", func(now time.Time) {
				n.core.AwaitPause(now, core.PauseWait{Reply: reply, Tenant: p.tenant, Function: p.rule.Function, Band: p.rule.Band})
			})
		})
	}
	w.after(w.between(10*time.Millisecond, 400*time.Millisecond), func() { ps.bring(p) })
}

// readRules is the read of the rules after the raise: the partition is not the core's before.
func (a *acquisition) readRules() (rules []tenantRules, err error) {
	err = a.door(func(answer func(error)) {
		a.n.ask(func() {
			for _, t := range a.n.w.pauses.tenants {
				rules = append(rules, *t)
			}
		}, answer)
	})
	return rules, err
}

// knowRules is what an acquisition does about pause rules.
func (a *acquisition) knowRules() error {
	if !a.n.w.plan.faults[faultRules] {
		return nil
	}
	rules, err := a.readRules()
	if err == nil {
		for i := range rules {
			a.rules = append(a.rules, &rules[i])
		}
	}
	return err
}

// started judges the start of a task: none that a rule covers since that was answered.
func (ps *pauses) started(r *run, name string) {
	row := r.t.row
	for _, p := range ps.standing {
		if p.answered && !p.over && p.tenant == row.Tenant && p.rule.Covers(row.Function, row.Band) && ps.w.now > p.answeredAt {
			ps.w.fail("P6: %s starts %v after %s was answered", name, ps.w.now-p.answeredAt, p.rule.Name(p.tenant))
		}
	}
}
