package engine

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// The scripts in testdata are stories: what a node says, what handlers do, how time passes, and what the
// executor makes of it. Rewrite their answers with: go test ./executor/engine -run Scripts -rewrite
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &script{t: t, now: epochZero}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return s.run(d)
		})
	})
}

var epochZero = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

type script struct {
	t   *testing.T
	now time.Time
	e   *Engine
	out strings.Builder
}

// run does one command; after each, the engine's effects and messages are the answer.
//
//	init slots=N fn=(tenant/name,…)         open NODE       closed SESSION      advance DURATION
//	recv SESSION                            a message, one part a line, see part
//	ended ID [CLASS] [result=… message=… explicit interrupted retry=… downstream=…]
//	progress ID FRACTION [MESSAGE]          checkpoint ID TEXT      log ID TEXT
//	drain window=D confirm=D                state
func (s *script) run(d *datadriven.TestData) string {
	s.out.Reset()
	arg := func(i int) string { return d.CmdArgs[i].Key }
	switch d.Cmd {
	case "init":
		cfg := Config{ExecutorID: [16]byte{1}, Name: "x", Slots: 1}
		d.MaybeScanArgs(s.t, "slots", &cfg.Slots)
		d.MaybeScanArgs(s.t, "kept", &cfg.KeptBytes)
		d.MaybeScanArgs(s.t, "message", &cfg.MessageBytes)
		for _, a := range d.CmdArgs {
			if a.Key == "fn" {
				for _, v := range a.Vals {
					tenant, name, _ := strings.Cut(v, "/")
					cfg.Functions = append(cfg.Functions, &headracev1.FunctionDeclaration{Tenant: tenant, Name: name})
				}
			}
		}
		s.e, s.now = New(cfg), epochZero
	case "open":
		fmt.Fprintf(&s.out, "session %d\n", s.e.Open(s.now, arg(0)))
	case "closed":
		s.e.Closed(s.now, s.session(arg(0)))
	case "recv":
		m := &headracev1.SessionResponse{}
		for line := range strings.Lines(d.Input) {
			s.part(m, strings.Fields(line))
		}
		s.e.Receive(s.now, s.session(arg(0)), m)
	case "ended":
		s.ended(d)
	case "progress":
		f, _ := strconv.ParseFloat(arg(1), 64)
		s.e.Progress(s.now, s.try(arg(0)), f, rest(d, 2))
	case "checkpoint":
		s.e.Checkpoint(s.now, s.try(arg(0)), []byte(rest(d, 1)))
	case "log":
		s.e.Log(s.now, s.try(arg(0)), &headracev1.LogEntry{Level: "info", Message: rest(d, 1)})
	case "drain":
		var window, confirm string
		d.ScanArgs(s.t, "window", &window)
		d.ScanArgs(s.t, "confirm", &confirm)
		s.e.Drain(s.now, s.duration(window), s.duration(confirm))
	case "advance":
		s.advance(s.duration(arg(0)))
	case "state":
		drained, _ := s.e.Drained()
		fmt.Fprintf(&s.out, "running %d, unconfirmed %d, remembered %d, drained %v\n", s.e.Running(), s.e.Unconfirmed(), len(s.e.tries)+len(s.e.past.tokens), drained)
	default:
		d.Fatalf(s.t, "unknown command %s", d.Cmd)
	}
	s.flush()
	return s.out.String()
}

// advance moves time as the runtime does, from one Next to the next; beats are sent, but not printed.
func (s *script) advance(d time.Duration) {
	end := s.now.Add(d)
	for {
		next := s.e.Next()
		if next.IsZero() || next.After(end) {
			break
		}
		if next.Before(s.now) {
			s.t.Fatalf("Next = %v, which is over since %v: a loop would spin", next, s.now.Sub(next))
		}
		s.now = next
		s.e.Tick(s.now)
		s.flush()
	}
	s.now = end
	s.e.Tick(s.now)
}

func (s *script) flush() {
	at := fmt.Sprintf("%6.3fs  ", s.now.Sub(epochZero).Seconds())
	if fx := s.e.Take(); fx != nil {
		for _, t := range fx.Start {
			fmt.Fprintf(&s.out, "%sstart %s\n", at, name(t.ID, t.Token))
		}
		for _, c := range fx.Cancel {
			fmt.Fprintf(&s.out, "%s%s\n", at, strings.TrimSpace(fmt.Sprintf("cancel %s: %v %s", name(c.Try.ID, c.Try.Token), c.Cause, c.Reason)))
		}
		for _, t := range fx.Overdue {
			fmt.Fprintf(&s.out, "%soverdue %s\n", at, name(t.ID, t.Token))
		}
		for _, t := range fx.Void {
			fmt.Fprintf(&s.out, "%svoid %s\n", at, name(t.ID, t.Token))
		}
		for _, id := range fx.GoingAway {
			fmt.Fprintf(&s.out, "%ssession %d is going away\n", at, id)
		}
		for _, id := range fx.Close {
			fmt.Fprintf(&s.out, "%sclose session %d\n", at, id)
		}
	}
	for _, id := range s.e.Sessions() {
		for m := s.e.Message(s.now, id); m != nil; m = s.e.Message(s.now, id) {
			if text := message(m); text != "" {
				fmt.Fprintf(&s.out, "%s%d▶ %s\n", at, id, text)
			}
			s.e.Sent(id)
			s.e.Recycle(m)
		}
	}
}

