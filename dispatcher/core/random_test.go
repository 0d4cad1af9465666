package core

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/headrace/headrace/store/memstore"
	"github.com/headrace/headrace/task"
)

var (
	flagSeed  = flag.Uint64("seed", 0, "run this seed of TestRandom only; with -seeds: this one and the next")
	flagSeeds = flag.Int("seeds", 0, "how many seeds TestRandom runs; 0: 25, and those that failed once")
)

// onceRed are seeds that failed once. In the first eight a limit of one try let the next push come in answer to an end, and the walk's
// executor forgot it with what had ended: the session was closed for that each time, after its acknowledgement was late.
// In the others a takeover in small slices ends a task before its flow is counted.
var onceRed = []uint64{259, 313, 338, 464, 478, 524, 542, 585, 1799, 2035}

// Whatever happens, in whatever order: the core's own books are right after each step, every task ends
// once the faults stop, and none is started after its end. internal/sim has the real executors and
// the protocol's oracle; this one is quick, and small windows make every path of them come up.
func TestRandom(t *testing.T) {
	seeds, first := *flagSeeds, max(*flagSeed, 1)
	var all []uint64
	switch {
	case seeds == 0 && *flagSeed != 0:
		seeds = 1
	case seeds == 0:
		seeds, all = 25, slices.Clone(onceRed)
	}
	for i := range seeds {
		all = append(all, first+uint64(i))
	}
	for _, seed := range all {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomWalk(t, seed) })
	}
}

// do runs a command as a script would.
func (s *script) do(line string) {
	words := strings.Fields(line)
	d := &datadriven.TestData{Cmd: words[0]}
	for _, w := range words[1:] {
		if key, value, ok := strings.Cut(w, "="); ok {
			d.CmdArgs = append(d.CmdArgs, datadriven.CmdArg{Key: key, Vals: strings.Split(strings.Trim(value, "()"), ",")})
		} else {
			d.CmdArgs = append(d.CmdArgs, datadriven.CmdArg{Key: w})
		}
	}
	s.command(d)
	s.pump()
}

