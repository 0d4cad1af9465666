package executor

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/task"
)

func sharesOf(t *testing.T, cfg Config, functions ...*registration) string {
	t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	cfg.Name = "x"
	x, err := New(cfg)
	if err != nil {
		return err.Error()
	}
	all, err := x.shares(functions)
	if err != nil {
		return err.Error()
	}
	var out []string
	ids := map[[16]byte]bool{}
	for _, s := range all {
		text := fmt.Sprintf("%s %d:", s.name, s.slots)
		for _, f := range s.functions {
			text += fmt.Sprintf(" %s/%d", f.name, s.bands(f))
		}
		out = append(out, text)
		ids[s.id] = true
	}
	if len(ids) != len(all) {
		t.Error("two parts have one id")
	}
	return strings.Join(out, "; ")
}

// The parts of the slots, and which bands of which functions run there (1 high, 2 normal, 4 low).
func TestShares(t *testing.T) {
	f := func(name string, o fn.Options) *registration {
		return &registration{functionName: functionName{"a", name}, policy: o}
	}
	plain, mail := f("f", fn.Options{}), f("mail", fn.Options{})
	for _, c := range []struct {
		want      string
		cfg       Config
		functions []*registration
	}{
		{"x 4: f/7 mail/7", Config{Slots: 4}, []*registration{plain, mail}},
		{"x:high 1: f/1 mail/1; x 3: f/7 mail/7", Config{Slots: 4, Reserve: []Reserve{{Band: "high", Slots: 1}}}, []*registration{plain, mail}},
		{"x:mail 1: mail/7; x 3: f/7", Config{Slots: 4, Reserve: []Reserve{{Function: "mail", Slots: 1, Only: true}}}, []*registration{plain, mail}},
		{"x:mail/low 2: mail/4; x:high 1: f/1 mail/1; x 5: f/7 mail/3", Config{Slots: 8, Reserve: []Reserve{{Function: "mail", Band: "low", Slots: 2, Only: true},
			{Band: "high", Slots: 1}}}, []*registration{plain, mail}},
		{"x 4: f/7", Config{Slots: 4}, []*registration{plain, f("gpu", fn.Options{Requires: "gpu=true"})}},
		{"x 4: gpu/7", Config{Slots: 4, Labels: map[string]string{"gpu": "true", "zone": "a"}}, []*registration{f("gpu", fn.Options{Requires: "gpu=true"})}},
		{"executor: no function can run here: gpu requires gpu=true", Config{Slots: 4}, []*registration{f("gpu", fn.Options{Requires: "gpu=true"})}},
		{`function f: policy.cost: "4" given, want 1 to 3, the slots that are not reserved`, Config{Slots: 4, Reserve: []Reserve{{Band: "high", Slots: 1}}},
			[]*registration{f("f", fn.Options{Cost: 4})}},
		{"executor: Config.Reserve[0]: no function g is offered here", Config{Slots: 4, Reserve: []Reserve{{Function: "g", Slots: 1}}}, []*registration{plain}},
		{`executor: Config.Reserve[1].Slots: "3" given, want 1 or more, and in all less than the 4 slots`, Config{Slots: 4, Reserve: []Reserve{{Band: "high", Slots: 1},
			{Band: "low", Slots: 3}}}, nil},
		{`executor: Config.Reserve[0].Band: "urgent" given, want high, normal or low`, Config{Slots: 4, Reserve: []Reserve{{Band: "urgent", Slots: 1}}}, nil},
		{`executor: Config.Labels: "a b" given, want values of 1-63 letters, digits, '.', '_', '-'`, Config{Slots: 4, Labels: map[string]string{"zone": "a b"}}, nil},
	} {
		if got := sharesOf(t, c.cfg, c.functions...); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
	_, err := New(Config{Slots: 2, Reserve: []Reserve{{Slots: 1}}})
	if fe := (*task.FieldError)(nil); !errors.As(err, &fe) || fe.Field != "Config.Reserve[0]" {
		t.Errorf("an entry for nothing: %v", err)
	}
}
