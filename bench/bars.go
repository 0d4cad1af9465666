package main

import "fmt"

// bar is one row of what the design demands.
type bar struct {
	What     string  `json:"what"`
	Figure   float64 `json:"figure"`
	Bar      float64 `json:"bar"`
	AtMost   bool    `json:"at_most"` // else at least
	Unit     string  `json:"unit"`
	Measured bool    `json:"measured"`
	Reached  bool    `json:"reached"`
	Note     string  `json:"note,omitempty"`
}

// ratio returns the median over the rounds of one system's figure by another's in the same round; 0 without such.
func (r *results) ratio(a, loadA, b, loadB string, f func(*measure) float64) float64 {
	var v []float64
	for i := range r.Measures {
		for j := range r.Measures {
			x, y := &r.Measures[i], &r.Measures[j]
			if x.System == a && x.Load == loadA && y.System == b && y.Load == loadB && x.Round == y.Round && f(x) > 0 && f(y) > 0 {
				v = append(v, f(x)/f(y))
			}
		}
	}
	return middle(v)
}

// bars judges what was measured by the rows of design.md §15.
func (r *results) bars() (bars []bar) {
	add := func(what string, figure, limit float64, atMost bool, unit, note string) {
		b := bar{What: what, Figure: figure, Bar: limit, AtMost: atMost, Unit: unit, Measured: figure > 0, Note: note}
		b.Reached = b.Measured && (atMost && figure <= limit || !atMost && figure >= limit)
		bars = append(bars, b)
	}
	const hr, emb, riv = "headrace_postgres", "headrace_embedded", "river"
	add("full cycle on Postgres, by River's", r.ratio(hr, cycle, riv, cycle, rate), 6, false, "×", "")
	add("full cycle on Postgres, by Asynq's with everysec", r.ratio(hr, cycle, "asynq_everysec", cycle, rate), 8, false, "×", "everysec loses up to a second when the power goes")
	add("River's log bytes a task, by ours", r.ratio(riv, cycle, hr, cycle, wal), 5, false, "×", "")
	add("River's CPU a task, by ours", r.ratio(riv, cycle, hr, cycle, cpu), 5, false, "×", "all processes")
	add("full cycle on the embedded store, by that on Postgres", r.ratio(emb, cycle, hr, cycle, rate), 1, false, "×", "")
	add("Submit one by one from 256 callers, by River's Insert from 32 connections", r.ratio(hr, single, riv, single, submit), 6, false, "×",
		"ours are run and finished meanwhile, River's are only stored")
	add("submit sent → handler started, 50 tasks/s, p50", r.median(hr, light, start(p50)), 1.5, true, "ms", "")
	add("submit sent → handler started, 50 tasks/s, p99", r.median(hr, light, start(p99)), 5, true, "ms", "")
	add("the same p99, at most River's p50 with its default settings", r.median(hr, light, start(p99)), r.median(riv, lightDefault, start(p50)), true, "ms", "")
	with := r.median(hr, waiting, rate)
	var beside float64
	if with > 0 {
		var sum, n float64
		for i := range r.Measures {
			if m := &r.Measures[i]; m.Load == none {
				sum, n = sum+m.TasksPerS, n+1
			}
		}
		beside = with / (sum / n)
	}
	add(fmt.Sprintf("throughput with %d tasks waiting, by that with none", r.Backlog), beside, 0.9, false, "×", "none: the mean of a run before and one after")
	bars = append(bars, bar{What: "takeover with a million waiting", Note: "not here: `make chaos` kills owners and measures it"})
	return bars
}

// figure returns the bar's figure as people read it.
func (b bar) figure() string {
	if !b.Measured {
		return "—"
	}
	return fmt.Sprintf("%.2f %s", b.Figure, b.Unit)
}

func (b bar) limit() string {
	switch {
	case b.Bar == 0:
		return "—"
	case b.AtMost:
		return fmt.Sprintf("≤ %.3g %s", b.Bar, b.Unit)
	}
	return fmt.Sprintf("≥ %.3g %s", b.Bar, b.Unit)
}

// verdict says reached, or by how much it falls short.
func (b bar) verdict() string {
	switch {
	case !b.Measured:
		return "not measured"
	case b.Reached:
		return "reached"
	case b.AtMost:
		return fmt.Sprintf("%.0f %% too much", 100*(b.Figure/b.Bar-1))
	}
	return fmt.Sprintf("%.0f %% short", 100*(1-b.Figure/b.Bar))
}
