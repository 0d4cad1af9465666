package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/types/known/durationpb"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/store/memstore"
	"github.com/headrace/headrace/task"
)

// The scripts in testdata are stories of one node: what clients, executors and the store do, how time
// passes, and what the core makes of it. The store is the map model. Rewrite their answers with:
//
//	go test ./dispatcher/core -run Scripts -rewrite
//
// Commands:
//
//	init [window=N] [timers=N] [bytes=N] [weights=(a=3)] [classes=(a=batch)] [roster=true]   a node that owns nothing
//	listed N                 successors know the first N executors
//	forgot PARTITION         after a crash: the core before had it
//	acquire PARTITION [executors=(x,y)]        crash        release PARTITION        drain        drop PARTITION
//	open EXECUTOR [tenant=a] fn=(f,b/g,heavy:3) credit=N [old=true]     policy of all of them: [attempts=N] [timeout=D]
//	     [backoff=D] [orphan=D] [grace=D] [exclusive=true] [downstream=S] [cost=N] [prefers=K:V] [bands=N];  labels=K:V,  claims=(1.1@1/1, …), epochs=(1:1)
//	answered EXECUTOR        the partitions of the newest answer to a beat since it was asked
//	hello EXECUTOR [claims=…] [epochs=…]               the answer to a welcome
//	cut EXECUTOR             credit EXECUTOR N         draining EXECUTOR
//	submit TENANT/FUNCTION [n=N] [partition=1] [band=low] [prio=N] [delay=D] [id=X] [ttl=D] [deadline=D] [size=N] [request=R] [retry=true]
//	ack EXECUTOR TASK…       refuse EXECUTOR TASK stale|busy
//	end EXECUTOR TASK… [class] [after=D] [message=S] [token=1/1]
//	cancel TASK [tenant=a]   watch TASK                explain TASK         why TASK         row TASK
//	hold | let               commits stay on their way | go on
//	fail full|unknown|fenced [n=N]                      the next commits
//	advance DURATION         executors beat, timers fire
//	pause a [fn=F] [band=B] [for=D] [reason=S]         and wait until nothing more starts
//	resume a [fn=F] [band=B]                           settled a [fn=F] [band=B]   wait once more
//	bound a [fn=F] [max=N] [rate=N] [burst=N] | none   a limit that a user sets       bounds     what there is to see
//	report                   what the coordinators of bounds are told (init shared=true)
//	grant a [fn=F] [share=N] [tokens=N] [adopted=(1/1)]   and what they answer: adopted are partition/epoch
//	limit a DOWNSTREAM [min=N] [max=N]     the operator's word | none | reset      limits     what there is to see
//	class TENANT CLASS       the operator changes its class
//	spend TENANT/FUNCTION    all of its budget of retries
//	stats
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &script{t: t, store: memstore.New(), now: began}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.t = t
			return s.run(d)
		})
	})
}

var (
	began      = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	background = context.Background()
)

type script struct {
	t         *testing.T
	store     *memstore.Store
	core      *Core
	now       time.Time
	executors []*scriptExecutor
	sessions  SessionID
	replies   ReplyID
	names     map[ReplyID]string
	ids       map[string]task.ID // by "partition.seq"
	bands     map[task.ID]task.Band
	released  map[uint32]store.Epoch
	held      bool
	waiting   []*Commit
	fail      error
	failures  int
	pauses    []task.Pause // of tenant a
	limits    []task.Limit
	bounds    []task.Bound
	out       strings.Builder
	unchecked bool                   // Check costs too much for what it is used for
	pushed    func(*headracev1.Push) // if set, is told of pushes
}

// scriptExecutor is an executor that does what the script says, and beats by itself.
type scriptExecutor struct {
	name   string
	id     string
	open   SessionID // 0: no session
	beat   uint64
	beatAt time.Time
	tokens map[task.ID]task.Token // of the newest push
	epochs map[uint32]uint64
	hello  *headracev1.Hello

	answered []uint32 // the partitions of the newest answer to a beat
}

