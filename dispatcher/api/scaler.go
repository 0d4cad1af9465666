package api

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/headrace/headrace/dispatcher/pools"
	"github.com/headrace/headrace/flowcontrol/elastic"
	"github.com/headrace/headrace/proto/externalscaler"
	"github.com/headrace/headrace/task"
)

// Scaler is KEDA's external scaler, to pull from and pushing. The trigger's metadata says what is scaled:
//
//	tenant              default: default
//	function or pool    a function, or the functions of the pool joined by "+", as `headrace pool list` names it; required
//	slots               of a replica: 1 to 100000; required
//	targetDrainSeconds  in which the backlog is to be worked off: 1 to 86400; 300
//	utilization         share of the slots that is meant to be in use: 0.05 to 1; 0.8
//	activation          so many tasks, waiting or running, don't need a replica yet: 0 to 1000000000; 0
//
// Other keys are KEDA's own. The metric is slots in use that are needed, the target what a replica is meant to have in
// use. IsActive and GetMetrics agree: what is not active needs nothing. While a node that owns something is silent
// both are an error, upon which KEDA and the HPA keep what they have: 0 would end executors.
type Scaler struct {
	externalscaler.UnimplementedExternalScalerServer
	*Services
}

// scaled is what a trigger's metadata says.
type scaled struct {
	tenant     string
	functions  []string
	slots      float64
	activation float64
	cfg        elastic.Config
}

func readScaled(ref *externalscaler.ScaledObjectRef) (*scaled, error) {
	meta := ref.GetScalerMetadata()
	s := &scaled{tenant: cmp.Or(meta["tenant"], "default")}
	if err := task.Name("tenant", s.tenant); err != nil {
		return nil, err
	}
	function, pool := meta["function"], meta["pool"]
	field := "function"
	switch {
	case function == "" && pool == "":
		return nil, &task.FieldError{Field: "function", Want: "a function, or pool instead"}
	case function != "" && pool != "":
		return nil, &task.FieldError{Field: "pool", Value: pool, Want: "none beside a function"}
	case pool != "":
		field = "pool"
	}
	s.functions = strings.Split(cmp.Or(function, pool), "+")
	if field == "function" && len(s.functions) > 1 {
		return nil, &task.FieldError{Field: field, Value: function, Want: "one name; pool takes several, joined by +"}
	}
	if len(s.functions) > 100 {
		return nil, &task.FieldError{Field: field, Value: fmt.Sprint(len(s.functions), " functions"), Want: "1 to 100"}
	}
	slices.Sort(s.functions)
	s.functions = slices.Compact(s.functions)
	for _, name := range s.functions {
		if err := task.Name(field, name); err != nil {
			return nil, err
		}
	}
	var drain float64
	for _, n := range []struct {
		field              string
		to                 *float64
		least, most, usual float64
		whole              bool
	}{
		{"slots", &s.slots, 1, 100_000, 0, true},
		{"targetDrainSeconds", &drain, elastic.DrainMin.Seconds(), elastic.DrainMax.Seconds(), elastic.DrainDefault.Seconds(), false},
		{"utilization", &s.cfg.Use, elastic.UseMin, 1, elastic.UseDefault, false},
		{"activation", &s.activation, 0, 1e9, 0, true},
	} {
		text := meta[n.field]
		if text == "" && n.usual >= n.least {
			*n.to = n.usual
			continue
		}
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || !(v >= n.least && v <= n.most) || n.whole && v != math.Trunc(v) {
			want := strconv.FormatFloat(n.least, 'f', -1, 64) + " to " + strconv.FormatFloat(n.most, 'f', -1, 64)
			if n.whole {
				want += ", a whole number"
			}
			return nil, &task.FieldError{Field: n.field, Value: text, Want: want}
		}
		*n.to = v
	}
	s.cfg.Drain = time.Duration(drain * float64(time.Second))
	return s, nil
}

