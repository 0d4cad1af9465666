package core

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cockroachdb/datadriven"

	"github.com/headrace/headrace/flowcontrol/shares"
	"github.com/headrace/headrace/task"
)

func (s *script) limit(d *datadriven.TestData, ws []string) {
	name := ws[1]
	if slices.Contains(ws, "reset") {
		s.printf("reset %v", s.core.ResetLimit(s.now, ws[0], name))
		return
	}
	s.limits = slices.DeleteFunc(slices.Clone(s.limits), func(l task.Limit) bool { return l.Downstream == name })
	if !slices.Contains(ws, "none") {
		s.limits = append(s.limits, task.Limit{Downstream: name, Min: s.num(d, "min", 0), Max: s.num(d, "max", 0)})
	}
	s.core.SetLimits(s.now, ws[0], s.limits)
}

func (s *script) bound(d *datadriven.TestData, ws []string) {
	fn := arg(d, "fn", "")
	s.bounds = slices.DeleteFunc(slices.Clone(s.bounds), func(b task.Bound) bool { return b.Function == fn })
	if !slices.Contains(ws, "none") {
		s.bounds = append(s.bounds, task.Bound{Function: fn, Concurrency: s.num(d, "max", 0), Rate: float64(s.num(d, "rate", 0)), Burst: s.num(d, "burst", 0)})
	}
	s.core.SetBounds(s.now, ws[0], s.bounds)
}

// share is report, or grant.
func (s *script) share(d *datadriven.TestData, ws []string) {
	if d.Cmd == "report" {
		r := s.core.BoundReport(s.now)
		for _, u := range r.Uses {
			s.printf("%s/%s: %d in use, %d ready, share %d, %d tokens", u.Tenant, u.Function, u.InUse, u.Ready, u.Share, u.Tokens)
		}
		s.printf("open %v, lost %v", r.Open, r.Lost)
		return
	}
	g := BoundGrants{AskedAt: s.now, Mine: func(shares.Key) bool { return true }}
	g.Grants = []shares.Grant{{Key: shares.Key{Tenant: ws[0], Function: arg(d, "fn", "")}, Share: s.num(d, "share", 0), Tokens: s.num(d, "tokens", 0)}}
	for _, a := range strings.FieldsFunc(arg(d, "adopted", ""), func(r rune) bool { return r == ',' }) {
		var o shares.Opened
		_, err := fmt.Sscanf(a, "%d/%d", &o.Partition, &o.Epoch)
		s.must(err)
		g.Adopted = append(g.Adopted, o)
	}
	s.core.GrantBounds(s.now, g)
}

func limitText(l LimitState) string {
	text := fmt.Sprintf("%s/%s for %s:", l.Tenant, l.Downstream, strings.Join(l.Functions, ","))
	if l.Active {
		text += fmt.Sprintf(" %.1f in %d..%d, %d in use, %d parked, %d of %d throttled", l.Limit, l.Min, l.Max, l.InUse, l.Parked, l.Throttles, l.Results)
	} else {
		text += " none"
	}
	if l.Override != nil {
		text += ", set"
	}
	if !l.PausedUntil.IsZero() {
		text += fmt.Sprintf(", paused for %v", l.PausedUntil.Sub(began))
	}
	for _, d := range l.Decisions {
		text += fmt.Sprintf("\n  %v %s %.1f -> %.1f", d.At.Sub(began), d.Reason, d.From, d.To)
	}
	return text
}