func (s *script) run(d *datadriven.TestData) string {
	s.out.Reset()
	s.command(d)
	s.pump()
	return s.out.String()
}

func (s *script) printf(format string, args ...any) { fmt.Fprintf(&s.out, format+"\n", args...) }

// arg returns a named argument.
func arg(d *datadriven.TestData, key, def string) string {
	for _, a := range d.CmdArgs {
		if a.Key == key && len(a.Vals) > 0 {
			return strings.Join(a.Vals, ",")
		}
	}
	return def
}

func (s *script) num(d *datadriven.TestData, key string, def int) int {
	n, err := strconv.Atoi(arg(d, key, strconv.Itoa(def)))
	if err != nil {
		s.t.Fatalf("%s: %v", d.Pos, err)
	}
	return n
}

func (s *script) dur(d *datadriven.TestData, key string) time.Duration {
	v, err := time.ParseDuration(arg(d, key, "0s"))
	if err != nil {
		s.t.Fatalf("%s: %v", d.Pos, err)
	}
	return v
}

// words returns the arguments without a value.
func words(d *datadriven.TestData) []string {
	var ws []string
	for _, a := range d.CmdArgs {
		if len(a.Vals) == 0 {
			ws = append(ws, a.Key)
		}
	}
	return ws
}

func (s *script) executor(name string) *scriptExecutor {
	for _, x := range s.executors {
		if x.name == name {
			return x
		}
	}
	x := &scriptExecutor{name: name, id: (name + strings.Repeat("_", 16))[:16], tokens: map[task.ID]task.Token{}, epochs: map[uint32]uint64{}}
	s.executors = append(s.executors, x)
	return x
}

// task resolves "3" or "2.3" to an id.
func (s *script) task(name string) task.ID {
	if !strings.Contains(name, ".") {
		name = "1." + name
	}
	id, ok := s.ids[name]
	if !ok {
		s.t.Fatalf("no task %s", name)
	}
	return id
}

func nameOf(id task.ID) string {
	if id.IsZero() {
		return "none"
	}
	if id.Partition() == 1 {
		return strconv.FormatUint(id.Seq(), 10)
	}
	return fmt.Sprintf("%d.%d", id.Partition(), id.Seq())
}

func tokenName(t *headracev1.Token) string { return fmt.Sprintf("%d/%d", t.GetEpoch(), t.GetPush()) }

func (s *script) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *script) init(d *datadriven.TestData) {
	r := rand.New(rand.NewPCG(1, 2))
	weights := map[string]int{}
	for _, w := range strings.Split(arg(d, "weights", ""), ",") {
		if name, n, ok := strings.Cut(strings.TrimSpace(w), "="); ok {
			weights[name], _ = strconv.Atoi(n)
		}
	}
	classes := map[string]task.TenantClass{}
	for _, w := range strings.Split(arg(d, "classes", ""), ",") {
		if name, class, ok := strings.Cut(strings.TrimSpace(w), "="); ok {
			var err error
			classes[name], err = task.ParseTenantClass(class)
			s.must(err)
		}
	}
	s.core = New(Config{
		Random:          r.Uint64,
		WindowTasks:     s.num(d, "window", 0),
		TimerTasks:      s.num(d, "timers", 0),
		Slice:           s.num(d, "slice", 0),
		NodeWindowBytes: s.num(d, "bytes", 0),
		Standing:        func(t string) (int, task.TenantClass) { return cmp.Or(weights[t], 1), classes[t] },
		Roster:          arg(d, "roster", "") != "",
		Shared:          arg(d, "shared", "") != "",
	})
	if len(s.pauses) > 0 { // the shell knows them
		s.core.SetPauses(s.now, "a", s.pauses)
	}
	s.core.SetLimits(s.now, "a", s.limits)
	s.core.SetBounds(s.now, "a", s.bounds)
	if s.ids == nil {
		s.ids, s.names, s.released = map[string]task.ID{}, map[ReplyID]string{}, map[uint32]store.Epoch{}
		s.bands = map[task.ID]task.Band{}
	}
}