// message is what a message says, but for its beats: they are numbered 4 a second from 1.
func message(m *headracev1.SessionRequest) string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if h := m.Hello; h != nil {
		add("hello")
		for _, e := range h.Epochs {
			add("p%d=%d", e.Partition, e.Epoch)
		}
		for _, c := range h.Claims {
			if c.Outcome != nil {
				add("[claim %s: %s]", wireName(c.TaskId, c.Token), outcome(c.Outcome))
			} else {
				add("[claim %s runs %v]", wireName(c.TaskId, c.Token), time.Duration(c.RunMicros)*time.Microsecond)
			}
		}
	}
	for _, a := range m.Acks {
		switch {
		case a.Refusal == 0:
			add("[ack %s]", wireName(a.TaskId, a.Token))
		case a.Epoch != 0:
			add("[refuse %s: %v, %d]", wireName(a.TaskId, a.Token), strings.TrimPrefix(a.Refusal.String(), "REFUSAL_"), a.Epoch)
		default:
			add("[refuse %s: %v]", wireName(a.TaskId, a.Token), strings.TrimPrefix(a.Refusal.String(), "REFUSAL_"))
		}
	}
	for _, p := range m.Progress {
		text := fmt.Sprintf("progress %s %v %s", wireName(p.TaskId, p.Token), p.Fraction, p.Message)
		if p.Checkpoint != nil {
			text += " checkpoint=" + string(p.Checkpoint)
		}
		add("[%s]", text)
	}
	for _, l := range m.Logs {
		var lines []string
		for _, e := range l.Entries {
			lines = append(lines, e.Message)
		}
		add("[log %s: %s]", wireName(l.TaskId, l.Token), strings.Join(lines, "; "))
	}
	for _, o := range m.Outcomes {
		add("[outcome %s: %s]", wireName(o.TaskId, o.Token), outcome(o))
	}
	if m.Credit > 0 {
		add("credit=%d", m.Credit)
	}
	if m.Draining && (len(parts) > 0 || m.Beat == nil) { // each message says it; beats alone are not printed
		add("draining")
	}
	return strings.Join(parts, " ")
}

func outcome(o *headracev1.Outcome) string {
	text := task.Class(o.ErrorClass).String()
	if o.ErrorClass == 0 {
		text = "ok"
	}
	if len(o.Result) > 100 {
		text += fmt.Sprintf(" (%d bytes)", len(o.Result))
	} else if len(o.Result) > 0 {
		text += " " + string(o.Result)
	}
	if o.Message != "" {
		text += " " + o.Message
	}
	if o.RetryAfterMicros > 0 {
		text += fmt.Sprint(" after ", time.Duration(o.RetryAfterMicros)*time.Microsecond)
	}
	if o.Downstream != "" {
		text += " of " + o.Downstream
	}
	if o.Checkpoint != nil {
		text += " checkpoint=" + string(o.Checkpoint)
	}
	return text
}

