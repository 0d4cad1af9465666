package store

import (
	"context"
	"errors"
	"time"

	"github.com/headrace/headrace/task"
)

// Errors that callers act on.
var (
	ErrFenced   = errors.New("fenced: the partition has a newer epoch") // stop owning, now
	ErrNotFound = errors.New("not found")
	ErrLocked   = errors.New("already open in another process")
	ErrFull     = errors.New("no space left on the disk") // nothing of the batch was stored; try again later
	// ErrUnavailable means that the database can't be reached, starts or closes, or takes no writes: nothing was
	// done; try again later.
	ErrUnavailable = errors.New("the database is not available")
	// ErrUnknown means that a commit may or may not have been stored: drop the partition's state and
	// acquire it again.
	ErrUnknown = errors.New("commit outcome unknown")
)

// Epoch grows with every change of a partition's owner. 0 means that nobody ever owned it.
type Epoch = uint64

// Flow names tasks that wait for the same thing.
type Flow struct {
	Tenant   string
	Function string
	Band     task.Band
}

// Key is the place of a ready task in its flow: by Sort, then by id. Sort is the due time in
// microseconds since 1970 plus AgeStep for each step of priority: static ageing, so that no row is
// ever rewritten. Smaller goes first.
type Key struct {
	Sort int64
	Seq  uint64
}

// AgeStep is the head start of one step of priority: a task of priority p is overtaken only by tasks
// that became due less than p·AgeStep after it.
const AgeStep = 60 * time.Second

// Task is one hot or finished row. Fields are set by the owner; the store keeps them as they are, but
// for this: times lose what is below a microsecond, and empty slices and maps read back as nil.
// The slices and maps of a Task handed to or got from a store are not changed by anyone afterwards.
type Task struct {
	ID          task.ID
	Tenant      string
	Function    string
	ClientID    string // "" if the client gave none; unique in the tenant until the record is deleted
	RequestID   string // of the submit that made it (16 bytes)
	Payload     []byte // nil once left out: see PayloadSize
	PayloadSize int
	PayloadHash string // first 16 bytes of its SHA-256; set for tasks with a ClientID only
	ContentType string
	Labels      map[string]string
	Priority    uint8 // 0-9, 0 first
	Band        task.Band
	CreatedAt   time.Time
	DueAt       time.Time     // of the next start: moves with each retry
	FirstDueAt  time.Time     // as submitted
	StartTTL    time.Duration // 0: none; counts from FirstDueAt until the first attempt starts
	Deadline    time.Time     // zero: none
	MaxAttempts int           // 0: the function's
	Timeout     time.Duration // 0: the function's
	TraceParent string
	TraceState  string

	State       task.State // Scheduled, Queued or Retrying in a hot row (Running is known in memory only); terminal in history
	Attempt     int        // spent attempts + 1; of a finished task, the attempt that ended it
	Losses      int
	Undelivered int // pushes that were never confirmed because their executor never came back
	Throttles   int
	Snoozes     int
	Suspect     bool       // lost twice: runs alone on its executor
	LastToken   task.Token // last decided token (R2); zero if none was decided yet
	Record      *Record    // nil if no running try is recorded
	Cancel      *Cancel    // nil unless a cancel was requested while it was in flight
	Checkpoint  []byte     // the last one that a try left
	Tries       []Try      // ended tries, oldest first; the newest MaxTries are kept
	TriesTotal  int        // all that ended
	StartedAt   time.Time  // of the first try; zero: none yet
	FinishedAt  time.Time  // zero unless terminal
	Result      []byte
	ResultType  string
	ErrClass    task.Class // of the last error
	ErrMessage  string
	Fingerprint uint64 // of the error; 0 if none

	unknown []byte // fields that a newer version wrote, kept as they are: copy the whole struct to change a task
}

// MaxTries bounds the ended tries that a row keeps.
const MaxTries = 20

// Ready reports whether a hot row belongs to the ready index.
func (t *Task) Ready() bool { return t.State == task.Queued }

// Flow returns the flow that the task waits in.
func (t *Task) Flow() Flow { return Flow{t.Tenant, t.Function, t.Band} }

// Key returns the task's place in its flow.
func (t *Task) Key() Key {
	return Key{t.DueAt.UnixMicro() + int64(t.Priority)*AgeStep.Microseconds(), t.ID.Seq()}
}