// need returns what is needed of v.
func (s *scaled) need(v *pools.View) (elastic.Need, error) {
	if v.At.IsZero() {
		return elastic.Need{}, fmt.Errorf("%w: the node has just started", errPoolsUnknown)
	}
	if len(v.Missing) > 0 {
		return elastic.Need{}, fmt.Errorf("%w: told nothing for %v: %s", errPoolsUnknown, pools.Life, strings.Join(v.Missing, ", "))
	}
	loads := v.Loads(s.tenant, s.functions)
	n := elastic.Slots(s.cfg, loads)
	have := 0.0
	for _, l := range loads {
		have += l.Waiting + l.Running
	}
	if have <= s.activation {
		return elastic.Need{}, nil
	}
	return n, nil
}

// now returns what is needed of v now. A View that nobody has renewed for long is none: the loop is stuck.
func (s *Scaler) now(of *scaled, v *pools.View) (elastic.Need, error) {
	if age := s.cfg.Now().Sub(v.At); !v.At.IsZero() && age > pools.Life {
		return elastic.Need{}, fmt.Errorf("%w: it was last %v ago", errPoolsUnknown, age.Round(time.Second))
	}
	return of.need(v)
}

// IsActive says whether there shall be a replica at all.
func (s *Scaler) IsActive(_ context.Context, ref *externalscaler.ScaledObjectRef) (*externalscaler.IsActiveResponse, error) {
	of, err := readScaled(ref)
	if err != nil {
		return nil, err
	}
	v, _ := s.cfg.Pools.View()
	n, err := s.now(of, v)
	if err != nil {
		return nil, err
	}
	return &externalscaler.IsActiveResponse{Result: n.Active}, nil
}

// StreamIsActive says so at once, and with each change. While it is not known, it says nothing.
func (s *Scaler) StreamIsActive(ref *externalscaler.ScaledObjectRef, stream grpc.ServerStreamingServer[externalscaler.IsActiveResponse]) error {
	of, err := readScaled(ref)
	if err != nil {
		return err
	}
	ctx := stream.Context()
	var told *bool
	for {
		v, changed := s.cfg.Pools.View()
		if n, err := s.now(of, v); err == nil && (told == nil || *told != n.Active) {
			told = &n.Active
			if err := stream.Send(&externalscaler.IsActiveResponse{Result: n.Active}); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-s.draining:
			return errDraining
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// GetMetricSpec names the metric, and what a replica is meant to have of it.
func (s *Scaler) GetMetricSpec(_ context.Context, ref *externalscaler.ScaledObjectRef) (*externalscaler.GetMetricSpecResponse, error) {
	of, err := readScaled(ref)
	if err != nil {
		return nil, err
	}
	target := of.slots * of.cfg.Use
	return &externalscaler.GetMetricSpecResponse{MetricSpecs: []*externalscaler.MetricSpec{{
		MetricName: of.metric(), TargetSize: max(int64(target), 1), TargetSizeFloat: target,
	}}}, nil
}

// GetMetrics returns how many slots in use are needed, of all replicas.
func (s *Scaler) GetMetrics(_ context.Context, req *externalscaler.GetMetricsRequest) (*externalscaler.GetMetricsResponse, error) {
	of, err := readScaled(req.GetScaledObjectRef())
	if err != nil {
		return nil, err
	}
	v, _ := s.cfg.Pools.View()
	n, err := s.now(of, v)
	if err != nil {
		return nil, err
	}
	return &externalscaler.GetMetricsResponse{MetricValues: []*externalscaler.MetricValue{{
		MetricName: cmp.Or(req.MetricName, of.metric()), MetricValue: int64(math.Ceil(n.Slots)), MetricValueFloat: n.Slots,
	}}}, nil
}

// metric names the metric of what is scaled; KEDA puts the trigger's number before it.
func (s *scaled) metric() string {
	name := "headrace-" + s.tenant + "-" + strings.Join(s.functions, "-")
	return name[:min(len(name), 200)]
}
