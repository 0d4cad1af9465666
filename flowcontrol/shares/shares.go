package shares

import (
	"time"

	"github.com/headrace/headrace/flowcontrol/gcra"
)

const (
	// Every is how often a node reports.
	Every = 250 * time.Millisecond
	// Life is how long a share may be used after it was asked for.
	Life = time.Second
	// SettleMax is how long what runs in a partition that nobody opens is waited for.
	SettleMax = 30 * time.Second
	// ReadyMax is the most waiting tasks that a report has to tell: more changes no share.
	ReadyMax = 1_000_000
	// quantum is how long a node keeps its turn when there are fewer permits than nodes that want one.
	quantum = 2 * time.Second
)

// Key names a limit: of a tenant (Function ""), or of one of its functions.
type Key struct{ Tenant, Function string }

// Limit is what a limit allows all nodes together.
type Limit struct {
	Concurrency int       // tries at once; 0: any number
	Rate        gcra.Rate // starts; the zero Rate: any number
}

// Opened is a partition that a node has, or had, open under an epoch.
type Opened struct {
	Partition uint32
	Epoch     uint64
}

// Use is what a node says of one limit.
type Use struct {
	Key
	InUse  int // tries that count, also those of partitions that it lost
	Ready  int // tasks that it could start now but for its share, ReadyMax at most
	Share  int // that it may apply; 0 once it has run out
	Tokens int // that it has not spent
}

// Report is what a node says to a coordinator: everything that it uses of the coordinator's limits.
type Report struct {
	Node  string
	Seq   uint64   // grows with each report of the node
	Known uint64   // Sum of all limits whose coordinator this is, as the node sees it
	Open  []Opened // what it owns, where all that runs is counted in its uses
	Lost  []Opened // what it lost, where what ran is counted in its uses, too
	Uses  []Use    // a limit that is missing is not in use
}

// Grant is a node's new share of a limit, and tokens beside those that it has.
type Grant struct {
	Key
	Share, Tokens int
}

// Answer is what a coordinator says to a report.
type Answer struct {
	Grants  []Grant
	Adopted []Opened // of the report's Lost: others count what runs there now
}

// hash is FNV-1a over the parts, each followed by a zero byte, finished by splitmix64.
func hash(parts ...string) uint64 {
	h := uint64(14695981039346656037)
	for _, s := range parts {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
		h *= 1099511628211
	}
	h ^= h >> 30
	h *= 0xbf58476d1ce4e5b9
	h ^= h >> 27
	h *= 0x94d049bb133111eb
	return h ^ h>>31
}

// Sum stands for a set of limits: the sums of its members xored.
func (k Key) Sum() uint64 { return hash(k.Tenant, k.Function) }

// Coordinator returns which of the nodes coordinates a limit; "" without nodes. It changes for the limits of a node that
// leaves, and for those that a new one takes, and for no others.
func Coordinator(k Key, nodes []string) string {
	var best string
	var most uint64
	for _, n := range nodes {
		if h := hash(k.Tenant, k.Function, n); best == "" || h > most || h == most && n < best {
			best, most = n, h
		}
	}
	return best
}

// Lease is a node's side of one limit. The zero value has no share.
type Lease struct {
	share  int
	tokens int
	until  time.Time // of the share
	keep   time.Time // of the tokens
}

// Grant takes the answer to a report that was made at askedAt. Answers to older reports than the newest answered one must
// not be passed.
func (l *Lease) Grant(askedAt time.Time, g Grant) {
	l.share, l.until = g.Share, askedAt.Add(Life)
	if g.Tokens > 0 {
		l.tokens, l.keep = l.tokens+g.Tokens, askedAt.Add(Life)
	}
}

// Share is how many tries the node may have in use if it starts one at now.
func (l *Lease) Share(now time.Time) int {
	if !now.Before(l.until) {
		return 0
	}
	return l.share
}

// Tokens is how many starts the node may make at now.
func (l *Lease) Tokens(now time.Time) int {
	if !now.Before(l.keep) {
		return 0
	}
	return l.tokens
}

// Spend takes a token.
func (l *Lease) Spend() { l.tokens = max(0, l.tokens-1) }

// Ends is when the share or the tokens run out next after now; zero: they have.
func (l *Lease) Ends(now time.Time) time.Time {
	var next time.Time
	for _, t := range [...]time.Time{l.until, l.keep} {
		if t.After(now) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	return next
}
