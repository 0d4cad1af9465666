package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/term"
	"github.com/headrace/headrace/task"
)

const (
	groupTasks   = task.MaxBatchItems // tasks of a batch file that are sent together
	groupBytes   = 2 << 20            // or payload bytes
	groupsAtOnce = 4                  // groups under way
	waitsAtOnce  = 256                // of a group, with --wait
)

// A group is a piece of a batch file on its way.
type group struct {
	tasks    []client.Task
	lines    []int // of the tasks in the file
	bytes    int
	outcomes []client.Outcome
	finished []*client.TaskInfo // with --wait: of those that were stored
	err      error              // the group is not done
	done     chan struct{}      // closed when the above is set
}

// submitBatch sends the tasks of a file and prints a line for each, in the file's order.
func (a *app) submitBatch(ctx context.Context, f submitFlags, defaults client.Task) error {
	in, closeIn, err := open(f.batch, a.In)
	if err != nil {
		return err
	}
	defer closeIn()
	total, err := checkBatchFile(in, defaults)
	if err != nil {
		return fmt.Errorf("%s: %w", f.batch, err)
	}
	c, err := a.dial()
	if err != nil {
		return err
	}
	defer c.Close()

	var printed, refused atomic.Int64
	bar := term.StartProgress(a.Err, func() term.Status {
		s := term.Status{Done: printed.Load(), Total: total}
		if n := refused.Load(); n > 0 {
			s.Text = fmt.Sprintf("%d refused", n)
		}
		return s
	})
	defer bar.Stop()
	ctx, cancel := context.WithCancel(ctx)
	groups := make(chan *group, groupsAtOnce-1) // sent and closed by sendGroups
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var readErr error // of sendGroups, until groups is closed
	wg.Go(func() { readErr = sendGroups(ctx, c, newBatchReader(in, defaults), f.wait, groups, &wg); close(groups) })
	for g := range groups {
		<-g.done
		for i := range g.tasks {
			if g.outcomes == nil {
				break
			}
			ok, err := a.printOutcome(g, i)
			if err != nil {
				return err
			}
			printed.Add(1)
			if !ok {
				refused.Add(1)
			}
		}
		if g.err != nil {
			return fmt.Errorf("lines %d to %d: %w", g.lines[0], g.lines[len(g.lines)-1], g.err)
		}
	}
	bar.Stop()
	if readErr != nil {
		return fmt.Errorf("%s: %w", f.batch, readErr)
	}
	if n := refused.Load(); n > 0 {
		return fmt.Errorf("%d of %d tasks were refused or did not succeed", n, printed.Load())
	}
	return nil
}

// checkBatchFile reads a regular file through and goes back to its start; it returns the number of its
// tasks. Of anything else it knows nothing and returns 0.
func checkBatchFile(in io.Reader, defaults client.Task) (int64, error) {
	file, ok := in.(*os.File)
	if !ok {
		return 0, nil
	}
	if st, err := file.Stat(); err != nil || !st.Mode().IsRegular() {
		return 0, nil
	}
	start, err := file.Seek(0, io.SeekCurrent) // standard input may be a file that was read in part
	if err != nil {
		return 0, err
	}
	r := newBatchReader(file, defaults)
	var n int64
	for {
		_, err := r.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return 0, err
		}
		n++
	}
	_, err = file.Seek(start, io.SeekStart)
	return n, err
}

// sendGroups cuts the file into groups, starts each and hands it on, a few at once.
func sendGroups(ctx context.Context, c *client.Client, r *batchReader, wait bool, out chan<- *group, wg *sync.WaitGroup) error {
	for {
		g, err := readGroup(r)
		if len(g.tasks) > 0 {
			wg.Go(func() {
				defer close(g.done)
				g.run(ctx, c, wait)
			})
			select {
			case out <- g:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// readGroup returns what comes next, with the error that ended it.
func readGroup(r *batchReader) (*group, error) {
	g := &group{done: make(chan struct{})}
	for len(g.tasks) < groupTasks && g.bytes < groupBytes {
		t, err := r.next()
		if err != nil {
			return g, err
		}
		g.tasks, g.lines = append(g.tasks, t), append(g.lines, r.line)
		g.bytes += len(t.Payload)
	}
	return g, nil
}

// run submits the group and, if asked, waits for its tasks. The client sends again what was lost for as
// long as ctx lives: a long file goes on over a restart of the server.
func (g *group) run(ctx context.Context, c *client.Client, wait bool) {
	g.outcomes, g.err = c.SubmitBatch(ctx, g.tasks)
	if g.err != nil || !wait {
		return
	}
	g.finished = make([]*client.TaskInfo, len(g.tasks))
	errs := make([]error, len(g.tasks))
	var wg sync.WaitGroup
	room := make(chan struct{}, waitsAtOnce)
	for i, o := range g.outcomes {
		if o.Err != nil {
			continue
		}
		room <- struct{}{}
		wg.Go(func() {
			g.finished[i], errs[i] = c.Wait(ctx, client.ByID(o.ID))
			<-room
		})
	}
	wg.Wait()
	g.err = errors.Join(errs...)
}

// refusalJSON is the output for a task of a batch file that was not stored.
type refusalJSON struct {
	Line     int    `json:"line"`
	ClientID string `json:"client_id,omitempty"`
	Error    struct {
		Reason     string `json:"reason"`
		Message    string `json:"message"`
		ExistingID string `json:"existing_id,omitempty"`
	} `json:"error"`
}

// printOutcome prints task i of g and reports whether it was stored and, if waited for, succeeded.
func (a *app) printOutcome(g *group, i int) (ok bool, err error) {
	o, t := g.outcomes[i], g.tasks[i]
	switch {
	case o.Err != nil:
		r := refusalJSON{Line: g.lines[i], ClientID: t.ID}
		r.Error.Reason, r.Error.Message, r.Error.ExistingID = explain(o.Err)
		if a.json() {
			return false, a.writeJSON(r)
		}
		_, err := fmt.Fprintf(a.Out, "line %d refused: %s\n", r.Line, term.Escape(o.Err.Error()))
		return false, err
	case g.finished != nil:
		if g.finished[i] == nil {
			return false, nil // g.err says why
		}
		return g.finished[i].Succeeded(), a.printTask(g.finished[i])
	case a.json():
		return true, a.writeJSON(submittedJSON{o.ID, t.ID, a.tenant, t.Function, o.Deduplicated})
	}
	_, err = fmt.Fprintln(a.Out, o.ID)
	return true, err
}

// explain takes a refusal apart.
func explain(err error) (reason, message, existingID string) {
	var dup *client.DuplicateError
	var server *client.Error
	var field *task.FieldError
	switch {
	case errors.As(err, &dup):
		return "already_exists", dup.Message, dup.ExistingID
	case errors.As(err, &server):
		return server.Reason, server.Message, ""
	case errors.As(err, &field):
		return "invalid_argument", field.Error(), ""
	case errors.Is(err, client.ErrNotSent):
		return "not_sent", err.Error(), ""
	case errors.Is(err, client.ErrOutcomeUnknown):
		return "outcome_unknown", err.Error(), ""
	}
	return "", err.Error(), ""
}