// Compare orders keys.
func (k Key) Compare(o Key) int {
	switch {
	case k.Sort < o.Sort || k.Sort == o.Sort && k.Seq < o.Seq:
		return -1
	case k == o:
		return 0
	}
	return 1
}

// Record says on disk that a try runs, or is announced to.
type Record struct {
	Token     task.Token
	Executor  string // its id (16 bytes), new at each start of its process
	StartedAt time.Time
	Announced bool // true before an exclusive push; false once the try has run for a second
	// Silent is for how long at least nobody had answered a beat of the executor when the owner of epoch SilentBy gave the
	// partition back; 0: it says nothing. Only the owner of the epoch after that one may believe it.
	Silent   time.Duration
	SilentBy Epoch
}

// Cancel is an accepted request to stop a task that was in flight.
type Cancel struct {
	At     time.Time
	Reason string
}

// Try is one ended try with its stage times; a zero time means that the stage was not reached.
type Try struct {
	Attempt      int
	Token        task.Token
	Executor     string // its name, for people
	ChosenAt     time.Time
	PushedAt     time.Time
	AckedAt      time.Time
	EndedAt      time.Time
	CommittedAt  time.Time
	Class        task.Class // ClassNone: success
	Message      string
	LogLines     []string // at most task.MaxLogBytes in all
	LogTruncated bool
}

// Function is a stored policy.
type Function struct {
	Tenant string
	Name   string
	Policy task.Policy
}

// Op says what a Change does.
type Op uint8

// The operations on a row. Task is the row as it shall be; Old, where said, is the row as the owner
// last wrote or read it: what its index entries and counters are derived from.
const (
	Insert  Op = iota + 1 // Task is new. If its ClientID is taken, nothing is stored and the answer names the holder
	Finish                // Task is terminal: it moves from Old's place to history
	Update                // Task replaces Old: retry, snooze, throttle, loss, promotion to ready, record, cancel request
	PutFunc               // Func is stored or replaced
)

// Change is one step of a batch.
type Change struct {
	Op   Op
	Task *Task
	Old  *Task // Finish and Update
	Func *Function
	// KeepPayload says for Update that Task.Payload was left out of memory (or was never loaded) and
	// the stored one stays. Finish keeps the stored payload for Failed and drops it otherwise.
	KeepPayload bool
}

// Part is what one owner writes to one partition.
type Part struct {
	Partition uint32
	Epoch     Epoch
	Changes   []Change // applied in order
	Floor     Epoch    // 0: unchanged; else the partition's floor is raised to it (R14)
	Requests  []Request
	Seq       uint64 // the highest sequence number given; 0: unchanged
	// Release says that this is the owner's last commit: everything that runs is recorded and no push is
	// unconfirmed (R13). The store sets Partition.Released to Epoch.
	Release bool
}

// Request remembers which tasks a submit made, for a retry of it after a lost answer. It is kept
// for at least RequestLife after At.
type Request struct {
	ID     string // 16 bytes
	Tenant string
	At     time.Time // zero: the batch's
	IDs    []task.ID // one for each item, zero where the item was refused
	Dedup  []bool    // nil, or: the item found its task there
}

// RequestLife is how long owners know the requests that they have answered.
const RequestLife = 10 * time.Minute

// Batch is one commit to one database: at most one Part for each partition.
type Batch struct {
	At    time.Time // the owner's time of the commit, for Request
	Parts []Part
}

// PartResult answers one Part, in the batch's order.
type PartResult struct {
	Err      error         // nil: on disk. ErrFenced: refused, nothing of the part was stored
	Existing map[int]*Task // of refused Inserts by index in Changes: the task that holds the client id, without payload and result
	// Busy has the refused Inserts, by index in Changes, whose client id another commit is taking that has not ended:
	// nothing is known of a holder yet. Submit them again.
	Busy map[int]bool
}

// Partition is what the store knows of one partition.
type Partition struct {
	ID    uint32
	Epoch Epoch
	Floor Epoch
	Seq   uint64 // highest sequence number given
	Ready int64  // rows in ready indexes
	Due   int64  // rows in the due index
	Bytes int64  // of payloads of hot rows
	// Released is the last epoch that was given back in an orderly way: an owner that acquires epoch
	// Released+1 opens at once.
	Released Epoch
}

