package task

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// An id gives back the partition and number that it was made of, as bytes and as text, and texts sort as ids do.
func TestIDRoundTrip(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	var ids []ID
	for _, partition := range []uint32{0, 1, 255, 256, MaxPartition} {
		for _, seq := range []uint64{1, 2, 1 << 20, MaxSeq} {
			id := NewID(partition, seq, rng.Uint64())
			if id.Partition() != partition || id.Seq() != seq {
				t.Fatalf("NewID(%d, %d) holds %d, %d", partition, seq, id.Partition(), id.Seq())
			}
			text := id.String()
			if back, err := ParseID(text); err != nil || back != id || len(text) != 26 {
				t.Fatalf("ParseID(%q) = %v, %v", text, back, err)
			}
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, ID.Compare)
	if !slices.IsSortedFunc(ids, func(a, b ID) int { return strings.Compare(a.String(), b.String()) }) {
		t.Error("texts do not sort as their ids")
	}
}

func TestParseIDRefusesWhatStringDidNotWrite(t *testing.T) {
	t.Parallel()
	good := NewID(3, 9, 77).String()
	for _, bad := range []string{"", "a", good + "a", strings.ToUpper(good), good[:25] + "1", good[:25] + "z", "../../../../../etc/passwd.", strings.Repeat("\x00", 26)} {
		if id, err := ParseID(bad); err == nil {
			t.Errorf("ParseID(%q) = %v", bad, id)
		}
	}
}

// Tokens as text compare as tokens do: a downstream can fence with strings.
func TestTokenTextKeepsOrder(t *testing.T) {
	t.Parallel()
	tokens := []Token{{1, 1}, {1, 2}, {1, 15}, {1, 16}, {1, 1 << 40}, {2, 1}, {16, 1}, {255, 3}, {256, 1}}
	for i, tok := range tokens {
		if back, err := ParseToken(tok.String()); err != nil || back != tok {
			t.Errorf("ParseToken(%q) = %v, %v", tok.String(), back, err)
		}
		if i > 0 && (!tok.After(tokens[i-1]) || tok.String() <= tokens[i-1].String()) {
			t.Errorf("%v is not after %v", tok, tokens[i-1])
		}
	}
	for _, bad := range []string{"", "1-1", "x", tokens[0].String() + " "} {
		if _, err := ParseToken(bad); err == nil {
			t.Errorf("ParseToken(%q) succeeded", bad)
		}
	}
}

// The default pauses are 30 s, 60 s, … up to an hour.
func TestBackoffDefaults(t *testing.T) {
	t.Parallel()
	want := []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute, 32 * time.Minute, time.Hour, time.Hour}
	for i, w := range want {
		if got := (Backoff{}).Delay(i+1, 0); got != w {
			t.Errorf("Delay(%d) = %v, want %v", i+1, got, w)
		}
	}
}

// No attempt number makes a pause overflow, shrink below the jitter, or exceed the maximum (B003).
func TestBackoffNeverOverflows(t *testing.T) {
	t.Parallel()
	ns := []int{math.MinInt, -1, 0, 1, 2, 305, 310, 1000, 32_767, 65_535, 1 << 40}
	for n := 1; n <= 100; n++ {
		ns = append(ns, n)
	}
	slices.Sort(ns)
	for _, b := range []Backoff{{}, {Base: time.Second, Factor: 2, Max: time.Hour}, {Base: time.Second, Factor: 10, Max: time.Hour}, {Base: time.Millisecond, Factor: 1}} {
		last := time.Duration(0)
		limit := b.withDefaults().Max
		for _, n := range ns {
			plain, jittered := b.Delay(n, 0), b.Delay(n, 0.999999)
			if plain <= 0 || plain > limit || plain < last {
				t.Fatalf("%+v.Delay(%d) = %v after %v, limit %v", b, n, plain, last, limit)
			}
			if jittered <= 0 || jittered > plain || jittered < plain*79/100 {
				t.Fatalf("%+v.Delay(%d) with jitter = %v of %v", b, n, jittered, plain)
			}
			if n >= 60 && b.Factor >= 2 && plain != limit {
				t.Fatalf("%+v.Delay(%d) = %v, want the maximum", b, n, plain)
			}
			last = plain
		}
	}
}

