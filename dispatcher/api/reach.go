package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/headrace/headrace/dispatcher/peer"
	"github.com/headrace/headrace/internal/telemetry"
	"github.com/headrace/headrace/store"
)

// readMax is how long a list waits for one database.
const readMax = 3 * time.Second

// reach is where a tenant's tasks may be, and what of it did not answer one call.
type reach struct {
	databases  []int
	partitions []uint32 // nil: any
	missing    map[string]bool
	failed     map[int]bool // databases
}

// reachOf says where a tenant's tasks may be. While its first placement holds these are its members, and those that
// a node took before it had heard of that one. A tenant that was moved has older tasks in partitions
// that the record does not name any more, and of one without a record nothing is known: any.
func (s *Services) reachOf(tenant string) *reach {
	r := &reach{missing: map[string]bool{}, failed: map[int]bool{}}
	p, stored := s.cfg.Placements.Snapshot().Get(tenant)
	if !stored || p.Version > 1 {
		for i := range s.cfg.Databases {
			r.databases = append(r.databases, i)
		}
		return r
	}
	r.partitions = slices.Concat(p.Members, p.Before)
	if !slices.Contains(r.partitions, p.Home) {
		r.partitions = append(r.partitions, p.Home)
	}
	for _, id := range r.partitions {
		i, ok := s.cfg.DatabaseOf(id)
		switch {
		case !ok: // of a database that this node does not know
			r.missing[partitionName(id)] = true
		case !slices.Contains(r.databases, i):
			r.databases = append(r.databases, i)
		}
	}
	slices.Sort(r.databases)
	return r
}

func partitionName(id uint32) string { return fmt.Sprint("partition ", id) }

func (s *Services) databaseName(i int) string {
	if i < len(s.cfg.DatabaseNames) {
		return "database " + s.cfg.DatabaseNames[i]
	}
	return fmt.Sprint("database ", i)
}

// missingError says that a database does not answer.
type missingError struct {
	database string
	submit   bool // a submit was refused for that: nothing was stored
	cause    error
}

func (e *missingError) Error() string {
	if e.submit {
		return "database " + e.database + " does not answer; nothing was stored"
	}
	return "database " + e.database + " does not answer"
}

func (e *missingError) Unwrap() error { return e.cause }

// away names the first of the databases of some partitions, if each of these is in one that does not answer this node now; else "".
func (s *Services) away(partitions []uint32) (name string) {
	for _, p := range partitions {
		i, ok := s.cfg.DatabaseOf(p)
		if !ok || s.cfg.DatabaseAway == nil || !s.cfg.DatabaseAway(i) {
			return ""
		}
		if name == "" {
			name = strings.TrimPrefix(s.databaseName(i), "database ")
		}
	}
	return name
}

// lacking returns the error of a read that a database did not answer within the time it has; any other, and one that is due to the
// caller, as it is.
func (s *Services) lacking(ctx context.Context, index int, err error) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, store.ErrNotFound) {
		return err
	}
	if !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
		return err // something else is wrong: it is logged
	}
	return &missingError{database: strings.TrimPrefix(s.databaseName(index), "database "), cause: err}
}

// lacks notes which owners could not be asked. Any other error is returned.
func (r *reach) lacks(err error) error {
	missing, err := peer.Missing(err)
	for _, m := range missing {
		r.missing[m] = true
	}
	return err
}

// unreachable is for the answer.
func (r *reach) unreachable() []string { return slices.Sorted(maps.Keys(r.missing)) }

// page reads one page from all databases of the reach, side by side. One that fails or stalls is left out from then on,
// unless all do.
func (s *Services) page(ctx context.Context, r *reach, f store.Filter, after store.Cursor, size int) (rows []*store.Task, more bool, err error) {
	type part struct {
		rows []*store.Task
		more bool
		err  error
	}
	var ask []int
	for _, i := range r.databases {
		if !r.failed[i] {
			ask = append(ask, i)
		}
	}
	parts := make([]part, len(ask))
	var wg sync.WaitGroup
	for k, i := range ask {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, readMax)
			defer cancel()
			p := &parts[k]
			p.rows, p.more, p.err = s.cfg.Databases[i].List(ctx, f, after, size)
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, false, context.Cause(ctx)
	}
	answered := false
	var failed error
	for k, i := range ask {
		p := parts[k]
		if p.err != nil {
			failed = fmt.Errorf("list tasks: %w", s.lacking(ctx, i, p.err))
			r.failed[i], r.missing[s.databaseName(i)] = true, true
			s.log.Warn("a list goes without a database", telemetry.Database(s.databaseName(i)), telemetry.Err(p.err))
			continue
		}
		answered = true
		rows, more = append(rows, p.rows...), more || p.more
	}
	if !answered && failed != nil {
		return nil, false, failed
	}
	if len(ask) > 1 {
		slices.SortFunc(rows, newestFirst)
		if len(rows) > size {
			rows, more = rows[:size], true
		}
	}
	return rows, more, nil
}
