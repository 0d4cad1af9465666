package storetest

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// Harness gives a test a database of its own, empty at first.
type Harness struct {
	// Open opens the database. The suite calls it again after Crash only. Required.
	Open func(t *testing.T) store.Store
	// Crash ends a store as kill -9 would, or as near as the store's test can come. Nil: Close.
	Crash func(t *testing.T, s store.Store)
}

// Run runs the suite. It calls harness once for each test.
func Run(t *testing.T, harness func(t *testing.T) Harness) {
	tests := []struct {
		name string
		test func(t *testing.T, e *env)
	}{
		{"EpochIsRaisedByCompareAndSet", testEpochIsRaisedByCompareAndSet},
		{"EpochIsRaisedAboveAForgottenOne", testAcquireAbove},
		{"ConfigurationIsCopiedFromVersionToVersion", testConfiguration},
		{"OldEpochIsRefusedAndOtherPartsCommit", testOldEpochIsRefused},
		{"PartitionThatNobodyAcquiredIsRefused", testUnownedIsRefused},
		{"EveryFieldComesBack", testEveryFieldComesBack},
		{"ExtremeTimesComeBackAndAreOrdered", testExtremeTimes},
		{"BytesComeBackAsTheyWere", testBytesComeBack},
		{"EmptyPayloadIsNoPayload", testEmptyPayload},
		{"UnknownIDIsNotFound", testUnknownID},
		{"FinishKeepsThePayloadOfDeadLettersOnly", testFinishPayload},
		{"UpdateKeepsOrReplacesThePayload", testUpdatePayload},
		{"OneBatchMayChangeATaskTwice", testTwiceInABatch},
		{"ReadyIsInKeyOrderBehindACursor", testReadyOrder},
		{"ReadyStopsAtItsLimits", testReadyLimits},
		{"DueIsInTimeOrderUpToATime", testDueOrder},
		{"StateMovesARowBetweenIndexes", testIndexMoves},
		{"RecoverFindsRecordsCancelsAndFunctions", testRecover},
		{"CountersEqualARecount", testCounters},
		{"ClientIDIsTakenOnce", testClientIDs},
		{"ClientIDOfARefusedPartStaysFree", testClientIDOfRefusedPart},
		{"RequestIsKnownForTenMinutes", testRequests},
		{"FloorAndSequenceOnlyRise", testFloorAndSeq},
		{"OrderlyReleaseIsRemembered", testRelease},
		{"InsertAndFinishInOneBatchLeaveNoEntry", testInsertAndFinish},
		{"ListPagesSeeEveryRowOnce", testListPages},
		{"ListFiltersNarrow", testListFilters},
		{"NamesThatStartAlikeStayApart", testNamesApart},
		{"WhatWasAnsweredSurvivesACrash", testCrash},
		{"OldHandlesAreFenced", testTwoOwners},
		{"RandomStepsEqualTheOracle", testRandom},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := harness(t)
			e := &env{t: t, h: h, s: h.Open(t), epochs: map[uint32]store.Epoch{}, seqs: map[uint32]uint64{}}
			t.Cleanup(func() { e.s.Close() })
			tt.test(t, e)
		})
	}
}

// base is the time that tests start from.
var base = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// env is a store with its owner's bookkeeping.
type env struct {
	t      *testing.T
	h      Harness
	s      store.Store
	epochs map[uint32]store.Epoch
	seqs   map[uint32]uint64
}

// reopen crashes the store and opens it again.
func (e *env) reopen() {
	e.t.Helper()
	if e.h.Crash != nil {
		e.h.Crash(e.t, e.s)
	} else if err := e.s.Close(); err != nil {
		e.t.Fatal(err)
	}
	e.s = e.h.Open(e.t)
}

// acquire raises the partition's epoch.
func (e *env) acquire(partition uint32) store.Epoch {
	e.t.Helper()
	epoch, err := e.s.Acquire(e.t.Context(), partition, e.epochs[partition])
	if err != nil {
		e.t.Fatal(err)
	}
	e.epochs[partition] = epoch
	return epoch
}