// Recovered is what a new owner needs before it opens a partition: functions by tenant and name, rows
// by sequence number and without their payloads (see Get).
type Recovered struct {
	Partition Partition
	Functions []Function
	Recorded  []*Task // rows with a Record
	Cancels   []*Task // rows with a pending Cancel and no Record
}

// FlowStat is one flow with ready rows.
type FlowStat struct {
	Flow  Flow
	Ready int64
	Bytes int64
}

// Filter selects what List returns. Tenant is required; the others narrow it where not zero.
type Filter struct {
	Tenant   string
	Function string
	State    task.State // Running is the caller's to overlay: a store knows no running rows
	Label    string     // "key=value"
	Live     bool       // hot rows only
	Finished bool       // history only
}

// Cursor is a place in a list, newest first: what comes after (CreatedAt, ID). The zero value is the start.
type Cursor struct {
	CreatedAt time.Time
	ID        task.ID
}

// Store is one database: it holds some partitions. Its methods may be called from any goroutine;
// Commit and Acquire by one at a time.
type Store interface {
	// Acquire raises the partition's epoch from the given one by one, by compare-and-set, serialised
	// against commits, and returns the new one. The partition is created at epoch 0 when it is not there.
	// Errors: ErrFenced if the epoch is not the given one.
	Acquire(ctx context.Context, partition uint32, from Epoch) (Epoch, error)
	// AcquireAbove is Acquire that raises the epoch above another one, too: one that was given before the
	// database was restored from a backup, as the registry or an executor remembers it.
	AcquireAbove(ctx context.Context, partition uint32, from, above Epoch) (Epoch, error)
	// Epoch reads a partition's epoch from the durable state; 0 if it is not there.
	Epoch(ctx context.Context, partition uint32) (Epoch, error)
	// Commit stores a batch. A non-nil error concerns all parts: ErrFull (nothing stored), else unknown. A part
	// is fenced, too, if the server was started anew since its epoch was raised: it may have been restored.
	Commit(ctx context.Context, b *Batch) ([]PartResult, error)
	// Recover reads what a new owner needs. Call it after Acquire.
	Recover(ctx context.Context, partition uint32) (*Recovered, error)
	// Flows lists the partition's flows with ready rows, in no order.
	Flows(ctx context.Context, partition uint32) ([]FlowStat, error)
	// Ready returns the ready rows of a flow after the key, in key order; the zero Key is the start. At
	// most limit rows and, but for the first, at most maxBytes of payload are returned. Payloads above
	// inline bytes are left out (Payload nil, PayloadSize set) and don't count. More reports whether rows
	// remain behind the last returned.
	Ready(ctx context.Context, partition uint32, f Flow, after Key, limit, maxBytes, inline int) (rows []*Task, more bool, err error)
	// Due returns rows of the due index with due time before until, after the cursor (the Sort of a
	// cursor is a due time in microseconds), by due time, with the same limits as Ready.
	Due(ctx context.Context, partition uint32, after Key, until time.Time, limit, maxBytes, inline int) (rows []*Task, more bool, err error)
	// Get returns a hot or finished row with its payload and result. Errors: ErrNotFound.
	Get(ctx context.Context, id task.ID) (*Task, error)
	// ByClientID returns the id of the task that holds a client's id. Errors: ErrNotFound.
	ByClientID(ctx context.Context, tenant, clientID string) (task.ID, error)
	// Request returns what a submit of the last ten minutes made: one with At from now - RequestLife to a
	// minute after now. Errors: ErrNotFound.
	Request(ctx context.Context, partition uint32, tenant, id string, now time.Time) (*Request, error)
	// List returns rows newest first (the later CreatedAt, then the larger id), without payloads and
	// results. More reports whether rows remain.
	List(ctx context.Context, f Filter, after Cursor, limit int) (rows []*Task, more bool, err error)
	// Partitions lists the partitions that the database holds.
	Partitions(ctx context.Context) ([]Partition, error)
	// Settings describes how durable a commit is, as read from the engine, for people and benchmarks.
	Settings() map[string]string
	Keeper
	// DiskBytes returns how much the store has written to disk since it was opened, and how much it occupies.
	DiskBytes() (written, occupied int64)
	Close() error
}