// part adds what one line says: "push 1.7 5-1 beat=1 [fn=…]", "welcome p1=5 …", "answer 3 p1=5 …",
// "committed 1.7 5-1 [stale]", "cancel 1.7 5-1 epoch=5 [stale|timeout]", "claim 1.7 5-1 epoch=5 [void]",
// "recorded 1.7 5-1", "going-away".
func (s *script) part(m *headracev1.SessionResponse, f []string) {
	opts := map[string]string{}
	var epochs []*headracev1.PartitionEpoch
	for _, a := range f[1:] {
		k, v, _ := strings.Cut(a, "=")
		opts[k] = v
		if n, err := strconv.Atoi(strings.TrimPrefix(k, "p")); err == nil && strings.HasPrefix(k, "p") {
			epochs = append(epochs, &headracev1.PartitionEpoch{Partition: uint32(n), Epoch: s.number(v)})
		}
	}
	has := func(k string) bool { _, ok := opts[k]; return ok }
	switch f[0] {
	case "welcome":
		m.Welcome = &headracev1.Welcome{NodeId: "n", Epochs: epochs}
	case "answer":
		m.BeatAnswer = &headracev1.BeatAnswer{Number: s.number(f[1]), Partitions: epochs}
	case "going-away":
		m.GoingAway = true
	case "push":
		tenant, fn, _ := strings.Cut(opts["fn"], "/")
		if fn == "" {
			tenant, fn = "a", "f"
		}
		id, tok := s.names(f[1], f[2])
		m.Pushes = append(m.Pushes, &headracev1.Push{
			TaskId: id, Token: tok, Tenant: tenant, Function: fn, Attempt: 1, Beat: s.number(opts["beat"]),
			TimeoutMicros: s.duration(opts["timeout"]).Microseconds(),
			OrphanMicros:  s.duration(opts["orphan"]).Microseconds(), CancelGraceMicros: s.duration(opts["grace"]).Microseconds(),
		})
	case "committed":
		id, tok := s.names(f[1], f[2])
		m.Committed = append(m.Committed, &headracev1.Committed{TaskId: id, Token: tok, Stale: has("stale")})
	case "recorded":
		id, tok := s.names(f[1], f[2])
		m.Recorded = append(m.Recorded, &headracev1.Recorded{TaskId: id, Token: tok})
	case "claim":
		id, tok := s.names(f[1], f[2])
		m.Claims = append(m.Claims, &headracev1.ClaimAnswer{TaskId: id, Token: tok, Adopted: !has("void"), Epoch: s.number(opts["epoch"])})
	case "cancel":
		id, tok := s.names(f[1], f[2])
		c := &headracev1.CancelTry{TaskId: id, Token: tok, Epoch: s.number(opts["epoch"]), Cause: headracev1.CancelCause_CANCEL_CAUSE_CANCELLED, Reason: opts["reason"]}
		if has("stale") {
			c.Cause = headracev1.CancelCause_CANCEL_CAUSE_STALE
		} else if has("timeout") {
			c.Cause = headracev1.CancelCause_CANCEL_CAUSE_TIMEOUT
		}
		m.Cancels = append(m.Cancels, c)
	default:
		s.t.Fatalf("unknown part %q", f[0])
	}
}

func (s *script) ended(d *datadriven.TestData) {
	t := s.try(d.CmdArgs[0].Key)
	var r Result
	for _, a := range d.CmdArgs[1:] {
		switch a.Key {
		case "ok":
		case "result":
			r.Body = []byte(a.Vals[0])
			if n, err := strconv.Atoi(a.Vals[0]); err == nil {
				r.Body = bytes.Repeat([]byte{'x'}, n)
			}
		case "message":
			r.Message = a.Vals[0]
		case "explicit":
			r.Explicit = true
		case "interrupted":
			r.Interrupted = true
		case "retry":
			r.RetryAfter = s.duration(a.Vals[0])
		case "downstream":
			r.Downstream = a.Vals[0]
		default:
			for c := range task.Class(task.ClassCount) {
				if c.String() == a.Key {
					r.Class = c
				}
			}
			if r.Class == 0 {
				d.Fatalf(s.t, "no class %q", a.Key)
			}
		}
	}
	s.e.Ended(s.now, t, r)
}

func rest(d *datadriven.TestData, from int) string {
	var words []string
	for _, a := range d.CmdArgs[from:] {
		words = append(words, a.String())
	}
	return strings.Join(words, " ")
}

// An id "1.7" is sequence number 7 of partition 1; a token "5-1" push 1 of epoch 5.
func (s *script) names(id, tok string) ([]byte, *headracev1.Token) {
	p, n, _ := strings.Cut(id, ".")
	e, push, _ := strings.Cut(tok, "-")
	i := task.NewID(uint32(s.number(p)), s.number(n), 0)
	return i[:], &headracev1.Token{Epoch: s.number(e), Push: s.number(push)}
}

func name(id task.ID, tok task.Token) string {
	return fmt.Sprintf("%d.%d %d-%d", id.Partition(), id.Seq(), tok.Epoch, tok.Push)
}

func wireName(id []byte, tok *headracev1.Token) string { return name(task.ID(id), token(tok)) }

func (s *script) try(id string) *Try {
	b, _ := s.names(id, "0-0")
	t := s.e.tries[task.ID(b)]
	if t == nil {
		fmt.Fprintf(&s.out, "no try of %s\n", id)
		t = &Try{state: done}
	}
	return t
}

func (s *script) session(arg string) SessionID { return SessionID(s.number(arg)) }

func (s *script) number(v string) uint64 {
	if v == "" {
		return 0
	}
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		s.t.Fatalf("%q is no number", v)
	}
	return n
}

func (s *script) duration(v string) time.Duration {
	if v == "" {
		return 0
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}