func (s *script) acquire(d *datadriven.TestData, p uint32) {
	from, err := s.store.Epoch(background, p)
	s.must(err)
	epoch, err := s.store.Acquire(background, p, from)
	s.must(err)
	rec, err := s.store.Recover(background, p)
	s.must(err)
	flows, err := s.store.Flows(background, p)
	s.must(err)
	slices.SortFunc(flows, func(a, b store.FlowStat) int { return strings.Compare(fmt.Sprint(a.Flow), fmt.Sprint(b.Flow)) })
	rec.Partition.Released = max(rec.Partition.Released, s.released[p])
	a := Acquired{Epoch: epoch, RaisedAt: s.now, Recovered: rec, Flows: flows}
	for _, v := range d.CmdArgs {
		if v.Key == "executors" {
			a.Complete = true
			for _, name := range v.Vals {
				if name != "" {
					a.Executors = append(a.Executors, s.executor(name).id)
				}
			}
		}
	}
	s.core.Acquired(s.now, a)
}

func (s *script) command(d *datadriven.TestData) {
	ws := words(d)
	partition := func() uint32 {
		n, err := strconv.Atoi(ws[0])
		s.must(err)
		return uint32(n)
	}
	switch d.Cmd {
	case "init":
		s.init(d)
	case "acquire":
		s.acquire(d, partition())
	case "listed":
		s.core.Listed(s.now, uint64(partition()))
	case "crash":
		s.waiting = nil
		for _, x := range s.executors {
			x.open = 0
		}
		s.init(d)
	case "forgot":
		s.core.Forgot(s.now, []uint32{partition()})
	case "release":
		s.core.Release(s.now, partition())
	case "drop":
		s.core.Drop(s.now, partition(), errors.New("dropped"))
	case "drain":
		s.core.Drain(s.now)
	case "open":
		s.open(d, s.executor(ws[0]))
	case "hello":
		x := s.executor(ws[0])
		s.sayHello(d, x)
		s.must(s.core.Message(s.now, x.open, &headracev1.SessionRequest{Hello: x.hello}))
	case "answered":
		x := s.executor(ws[0])
		s.printf("partitions %v", x.answered)
		x.answered = nil
	case "cut":
		x := s.executor(ws[0])
		s.core.CloseSession(s.now, x.open)
		x.open = 0
	case "credit":
		n, err := strconv.Atoi(ws[1])
		s.must(err)
		s.must(s.core.Message(s.now, s.executor(ws[0]).open, &headracev1.SessionRequest{Credit: uint64(n)}))
	case "draining":
		s.must(s.core.Message(s.now, s.executor(ws[0]).open, &headracev1.SessionRequest{Draining: true}))
	case "submit":
		s.submit(d, ws[0])
	case "ack", "refuse", "end":
		s.report(d, ws)
	case "cancel":
		s.replies++
		s.names[s.replies] = ws[0]
		s.core.Cancel(s.now, Cancel{Reply: s.replies, Tenant: arg(d, "tenant", "a"), ID: s.task(ws[0]), Reason: arg(d, "reason", "")})
	case "watch":
		s.replies++
		s.names[s.replies] = ws[0]
		s.core.Watch(s.now, WatchID(s.replies), s.task(ws[0]))
	case "explain":
		_, v, ok := s.core.View(s.task(ws[0]))
		s.printf("in memory %v: %s", ok, v.WaitReason)
	case "why":
		t, err := s.store.Get(background, s.task(ws[0]))
		s.must(err)
		e, ok := s.core.Explain(s.now, t)
		s.printf("%s", explanationText(e, ok))
	case "row":
		t, err := s.store.Get(background, s.task(ws[0]))
		s.must(err)
		s.printf("%s", s.rowText(t))
	case "hold":
		s.held = true
	case "let":
		s.held = false
		for _, c := range s.waiting {
			s.commit(c)
		}
		s.waiting = nil
	case "pushes": // off, on
		s.core.Hold(s.now, map[string]string{"off": "held: for a test"}[ws[0]])
	case "fail":
		s.fail = map[string]error{"full": store.ErrFull, "unknown": store.ErrUnknown, "unavailable": store.ErrUnavailable, "fenced": store.ErrFenced}[ws[0]]
		s.failures = s.num(d, "n", 1)
	case "advance":
		v, err := time.ParseDuration(ws[0])
		s.must(err)
		s.advance(v)
	case "class":
		class, err := task.ParseTenantClass(ws[1])
		s.must(err)
		s.core.SetTenant(s.now, ws[0], 1, class)
	case "spend":
		tenant, name, _ := strings.Cut(ws[0], "/")
		for s.core.function(tenant, name).budget.law.Take(s.now) {
		}
	case "pause", "resume", "settled":
		s.pause(d, ws[0])
	case "limit":
		s.limit(d, ws)
	case "bound":
		s.bound(d, ws)
	case "report", "grant":
		s.share(d, ws)
	case "bounds":
		for _, b := range s.core.BoundStates("", "", "", 100) {
			s.printf("%s/%s: %d running; %s", b.Tenant, b.Function, b.Running, b.Why)
		}
	case "limits":
		for _, l := range s.core.LimitStates("", "", "", "", 100) {
			s.printf("%s", limitText(l))
		}
	case "loads":
		s.loads()
	case "stats":
		for _, p := range s.core.Stats() {
			s.printf("partition %d epoch %d: ready %d, due %d, running %d, %d bytes", p.Partition, p.Epoch, p.Backlog, p.Scheduled, p.Running, p.Bytes)
		}
	default:
		s.t.Fatalf("%s: no command %q", d.Pos, d.Cmd)
	}
}