func randomWalk(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 7))
	s := &script{t: t, store: memstore.New(), now: began}
	log := []string{}
	defer func() {
		if t.Failed() {
			t.Logf("to see it again: go test ./dispatcher/core -run Random -seed=%d\n%s", seed, strings.Join(log[max(0, len(log)-60):], "\n"))
		}
	}()
	do := func(format string, args ...any) {
		line := fmt.Sprintf(format, args...)
		log = append(log, line)
		s.do(line)
	}
	do("init window=%d timers=%d slice=%d bytes=%d", 1+r.IntN(6), 1+r.IntN(6), 1+r.IntN(8), (1+r.IntN(64))<<10)
	do("acquire 1")
	do("acquire 2")
	policy := fmt.Sprintf("backoff=1s grace=2s orphan=5s exclusive=%v%s", r.IntN(3) == 0, []string{"", " downstream=d"}[r.IntN(2)])
	policy += fmt.Sprintf(" cost=%d", max(r.IntN(6)-2, 1))
	credit := map[string]int{}
	open := func(x string) {
		credit[x] = 1 + r.IntN(4)
		var claims []string
		for _, name := range s.executor(x).held() {
			if tok := s.executor(x).tokens[s.ids[name]]; r.IntN(2) == 0 {
				claims = append(claims, fmt.Sprintf("%s@%d/%d", name, tok.Epoch, tok.Push))
			}
		}
		do("open %s fn=(a/f,b/g) credit=%d %s claims=(%s)", x, credit[x], policy, strings.Join(claims, ","))
	}
	executors := []string{"x", "y", "z"}
	classes := []string{"", "retryable", "throttled after=500ms", "throttled after=2s", "throttled", "throttled", "snooze after=1s", "drained", "timeout", "non_retryable"}
	for range 150 {
		x := executors[r.IntN(len(executors))]
		sx := s.executor(x)
		held := sx.held()
		name := "1.1"
		if len(s.ids) > 0 {
			name = fmt.Sprintf("%d.%d", 1+r.IntN(2), 1+r.IntN(len(s.ids)))
		}
		_, exists := s.ids[name]
		switch r.IntN(16) {
		case 0, 1, 2:
			do("submit %s n=%d partition=%d prio=%d delay=%dms band=%v", []string{"a/f", "b/g"}[r.IntN(2)], 1+r.IntN(9), 1+r.IntN(2), r.IntN(10),
				r.IntN(2)*r.IntN(9000), task.Band(r.IntN(3)))
		case 3:
			do("submit a/f ttl=%dms deadline=%dms id=k%d", 1+r.IntN(9000), 1+r.IntN(30_000), r.IntN(5))
		case 4:
			if sx.open == 0 {
				open(x)
			}
		case 5:
			if sx.open != 0 && r.IntN(3) == 0 {
				do("cut %s", x)
			}
		case 6, 7, 8:
			if sx.open != 0 && len(held) > 0 {
				do("ack %s %s", x, strings.Join(held, " "))
				credit[x] += r.IntN(3)
				do("credit %s %d", x, credit[x])
			}
		case 9, 10:
			if sx.open != 0 && len(held) > 0 {
				do("end %s %s %s", x, held[r.IntN(len(held))], classes[r.IntN(len(classes))])
			}
		case 11:
			if exists {
				do("cancel %s", name)
			}
		case 12:
			do("advance %dms", r.IntN(4000))
		case 13:
			do("%s", []string{"hold", "let"}[r.IntN(2)])
		case 14:
			if r.IntN(4) == 0 {
				do("let")
				do("fail %s", []string{"full", "unknown", "fenced"}[r.IntN(3)])
			}
		case 15:
			if sx.open != 0 && len(held) > 0 {
				do("refuse %s %s busy", x, held[r.IntN(len(held))])
			}
		}
		switch r.IntN(12) {
		case 0:
			do("limit a d min=%d max=%d", r.IntN(3), 2+r.IntN(5))
		case 1:
			do("limit a f %s", []string{"max=1", "none", "reset"}[r.IntN(3)])
		case 2:
			do("bound a %s max=%d %s", []string{"", "fn=f"}[r.IntN(2)], 1+r.IntN(3), []string{"", "rate=1", "none"}[r.IntN(3)])
		}
		if n := r.IntN(12); n < 4 {
			rule := []string{"", "fn=f", "band=low", "fn=f band=normal"}[r.IntN(4)]
			do("%s a %s for=%dms", []string{"pause", "pause", "resume", "settled"}[n], rule, r.IntN(2)*r.IntN(20_000))
		}
		for p := range uint32(2) {
			if !s.owned(p+1) && len(s.waiting) == 0 && r.IntN(3) == 0 {
				do("acquire %d", p+1)
			}
		}
	}
	// The faults stop: executors take everything and say what became of it.
	s.failures = 0
	do("let")
	for _, rule := range []string{"", "fn=f", "band=low", "fn=f band=normal"} {
		do("resume a %s", rule)
	}
	do("limit a d max=100")
	do("limit a d none")
	do("bound a none")
	do("bound a fn=f max=1")
	for p := range uint32(2) {
		if !s.owned(p + 1) {
			do("acquire %d", p+1)
		}
	}
	for range 400 {
		for _, x := range executors {
			sx := s.executor(x)
			if sx.open == 0 {
				clear(sx.tokens)
				credit[x] = 0
				do("open %s fn=(a/f,b/g) credit=1 %s", x, policy)
				do("hello %s", x)
			}
			held := sx.held()
			if len(held) > 0 {
				// What their end makes room for may be pushed here at once: that is for the next round.
				ended := maps.Clone(sx.tokens)
				do("ack %s %s", x, strings.Join(held, " "))
				do("end %s %s", x, strings.Join(held, " "))
				maps.DeleteFunc(sx.tokens, func(id task.ID, tok task.Token) bool { return ended[id] == tok })
			}
			credit[x] += 10
			do("credit %s %d", x, credit[x])
		}
		do("advance 500ms")
		if s.left() == 0 {
			break
		}
	}
	if n := s.left(); n > 0 {
		t.Errorf("%d tasks never end\n%s", n, s.core.Dump())
	}
}

func (s *script) owned(p uint32) bool { return s.core.parts[p] != nil }

// left returns how many tasks have not ended.
func (s *script) left() int {
	n := 0
	for _, id := range s.ids {
		t, err := s.store.Get(background, id)
		if err == nil && !t.State.Terminal() {
			n++
		}
	}
	return n
}

// held names the tasks of which the executor got a push, in order.
func (x *scriptExecutor) held() []string {
	var names []string
	for id := range x.tokens {
		names = append(names, fmt.Sprintf("%d.%d", id.Partition(), id.Seq()))
	}
	slices.Sort(names)
	return names
}
