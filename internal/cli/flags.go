package cli

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/task"
)

// globalFlags adds the flags that every command has. Their defaults come from the environment.
func (a *app) globalFlags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVar(&a.addr, "addr", cmpOr(os.Getenv("HEADRACE_ADDR"), "127.0.0.1:7070"), "`host:port` of a server, or of several with commas between (HEADRACE_ADDR)")
	// An empty variable is kept, to be refused below: a script whose variable is unset by mistake must
	// not act on another tenant.
	tenant, ok := os.LookupEnv("HEADRACE_TENANT")
	if !ok {
		tenant = "default"
	}
	f.StringVar(&a.tenant, "tenant", tenant, "`name` of the tenant (HEADRACE_TENANT)")
	f.StringVar(&a.apiKey, "api-key", "", "`key` that says who you are (HEADRACE_API_KEY)")
	f.StringVarP(&a.output, "output", "o", "text", "`format` of the output: text or json")
	root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		if a.apiKey == "" { // not a default, or --help would show it
			a.apiKey = os.Getenv("HEADRACE_API_KEY")
		}
		if a.output != "text" && a.output != "json" {
			return usagef("--output: %s given, want text or json", task.Shorten(a.output))
		}
		if err := task.Name("--tenant", a.tenant); err != nil {
			return usageError{err}
		}
		return nil
	}
}

func cmpOr(s, other string) string {
	if s != "" {
		return s
	}
	return other
}

// durationFlag is a duration in Go's syntax, to which "d" for days of 24 hours is added: 90s, 1d12h.
type durationFlag time.Duration

func (d *durationFlag) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}
func (d *durationFlag) Type() string { return "duration" }
func (d *durationFlag) Set(s string) error {
	v, err := parseDuration(s)
	if err == nil {
		*d = durationFlag(v)
	}
	return err
}

// parseDuration reads a duration of at least 0.
func parseDuration(s string) (time.Duration, error) {
	bad := fmt.Errorf("%s given, want a duration of at least 0 such as 500ms, 90s, 1h30m or 2d", task.Shorten(s))
	days, rest, found := strings.Cut(s, "d")
	if !found {
		days, rest = "", s
	}
	var sum time.Duration
	if found {
		n, err := strconv.ParseFloat(days, 64)
		if hours := n * 24; err != nil || !(hours >= 0 && hours < math.MaxInt64/float64(time.Hour)) {
			return 0, bad
		}
		sum = time.Duration(n * float64(24*time.Hour))
	}
	if rest != "" {
		d, err := time.ParseDuration(rest)
		if err != nil || d < 0 || sum+d < sum {
			return 0, bad
		}
		sum += d
	} else if !found {
		return 0, bad
	}
	return sum, nil
}

// timeFlag is an instant in RFC 3339.
type timeFlag time.Time

func (t *timeFlag) String() string {
	if time.Time(*t).IsZero() {
		return ""
	}
	return time.Time(*t).Format(time.RFC3339Nano)
}
func (t *timeFlag) Type() string { return "time" }
func (t *timeFlag) Set(s string) error {
	v, err := parseTime(s)
	if err == nil {
		*t = timeFlag(v)
	}
	return err
}

func parseTime(s string) (time.Time, error) {
	v, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return v, fmt.Errorf("%s given, want a time such as 2026-01-31T15:04:05Z or 2026-01-31T15:04:05+01:00", task.Shorten(s))
	}
	return v, nil
}

// labelsFlag collects K=V. The value may hold '=' and be empty.
type labelsFlag map[string]string

func (l labelsFlag) String() string { return "" }
func (l labelsFlag) Type() string   { return "k=v" }
func (l labelsFlag) Set(s string) error {
	k, v, ok := strings.Cut(s, "=")
	if !ok || k == "" {
		return fmt.Errorf("%s given, want KEY=VALUE", task.Shorten(s))
	}
	if _, twice := l[k]; twice {
		return fmt.Errorf("label %s is given twice", task.Shorten(k))
	}
	l[k] = v
	return nil
}