func (s *script) open(d *datadriven.TestData, x *scriptExecutor) {
	s.sayHello(d, x)
	for _, f := range strings.Split(arg(d, "fn", "f"), ",") {
		tenant := arg(d, "tenant", "a")
		f = strings.TrimSpace(f)
		if t, name, ok := strings.Cut(f, "/"); ok {
			tenant, f = t, name
		}
		cost := s.num(d, "cost", 0)
		if name, n, ok := strings.Cut(f, ":"); ok {
			f = name
			cost, _ = strconv.Atoi(n)
		}
		x.hello.Functions = append(x.hello.Functions, &headracev1.FunctionDeclaration{
			Tenant: tenant, Name: f, MaxAttempts: uint32(s.num(d, "attempts", 0)), Version: int64(s.num(d, "version", 0)),
			Timeout: durationpb.New(s.dur(d, "timeout")), BackoffBase: durationpb.New(s.dur(d, "backoff")),
			OrphanTimeout: durationpb.New(s.dur(d, "orphan")), CancelGrace: durationpb.New(s.dur(d, "grace")),
			Exclusive: arg(d, "exclusive", "") == "true", Downstream: arg(d, "downstream", ""),
			Cost: uint32(cost), Bands: uint32(s.num(d, "bands", 0)), Prefers: strings.ReplaceAll(arg(d, "prefers", ""), ":", "="),
		})
	}
	if k, v, ok := strings.Cut(arg(d, "labels", ""), ":"); ok {
		x.hello.Labels = map[string]string{k: v}
	}
	s.sessions++
	x.open, x.beat, x.beatAt = s.sessions, 0, s.now
	s.must(s.core.OpenSession(s.now, x.open, x.hello))
	s.must(s.core.Message(s.now, x.open, &headracev1.SessionRequest{Credit: uint64(s.num(d, "credit", 1))}))
	s.beat(x)
}