// newTask returns a queued task of the partition's next number.
func (e *env) newTask(partition uint32, tenant, function string) *store.Task {
	e.seqs[partition]++
	seq := e.seqs[partition]
	return &store.Task{
		ID: task.NewID(partition, seq, seq*7919), Tenant: tenant, Function: function,
		Payload: []byte("payload"), PayloadSize: 7, Band: task.Normal, Priority: task.DefaultPriority,
		CreatedAt: base.Add(time.Duration(seq) * time.Millisecond),
		DueAt:     base.Add(time.Duration(seq) * time.Millisecond), FirstDueAt: base, State: task.Queued, Attempt: 1,
	}
}

// commit commits changes to one partition under the epoch that acquire gave.
func (e *env) commit(partition uint32, changes ...store.Change) store.PartResult {
	e.t.Helper()
	return e.commitPart(store.Part{Partition: partition, Epoch: e.epochs[partition], Changes: changes, Seq: e.seqs[partition]})
}

func (e *env) commitPart(p store.Part) store.PartResult {
	e.t.Helper()
	rs, err := e.s.Commit(e.t.Context(), &store.Batch{At: base, Parts: []store.Part{p}})
	if err != nil {
		e.t.Fatal(err)
	}
	if len(rs) != 1 || rs[0].Err != nil {
		e.t.Fatalf("commit = %v, want one part without an error", rs)
	}
	return rs[0]
}

func (e *env) get(id task.ID) *store.Task {
	e.t.Helper()
	t, err := e.s.Get(e.t.Context(), id)
	if err != nil {
		e.t.Fatal(err)
	}
	return t
}

func insert(t *store.Task) store.Change { return store.Change{Op: store.Insert, Task: t} }

// update is a change that keeps the payload, which is left out of t.
func update(old, t *store.Task) store.Change {
	return store.Change{Op: store.Update, Old: old, Task: t, KeepPayload: true}
}

func finish(old, t *store.Task) store.Change {
	return store.Change{Op: store.Finish, Old: old, Task: t}
}

// with returns a changed copy without its payload.
func with(t *store.Task, change func(t *store.Task)) *store.Task {
	c := *t
	c.Payload = nil
	change(&c)
	return &c
}

// ended returns t as finished.
func ended(t *store.Task, state task.State) *store.Task {
	return with(t, func(t *store.Task) { t.State, t.FinishedAt = state, base.Add(time.Hour) })
}

// same fails unless the tasks are equal; it names the fields that differ.
func same(t *testing.T, what string, got, want *store.Task) {
	t.Helper()
	if d := diff(got, want); d != "" {
		t.Fatalf("%s: %s", what, d)
	}
}

func diff(got, want *store.Task) string {
	if got == nil || want == nil || reflect.DeepEqual(got, want) {
		if (got == nil) != (want == nil) {
			return fmt.Sprintf("got %v, want %v", got, want)
		}
		return ""
	}
	g, w := reflect.ValueOf(*got), reflect.ValueOf(*want)
	var out string
	for i := range g.NumField() {
		name := g.Type().Field(i).Name
		if !g.Type().Field(i).IsExported() {
			continue
		}
		if !reflect.DeepEqual(g.Field(i).Interface(), w.Field(i).Interface()) {
			out += fmt.Sprintf(" %s %.200v, want %.200v;", name, show(g.Field(i)), show(w.Field(i)))
		}
	}
	return fmt.Sprintf("task %s:%s", want.ID, out)
}

func show(v reflect.Value) any {
	if v.Kind() == reflect.Pointer && !v.IsNil() {
		return v.Elem().Interface()
	}
	return v.Interface()
}

// sameRows compares pages.
func sameRows(t *testing.T, what string, got, want []*store.Task) {
	t.Helper()
	if g, w := ids(got), ids(want); !slices.Equal(g, w) {
		t.Fatalf("%s: got rows %v, want %v", what, g, w)
	}
	for i := range want {
		same(t, what, got[i], want[i])
	}
}

func ids(ts []*store.Task) []string {
	out := make([]string, len(ts))
	for i, t := range ts {
		out[i] = fmt.Sprintf("%d/%d", t.ID.Partition(), t.ID.Seq())
	}
	return out
}

// bare returns t as a list shows it.
func bare(t *store.Task) *store.Task {
	c := *t
	c.Payload, c.Result = nil, nil
	return &c
}