func TestBackoffRefusesNonsense(t *testing.T) {
	t.Parallel()
	for _, b := range []Backoff{
		{Factor: 0.5}, {Factor: -1}, {Factor: math.NaN()}, {Factor: math.Inf(1)}, {Base: 1}, {Base: -time.Second},
		{Base: 25 * time.Hour}, {Base: time.Hour, Max: time.Minute}, {Max: 25 * time.Hour}, {Max: -1},
	} {
		if err := b.Validate(); err == nil {
			t.Errorf("%+v is accepted", b)
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"a", "0", "acme", "a.b_c-d", strings.Repeat("x", 63)} {
		if err := Name("tenant", good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", " ", "*", "A", ".a", "-a", "_a", "a/b", "a b", "caf\u00e9", "\u212a", strings.Repeat("x", 64), "a\x00", "..", "a\n"} {
		err := Name("tenant", bad)
		if err == nil || !strings.HasPrefix(err.Error(), "tenant: ") || strings.ContainsAny(err.Error(), "\x00\n") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestClientIDs(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"a/b", "a%2Fb", "..", "+", "null", "0", "caf\u00e9", "cafe\u0301", "😀", "a ", strings.Repeat("x", 256)} {
		if err := ClientID("id", good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", "a\x00", "a\nb", "\x1b[2J", "\xff", "a\u0085", "a\u2028", strings.Repeat("x", 257)} {
		if err := ClientID("id", bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestLabels(t *testing.T) {
	t.Parallel()
	many := map[string]string{}
	for i := range 17 {
		many[string(rune('a'+i))] = ""
	}
	for _, bad := range []map[string]string{many, {"": "v"}, {strings.Repeat("k", 64): "v"}, {"k": strings.Repeat("v", 256)}, {"k": "\x00"}, {"\n": "v"}} {
		if err := Labels(bad); err == nil {
			t.Errorf("%v is accepted", bad)
		}
	}
	delete(many, "a")
	if err := Labels(many); err != nil {
		t.Error(err)
	}
}

// An error text is cut to its limit between two characters, is valid UTF-8 and holds no NUL.
func TestCutError(t *testing.T) {
	t.Parallel()
	if got := CutError("boom"); got != "boom" {
		t.Errorf("%q", got)
	}
	for _, text := range []string{strings.Repeat("é", MaxErrorText), "\x00" + strings.Repeat("x", 3*MaxErrorText), strings.Repeat("\xff", 3*MaxErrorText), strings.Repeat("\x00", MaxErrorText)} {
		got := CutError(text)
		if len(got) > MaxErrorText || !utf8.ValidString(got) || strings.Contains(got, "\x00") {
			t.Errorf("%d bytes, valid %v", len(got), utf8.ValidString(got))
		}
		if !strings.HasSuffix(got, "(cut)") {
			t.Errorf("no mark at the end: %q", got[len(got)-20:])
		}
	}
}

func TestPolicyHashTellsFieldsApart(t *testing.T) {
	t.Parallel()
	seen := map[uint64]Policy{}
	for _, p := range []Policy{
		{}, {Version: 1}, {Timeout: 1}, {MaxAttempts: 1}, {OrphanTimeout: 1}, {CancelGrace: 1}, {Exclusive: true}, {Downstream: "a"},
		{Backoff: Backoff{Base: 1}}, {Backoff: Backoff{Factor: 1}}, {Backoff: Backoff{Max: 1}},
	} {
		if q, ok := seen[p.Hash()]; ok {
			t.Errorf("%+v and %+v have the same hash", p, q)
		}
		seen[p.Hash()] = p
	}
}

func TestStatesAndBandsByName(t *testing.T) {
	t.Parallel()
	for s := Scheduled; s <= Expired; s++ {
		if got, err := ParseState(s.String()); err != nil || got != s {
			t.Errorf("%v: %v, %v", s, got, err)
		}
		if s.Terminal() != (s >= Succeeded) {
			t.Errorf("%v.Terminal() = %v", s, s.Terminal())
		}
	}
	for b := High; b < Bands; b++ {
		if got, err := ParseBand(b.String()); err != nil || got != b {
			t.Errorf("%v: %v, %v", b, got, err)
		}
	}
	if _, err := ParseState("done"); err == nil {
		t.Error(`state "done" is accepted`)
	}
	if b, err := ParseBand(""); err != nil || b != Normal {
		t.Errorf("no band: %v, %v", b, err)
	}
}