func (s *script) sayHello(d *datadriven.TestData, x *scriptExecutor) {
	h := &headracev1.Hello{ExecutorId: []byte(x.id), Name: x.name, Slots: 100}
	if x.hello != nil {
		h.Functions = nil
		if d.Cmd == "hello" {
			h.Functions = x.hello.Functions
		}
	}
	for p, e := range x.epochs {
		h.Epochs = append(h.Epochs, &headracev1.PartitionEpoch{Partition: p, Epoch: e})
	}
	for _, cl := range strings.Split(arg(d, "claims", ""), ",") {
		name, token, ok := strings.Cut(strings.TrimSpace(cl), "@")
		if !ok {
			continue
		}
		id := s.task(name)
		h.Claims = append(h.Claims, &headracev1.Claim{TaskId: id[:], Token: parseToken(token), Tenant: arg(d, "tenant", "a"), RunMicros: 5e6})
	}
	x.hello = h
}

func parseToken(text string) *headracev1.Token {
	e, p, _ := strings.Cut(text, "/")
	epoch, _ := strconv.ParseUint(e, 10, 64)
	push, _ := strconv.ParseUint(p, 10, 64)
	return &headracev1.Token{Epoch: epoch, Push: push}
}

func (s *script) submit(d *datadriven.TestData, what string) {
	tenant, function, ok := strings.Cut(what, "/")
	if !ok {
		tenant, function = "a", what
	}
	s.replies++
	band, err := task.ParseBand(arg(d, "band", ""))
	s.must(err)
	sub := &Submit{Reply: s.replies, Tenant: tenant, Partition: uint32(s.num(d, "partition", 1)), Retry: arg(d, "retry", "") == "true"}
	if r := arg(d, "request", ""); r != "" {
		sub.RequestID = (r + strings.Repeat("_", 16))[:16]
	}
	for range s.num(d, "n", 1) {
		t := &store.Task{Tenant: tenant, Function: function, ClientID: arg(d, "id", ""), Priority: uint8(s.num(d, "prio", 5)), Band: band,
			DueAt: s.now.Add(s.dur(d, "delay")), StartTTL: s.dur(d, "ttl"), Payload: make([]byte, s.num(d, "size", 0)),
			MaxAttempts: s.num(d, "attempts", 0)}
		if v := s.dur(d, "deadline"); v > 0 {
			t.Deadline = s.now.Add(v)
		}
		if t.ClientID != "" {
			t.PayloadHash = fmt.Sprintf("%016d", len(t.Payload))
		}
		t.FirstDueAt = t.DueAt
		sub.Tasks = append(sub.Tasks, t)
	}
	s.core.Submit(s.now, sub)
}

// pause changes the rules of a tenant, or asks when they are in force.
func (s *script) pause(d *datadriven.TestData, tenant string) {
	rule := task.Pause{Function: arg(d, "fn", ""), Band: task.AnyBand, Reason: arg(d, "reason", ""), At: s.now}
	if b := arg(d, "band", ""); b != "" {
		var err error
		rule.Band, err = task.ParseBand(b)
		s.must(err)
	}
	if v := s.dur(d, "for"); v > 0 {
		rule.Until = s.now.Add(v)
	}
	if d.Cmd != "settled" {
		s.pauses = slices.DeleteFunc(slices.Clone(s.pauses), rule.Same)
		if d.Cmd == "pause" {
			s.pauses = append(s.pauses, rule)
		}
		s.core.SetPauses(s.now, tenant, s.pauses)
	}
	if d.Cmd != "resume" {
		s.core.AwaitPause(s.now, PauseWait{Tenant: tenant, Function: rule.Function, Band: rule.Band})
	}
}

