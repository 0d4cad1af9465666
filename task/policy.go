package task

import (
	"fmt"
	"hash/fnv"
	"math"
	"time"
)

// Policy is what a function's executors declare about it. The zero value of a field means its
// default. Owners store a policy when its hash changes; the newest Version wins.
type Policy struct {
	Version       int64         // declared by the team; a larger one replaces a smaller one
	Timeout       time.Duration // of one attempt; 0: none; 1 ms … 1 year
	MaxAttempts   int           // 0: 4 (three retries); 1 … 1000
	Backoff       Backoff
	OrphanTimeout time.Duration // 0: 30 s; how long an executor may be cut off from the owner; 5 s … 24 h
	CancelGrace   time.Duration // 0: 30 s; how long a cancelled handler may take; 1 s … 1 h
	Exclusive     bool          // never two runs at once: announced on disk before its push
	Downstream    string        // "" means the function's own name
	// Cost is how many of its executor's slots a try takes. 0: 1; at most the slots that the executor has.
	Cost int
	// Requires names labels that an executor must have to run the function, such as "gpu=true"; Prefers labels of the
	// executors that get its tasks while one of them has a slot free. "": none; see ParseMatch.
	Requires string
	Prefers  string
}

// Defaults of a Policy.
const (
	DefaultMaxAttempts   = 4
	DefaultOrphanTimeout = 30 * time.Second
	DefaultCancelGrace   = 30 * time.Second
	MaxLosses            = 3       // the third loss, suffered alone on its executor, ends a task
	MaxSlots             = 100_000 // of an executor
	MaxUndelivered       = 10      // so does this many pushes to executors that never came back to confirm or deny them
)

// WithDefaults returns p with every zero field replaced by its default.
func (p Policy) WithDefaults() Policy {
	if p.MaxAttempts == 0 {
		p.MaxAttempts = DefaultMaxAttempts
	}
	if p.OrphanTimeout == 0 {
		p.OrphanTimeout = DefaultOrphanTimeout
	}
	if p.CancelGrace == 0 {
		p.CancelGrace = DefaultCancelGrace
	}
	p.Backoff = p.Backoff.withDefaults()
	return p
}

// Validate checks p as declared; zero fields are fine. Its error is a *FieldError.
func (p Policy) Validate() error {
	if p.Timeout != 0 {
		if err := Duration("policy.timeout", p.Timeout, time.Millisecond, MaxTimeout); err != nil {
			return err
		}
	}
	if p.MaxAttempts < 0 || p.MaxAttempts > MaxAttemptsLimit {
		return &FieldError{Field: "policy.max_attempts", Want: "1 to 1000, or 0 for the default of 4"}
	}
	if p.OrphanTimeout != 0 {
		if err := Duration("policy.orphan_timeout", p.OrphanTimeout, 5*time.Second, 24*time.Hour); err != nil {
			return err
		}
	}
	if p.CancelGrace != 0 {
		if err := Duration("policy.cancel_grace", p.CancelGrace, time.Second, time.Hour); err != nil {
			return err
		}
	}
	if p.Downstream != "" {
		if err := Name("policy.downstream", p.Downstream); err != nil {
			return err
		}
	}
	if p.Cost < 0 || p.Cost > MaxSlots {
		return &FieldError{Field: "policy.cost", Value: fmt.Sprint(p.Cost), Want: "1 to the executor's slots, or 0 for 1"}
	}
	if _, err := ParseMatch("policy.requires", p.Requires); err != nil {
		return err
	}
	if _, err := ParseMatch("policy.prefers", p.Prefers); err != nil {
		return err
	}
	return p.Backoff.Validate()
}

// Hash is the same for equal policies in every process and version.
func (p Policy) Hash() uint64 {
	h := fnv.New64a()
	word := func(v int64) {
		var b [8]byte
		for i := range b {
			b[i] = byte(v >> (8 * i))
		}
		h.Write(b[:])
	}
	word(p.Version)
	word(int64(p.Timeout))
	word(int64(p.MaxAttempts))
	word(int64(p.Backoff.Base))
	word(int64(p.Backoff.Max))
	word(int64(math.Float64bits(p.Backoff.Factor)))
	word(int64(p.OrphanTimeout))
	word(int64(p.CancelGrace))
	if p.Exclusive {
		word(1)
	}
	h.Write([]byte(p.Downstream))
	if p.Cost != 0 || p.Requires != "" || p.Prefers != "" { // else as builds have it that do not know them
		h.Write([]byte{0})
		word(int64(p.Cost))
		h.Write([]byte(p.Requires + "\x00" + p.Prefers))
	}
	return h.Sum64()
}

// Backoff is the pause before a retry: base·factor^(n-1) before the n-th retry, at most max, then
// up to 20 % less by jitter. Zero fields mean 30 s, 2 and 1 h.
type Backoff struct {
	Base   time.Duration
	Factor float64
	Max    time.Duration
}

// MaxRetryAfter bounds what a handler may ask for.
const MaxRetryAfter = 24 * time.Hour

func (b Backoff) withDefaults() Backoff {
	if b.Base == 0 {
		b.Base = 30 * time.Second
	}
	if b.Factor == 0 {
		b.Factor = 2
	}
	if b.Max == 0 {
		b.Max = max(time.Hour, b.Base)
	}
	return b
}

// Validate checks b; zero fields are fine. Its error is a *FieldError.
func (b Backoff) Validate() error {
	if b.Base != 0 {
		if err := Duration("policy.backoff.base", b.Base, time.Millisecond, MaxRetryAfter); err != nil {
			return err
		}
	}
	if b.Factor != 0 && !(b.Factor >= 1 && b.Factor <= 100) { // NaN fails too
		return &FieldError{Field: "policy.backoff.factor", Want: "1 to 100"}
	}
	if b.Max != 0 && (b.Max < b.Base || b.Max > MaxRetryAfter) {
		return &FieldError{Field: "policy.backoff.max", Value: b.Max.String(), Want: "the base to 24h"}
	}
	return nil
}

// Delay returns the pause before the retry that follows the n-th failure, n from 1. Its u in [0, 1)
// draws the jitter: 0 for none, up to 20 % less. Result: 0 < d <= Max for every n, never an overflow;
// without jitter it never falls as n grows.
func (b Backoff) Delay(n int, u float64) time.Duration {
	b = b.withDefaults()
	d := float64(b.Base) * math.Pow(b.Factor, float64(max(n, 1)-1))
	if !(d < float64(b.Max)) { // +Inf and NaN too
		d = float64(b.Max)
	}
	return max(time.Duration(d*(1-0.2*u)), 1)
}
