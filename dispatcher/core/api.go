package core

import (
	"errors"
	"time"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// The handles that the shell chooses. The core only gives them back.
type (
	SessionID uint64 // one executor stream; never used again after its close
	ReplyID   uint64 // one waiting caller
	WatchID   uint64 // one open wait
	Database  int    // index of a database of the node
)

// Errors that callers act on.
var (
	ErrNotOwner       = errors.New("this node does not own the partition")           // nothing was stored here
	ErrStoreSlow      = errors.New("the database is slow")                           // nothing was stored
	ErrUnknownOutcome = errors.New("the outcome of the commit is not known")         // perhaps it was stored
	ErrEpochBehind    = errors.New("an executor knows a newer epoch than the store") // acquire again, until it is above
)

// Config bounds the core. The zero value of a field is its documented default.
type Config struct {
	// Random gives 64 random bits: for ids and jitter. Required. The simulation seeds it.
	Random func() uint64

	WindowTasks     int           // of a flow in a partition, in memory; 1024
	WindowBytes     int           // of a flow; 1 MiB
	NodeWindowBytes int           // of all flows together; 256 MiB
	CommitChanges   int           // of one batch; 2,000
	CommitBytes     int           // of one batch; 4 MiB
	InlineBytes     int           // payloads above leave memory after their commit and are fetched; 64 KiB
	Slice           int           // most items that one call handles; 256
	SessionBytes    int           // payload bytes pushed and not acknowledged in a session; 4 MiB
	TimerHorizon    time.Duration // due times nearer than this are held in memory; 1 min
	TimerTasks      int           // most of them in each partition; 10,000
	RecordAfter     time.Duration // a try that has run for this long is recorded; 1 s
	ShelfLife       time.Duration // V of takeover.md; 1 s
	Grace           time.Duration // after a takeover; 1.5 s
	// Standing is a tenant's weight and class; nil: 1 and standard for all.
	Standing func(tenant string) (weight int, class task.TenantClass)
	// Roster says that other nodes may take this one's partitions over: an executor gets pushes only once they
	// know of it (Effects.Roster, Listed). False: there is no other.
	Roster bool
	// Shared says that the limits that users set are of all nodes together: this one starts what GrantBounds allows.
	// False: there is no other.
	Shared bool
	// Handles, if set, is told each task that was read from the store and is about to be scheduled, and each that is
	// about to be pushed: a place to die at, for tests.
	Handles func(*store.Task)
	// InHand, if set, is told each task that a call goes on to work on, as InHand does afterwards. It must be cheap.
	InHand func(task.ID)
}

// Acquired hands a partition to the core. The shell has won the key, raised the epoch, looked at the
// key again and only then read the rest (R10).
type Acquired struct {
	Database  Database
	Epoch     store.Epoch
	RaisedAt  time.Time // when the raise was answered
	Recovered *store.Recovered
	Flows     []store.FlowStat
	// Suspects are tasks whose handling panicked before: they end as dead letters, unseen.
	Suspects []task.ID
	// Executors are the ids of all that the previous owner may have pushed to, if Complete: the grace ends once all
	// of them have answered (R12). Else it is waited for.
	Executors []string
	Complete  bool
}

// Submit asks for tasks in one partition. A request commits as one, in one batch.
type Submit struct {
	Reply     ReplyID
	Tenant    string
	Partition uint32
	RequestID string // 16 bytes or ""
	// Retry says that an earlier call with this RequestID may have been stored, here or in one of
	// Candidates: the core looks there first and answers with the tasks that it finds. That call may have had fewer Tasks,
	// the first of these: if it is under way its answer is this one's, too.
	Retry      bool
	Candidates []uint32
	// Tasks are validated and complete but for ID, State and CreatedAt. The core owns them from now on.
	Tasks []*store.Task
}

// Look asks for a submit that this node may have taken, for a retry of it whose other candidate partition
// another node owns. It is answered in Effects.Submitted, after a commit under way: with the items of the
// submit, or with none if nothing of it is stored. Then the partition takes the request as a retry only,
// for a while: a first call that is still on its way comes too late.
type Look struct {
	Reply     ReplyID
	Partition uint32
	Tenant    string
	RequestID string
}

// SubmitAnswer answers a Submit or a Look: Err for all, or one item each.
type SubmitAnswer struct {
	Reply ReplyID
	Err   error // ErrNotOwner, ErrStoreSlow, store.ErrFull: nothing was stored; ErrUnknownOutcome: perhaps
	Items []SubmitItem
}

// SubmitItem is the answer for one task of a Submit.
type SubmitItem struct {
	ID    task.ID
	Dedup bool
	Err   error // *ExistsError: the client id belongs to a different task; ErrStoreSlow: somebody is taking it, try again
}

// Cancel asks to stop a task.
type Cancel struct {
	Reply  ReplyID
	Tenant string
	ID     task.ID
	Reason string
}

// CancelAnswer answers a Cancel once what it says is on disk and holds (R16).
type CancelAnswer struct {
	Reply   ReplyID
	Err     error // store.ErrNotFound, ErrNotOwner, ErrStoreSlow, ErrUnknownOutcome
	Outcome headracev1.CancelOutcome
	Task    *store.Task
}

// Event tells a watch that its task changed. Task is a snapshot that nobody changes; View is the
// running part. After a terminal state the watch is closed.
type Event struct {
	Watch WatchID
	Task  *store.Task
	View  View
}

// View is what only the owner's memory knows of a live task.
type View struct {
	Running    bool
	Token      task.Token // of the try in flight; zero: none
	Executor   string     // its name
	ChosenAt   time.Time
	PushedAt   time.Time
	AckedAt    time.Time
	Progress   *headracev1.Progress
	LogLines   []*headracev1.LogLine
	WaitReason string // why it does not run; empty while it runs
	// MaxAttempts that it has: its own, or its function's.
	MaxAttempts int
}

// Live is what the memory of an owner has of a task; no task: it is not there.
type Live struct {
	Task *store.Task
	View View
}

// Send is one batch for a session.
type Send struct {
	Session SessionID
	Message *headracev1.SessionResponse
}

// Commit is one batch for a database. At most one is in flight for each database.
type Commit struct {
	Database Database
	Batch    *store.Batch
	number   uint64
	work     []partWork // parallel to the parts
}

// LoadKind says which read a Load asks for.
type LoadKind uint8

// The reads.
const (
	LoadReady   LoadKind = iota + 1 // Store.Ready(Partition, Flow, After, Limit, MaxBytes, Inline)
	LoadDue                         // Store.Due(Partition, After, Until, Limit, MaxBytes, Inline)
	LoadGet                         // Store.Get(ID)
	LoadRequest                     // Store.Request(Partition, Tenant, RequestID)
)

// Load is one read from a database. The shell answers each with Loaded, in any order.
type Load struct {
	Kind      LoadKind
	Database  Database // of the partition
	Partition uint32
	// Epoch of the partition when it was asked; an answer to an older epoch is ignored. 0: a LoadRequest for a
	// partition that this core does not own. Database means nothing then, and its owner must be asked (Look).
	Epoch     store.Epoch
	Flow      store.Flow
	After     store.Key
	Until     time.Time
	Limit     int
	MaxBytes  int
	Inline    int
	ID        task.ID
	Tenant    string
	RequestID string
	context   any // the core's own
}

// LoadAnswer is what a Load found.
type LoadAnswer struct {
	Rows    []*store.Task
	More    bool
	Request *store.Request
	Err     error // store.ErrNotFound is an answer; any other error makes the core ask again later
}

// EpochRead asks for Store.Epoch of partitions of one database: the check that R8 and R10 want from an
// idle owner.
type EpochRead struct {
	Database   Database
	Partitions []uint32
	number     uint64
	parts      []*partition // parallel to Partitions
}

// LostPartition says that the core has dropped a partition's state.
type LostPartition struct {
	Partition uint32
	Epoch     store.Epoch
	Above     store.Epoch // the newest epoch that an executor knows, if that is newer: acquire above it (R5)
	// Reason is store.ErrFenced, ErrUnknownOutcome, or what Drop was given. Who still holds the key acquires again.
	Reason error
}

// RosterChange is what nodes that may take over have to know, in order: who may hold a push of this node, and
// for which epochs that is all there is to know.
type RosterChange struct {
	Executor string // its id; "": the change is of Partition
	Number   uint64 // of an executor that is new here, for Listed; they grow
	// Partition is held under Epoch. When it is dropped, its tries are forgotten, and what is said of executors
	// afterwards does not hold for that epoch.
	Partition uint32
	Epoch     store.Epoch
	Gone      bool
}

// Effects is the work that the calls since the last Take ask for. The shell does it in any order,
// but keeps the order of the messages of a session.
type Effects struct {
	Send       []Send
	Close      []SessionID // end the stream; CloseSession follows
	Commits    []*Commit
	Loads      []*Load
	EpochReads []*EpochRead
	Submitted  []SubmitAnswer
	Cancelled  []CancelAnswer
	Paused     []PauseAnswer
	Events     []Event
	Lost       []LostPartition
	Released   []uint32       // Release is done and on disk: give the key back
	Roster     []RosterChange // Config.Roster: what successors have to know
}

// PartitionStat is what the core knows of one partition it holds.
type PartitionStat struct {
	Partition uint32
	Database  Database
	Epoch     store.Epoch
	Open      bool // the takeover has ended
	Backlog   int64
	Scheduled int64
	Running   int64
	Bytes     int64 // of payloads of live tasks, in memory or not
}

// The core's methods, all on one goroutine, none of them blocking:
//
//	New(cfg Config) *Core
//
//	Acquired(now time.Time, a Acquired)                     take over a partition
//	Drop(now time.Time, partition uint32, reason error)     lose it: state is dropped, callers are answered
//	Release(now time.Time, partition uint32)                graceful hand-over (R13); ends in Effects.Released
//	Hold(now time.Time, why string)                          push nothing until it is called with ""
//	Trust(until time.Time)                                  by the membership lease; commits extend it by themselves
//	Drain(now time.Time)                                    the node goes away: no more pushes, sessions are told
//
//	Submit(now time.Time, s *Submit)                        answered in Effects.Submitted
//	Look(now time.Time, l Look)                             the same
//	Cancel(now time.Time, c Cancel)                         answered in Effects.Cancelled
//	SetPauses(now time.Time, tenant string, rules []task.Pause)   all rules that hold for a tenant from now on
//	AwaitPause(now time.Time, w PauseWait)                  answered in Effects.Paused
//	SetLimits(now time.Time, tenant string, ls []task.Limit)      what operators say of adaptive limits, all of it
//	ResetLimit(now time.Time, tenant, downstream string) bool
//	SetBounds(now time.Time, tenant string, bs []task.Bound)      limits that users set, all of them
//	Forgot(now time.Time, partitions []uint32)              after a panic: nobody has counted what runs in them
//	BoundReport(now time.Time) BoundReport                        what the coordinators of shared bounds are told
//	GrantBounds(now time.Time, gs BoundGrants)                    and what they answer
//	BoundStates(tenant, afterTenant, afterFunction string, most int) []BoundState
//	LimitStates(tenant, downstream, afterTenant, afterDownstream string, most int) []LimitState
//	Watch(now time.Time, w WatchID, id task.ID)             Effects.Events until Unwatch or the end
//	Unwatch(w WatchID)
//
//	OpenSession(now time.Time, s SessionID, h *headracev1.Hello) error   *task.FieldError refuses the stream
//	Message(now time.Time, s SessionID, m *headracev1.SessionRequest) error
//	CloseSession(now time.Time, s SessionID)
//	Listed(now time.Time, upTo uint64)      successors know the executors of RosterChange up to this number
//
//	Committed(now, sentAt time.Time, c *Commit, rs []store.PartResult, err error)
//	Loaded(now time.Time, l *Load, a LoadAnswer)
//	EpochsRead(now, sentAt time.Time, r *EpochRead, epochs []store.Epoch, err error)
//
//	Tick(now time.Time)         timers, slices that were left; call it when Next says
//	Next() time.Time            when Tick is wanted; zero: not before the next call
//	Take() *Effects             what the calls since the last Take ask for; nil: nothing
//
//	View(id task.ID) (t *store.Task, v View, ok bool)       of a task in memory
//	Running(tenant, function string, most int) []task.ID    newest first; "" is any function
//	Stats() []PartitionStat     in partition order
//	Usages() []TenantUsage      by tenant
//	Strain(now time.Time) Strain
//	SetTenant(now time.Time, tenant string, weight int, class task.TenantClass)
//	Dump() string               for people
//	InHand() (partition uint32, id task.ID, ok bool)        what the running call works on, for the guard
//	Check() error                                           whether the state is consistent: tests and the simulation