func (s *script) report(d *datadriven.TestData, ws []string) {
	x := s.executor(ws[0])
	m := &headracev1.SessionRequest{}
	class, refusal := headracev1.ErrorClass(0), headracev1.Refusal(0)
	for _, w := range ws[1:] {
		if v, ok := headracev1.ErrorClass_value["ERROR_CLASS_"+strings.ToUpper(w)]; ok {
			class = headracev1.ErrorClass(v)
		}
		if v, ok := headracev1.Refusal_value["REFUSAL_"+strings.ToUpper(w)]; ok {
			refusal = headracev1.Refusal(v)
		}
	}
	for _, w := range ws[1:] {
		if w[0] < '0' || w[0] > '9' {
			continue
		}
		id := s.task(w)
		tok := x.tokens[id]
		token := &headracev1.Token{Epoch: tok.Epoch, Push: tok.Push}
		if t := arg(d, "token", ""); t != "" {
			token = parseToken(t)
		}
		if d.Cmd == "end" {
			m.Outcomes = append(m.Outcomes, &headracev1.Outcome{TaskId: id[:], Token: token, ErrorClass: class,
				Message: arg(d, "message", ""), RetryAfterMicros: s.dur(d, "after").Microseconds(), Downstream: arg(d, "downstream", "")})
		} else {
			m.Acks = append(m.Acks, &headracev1.Ack{TaskId: id[:], Token: token, Refusal: refusal})
		}
	}
	s.must(s.core.Message(s.now, x.open, m))
}

func (s *script) beat(x *scriptExecutor) {
	x.beat++
	x.beatAt = s.now.Add(300 * time.Millisecond)
	if s.core.sessions[x.open] == nil { // the core has closed it, and says so next
		return
	}
	s.must(s.core.Message(s.now, x.open, &headracev1.SessionRequest{Beat: &headracev1.Beat{Number: x.beat}}))
}

// advance lets time pass: executors beat, timers fire.
func (s *script) advance(d time.Duration) {
	end := s.now.Add(d)
	for n := 0; ; n++ {
		if n > 100_000 {
			s.t.Fatalf("time does not pass: next %v\n%s", s.core.Next().Sub(began), s.core.Dump())
		}
		s.pump()
		at := end
		if next := s.core.Next(); !next.IsZero() {
			at = sooner(at, later(next, s.now))
		}
		for _, x := range s.executors {
			if x.open != 0 {
				at = sooner(at, later(x.beatAt, s.now))
			}
		}
		if at.After(s.now) {
			s.now = at
		}
		idle := true
		for _, x := range s.executors {
			if x.open != 0 && !x.beatAt.After(s.now) {
				s.beat(x)
				idle = false
			}
		}
		if next := s.core.Next(); !next.IsZero() && !next.After(s.now) {
			s.core.Tick(s.now)
			idle = false
		}
		if idle && !s.now.Before(end) {
			return
		}
	}
}

// pump does what the core asks for until it asks for nothing.
func (s *script) pump() {
	for range 10_000 {
		fx := s.core.Take()
		if !s.unchecked {
			s.must(s.core.Check())
		}
		if fx == nil {
			if next := s.core.Next(); s.core.busy() && !next.After(s.now) {
				s.core.Tick(s.now)
				continue
			}
			return
		}
		s.perform(fx)
	}
	s.t.Fatal("the core does not come to rest")
}

func (s *script) perform(fx *Effects) {
	for _, c := range fx.Commits {
		for i := range c.Batch.Parts {
			for _, ch := range c.Batch.Parts[i].Changes {
				if ch.Op == store.Insert {
					s.ids[fmt.Sprintf("%d.%d", ch.Task.ID.Partition(), ch.Task.ID.Seq())] = ch.Task.ID
					s.bands[ch.Task.ID] = ch.Task.Band
				}
			}
		}
	}
	for _, m := range fx.Send {
		s.send(m)
	}
	for _, id := range fx.Close {
		for _, x := range s.executors {
			if x.open == id {
				x.open = 0
				s.printf("close %s", x.name)
			}
		}
		s.core.CloseSession(s.now, id)
	}
	for _, a := range fx.Submitted {
		s.submitted(a)
	}
	for _, a := range fx.Cancelled {
		text := strings.TrimPrefix(a.Outcome.String(), "CANCEL_OUTCOME_")
		if a.Err != nil {
			text = a.Err.Error()
		}
		s.printf("cancel of %s: %s", s.names[a.Reply], strings.ToLower(text))
	}
	for _, a := range fx.Paused {
		s.printf("%s nothing more starts in %v", s.clock(), a.Partitions)
	}
	for _, e := range fx.Events {
		text := "gone"
		if e.Task != nil {
			text = e.Task.State.String()
			if e.View.Running {
				text = "running on " + e.View.Executor
			} else if e.View.WaitReason != "" {
				text += ", " + e.View.WaitReason
			}
		}
		s.printf("watch %s: %s", s.names[ReplyID(e.Watch)], text)
	}
	for _, r := range fx.Roster {
		gone := ""
		if r.Gone {
			gone = " gone"
		}
		if r.Executor == "" {
			s.printf("roster: partition %d epoch %d%s", r.Partition, r.Epoch, gone)
			continue
		}
		s.printf("roster: %s%s", strings.TrimRight(r.Executor, "_"), gone)
	}
	for _, l := range fx.Lost {
		s.printf("lost partition %d epoch %d: %v", l.Partition, l.Epoch, l.Reason)
	}
	for _, p := range fx.Released {
		s.printf("released partition %d", p)
	}
	commits := slices.Clone(fx.Commits)
	loads := slices.Clone(fx.Loads)
	reads := slices.Clone(fx.EpochReads)
	for _, c := range commits {
		if s.held {
			s.waiting = append(s.waiting, c)
			continue
		}
		s.commit(c)
	}
	for _, l := range loads {
		s.load(l)
	}
	for _, r := range reads {
		epochs := make([]store.Epoch, len(r.Partitions))
		for i, p := range r.Partitions {
			epochs[i], _ = s.store.Epoch(background, p)
		}
		s.core.EpochsRead(s.now, s.now, r, epochs, nil)
	}
}

func (s *script) commit(c *Commit) {
	s.printf("commit %s", s.batchText(c.Batch))
	if s.failures > 0 {
		s.failures--
		if s.fail == store.ErrFenced {
			rs := make([]store.PartResult, len(c.Batch.Parts))
			for i := range rs {
				rs[i].Err = store.ErrFenced
			}
			s.core.Committed(s.now, s.now, c, rs, nil)
		} else {
			s.core.Committed(s.now, s.now, c, nil, s.fail)
		}
		return
	}
	rs, err := s.store.Commit(background, c.Batch)
	for _, p := range c.Batch.Parts {
		if p.Release {
			s.released[p.Partition] = p.Epoch
		}
	}
	s.core.Committed(s.now, s.now, c, rs, err)
}

func (s *script) load(l *Load) {
	var a LoadAnswer
	switch l.Kind {
	case LoadReady:
		a.Rows, a.More, a.Err = s.store.Ready(background, l.Partition, l.Flow, l.After, l.Limit, l.MaxBytes, l.Inline)
	case LoadDue:
		a.Rows, a.More, a.Err = s.store.Due(background, l.Partition, l.After, l.Until, l.Limit, l.MaxBytes, l.Inline)
	case LoadGet:
		var t *store.Task
		if t, a.Err = s.store.Get(background, l.ID); a.Err == nil {
			a.Rows = []*store.Task{t}
		}
	case LoadRequest:
		a.Request, a.Err = s.store.Request(background, l.Partition, l.Tenant, l.RequestID, s.now)
	}
	if len(a.Rows) > 0 && l.Kind != LoadGet {
		var names []string
		for _, t := range a.Rows {
			names = append(names, nameOf(t.ID))
		}
		s.printf("read %s", strings.Join(names, " "))
	}
	s.core.Loaded(s.now, l, a)
}
