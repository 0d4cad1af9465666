package program

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Spec is one run of a program.
type Spec struct {
	Path string   // as exec.LookPath returned it
	Args []string // without the program's own name
	Env  []string // besides the environment of this process, as KEY=VALUE
	In   []byte   // its standard input

	// Grace returns how long the program may go on after SIGTERM, given the cause of the context's end;
	// nil: SIGKILL follows at once.
	Grace func(cause error) time.Duration
	// MaxOut bounds the standard output in bytes. More is read and dropped, and Result.Truncated set.
	MaxOut int
	// Line gets each line of the standard error, without its end, cut after 4 KiB into several. Called
	// from one goroutine that ends before Run returns. May be nil.
	Line func(string)
}

// Result is how a run ended.
type Result struct {
	Code      int            // exit code; -1 after a signal
	Signal    syscall.Signal // that ended it; 0: none
	Out       []byte         // standard output
	Truncated bool           // there was more output than MaxOut
	OutSize   int64          // all the standard output, in bytes
	Last      []string       // the last lines of the standard error, at most 2 KiB
}

// straggle bounds the wait for output that a process outside of the group keeps open.
const straggle = time.Second

// Run runs the program to its end. An error says that it could not be started or watched; how it ended
// is in the Result, also when ctx ended it.
func Run(ctx context.Context, s Spec) (Result, error) {
	cmd := exec.Command(s.Path, s.Args...)
	cmd.Env = append(os.Environ(), s.Env...)
	cmd.SysProcAttr = Child()
	p, err := newPipes(cmd)
	if err != nil {
		return Result{}, err
	}
	defer p.close()
	if err := cmd.Start(); err != nil {
		return Result{}, fmt.Errorf("start %s: %w", s.Path, err)
	}
	p.closeTheirs()

	var res Result
	var wg sync.WaitGroup
	wg.Go(func() {
		p.in.Write(s.In) // EPIPE: the program need not read its input
		p.in.Close()
	})
	wg.Go(func() { res.Out, res.OutSize = readOut(p.out, s.MaxOut) })
	wg.Go(func() { res.Last = readLines(p.err, s.Line) })

	ended, silent := make(chan error, 1), make(chan struct{})
	go func() { ended <- cmd.Wait() }()
	go func() { wg.Wait(); close(silent) }()
	err = wait(ctx, cmd.Process.Pid, s.Grace, ended, silent)
	// The first process is gone. Its group's id can't be taken by others while the group has members.
	syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	p.deadline(time.Now().Add(straggle))
	<-silent

	res.Truncated = res.OutSize > int64(len(res.Out))
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return res, fmt.Errorf("wait for %s: %w", s.Path, err)
	}
	res.Code = cmd.ProcessState.ExitCode()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		res.Signal = ws.Signal()
	}
	return res, nil
}

// wait returns the end of the first process; when ctx ends first, it sees to it. Then the others of
// the group have the rest of the grace, too: a shell often dies before the command that it runs. Silent
// is closed when nobody holds the output any more.
func wait(ctx context.Context, pid int, grace func(error) time.Duration, ended <-chan error, silent <-chan struct{}) error {
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	syscall.Kill(-pid, syscall.SIGTERM)
	var most time.Duration
	if grace != nil {
		most = grace(context.Cause(ctx))
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case err := <-ended:
		select {
		case <-silent:
		case <-timer.C:
		}
		return err
	case <-timer.C:
	}
	syscall.Kill(-pid, syscall.SIGKILL)
	return <-ended
}

// pipes are our ends and theirs. Pipes of os/exec would have Wait hang on processes that the program
// left behind.
type pipes struct {
	in, out, err *os.File
	theirs       []*os.File
}

func newPipes(cmd *exec.Cmd) (*pipes, error) {
	p := &pipes{}
	pipe := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, nil
		}
		return r, w
	}
	inR, inW := pipe()
	outR, outW := pipe()
	errR, errW := pipe()
	p.in, p.out, p.err, p.theirs = inW, outR, errR, []*os.File{inR, outW, errW}
	if inR == nil || outR == nil || errR == nil {
		p.close()
		return nil, errors.New("make pipes: too many open files")
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inR, outW, errW
	return p, nil
}

func (p *pipes) closeTheirs() {
	for _, f := range p.theirs {
		f.Close()
	}
}

// deadline ends all reads and writes at that time.
func (p *pipes) deadline(at time.Time) {
	for _, f := range []*os.File{p.in, p.out, p.err} {
		f.SetDeadline(at)
	}
}

func (p *pipes) close() {
	p.closeTheirs() // closing a file twice, or none, is a harmless error
	for _, f := range []*os.File{p.in, p.out, p.err} {
		f.Close()
	}
}

// readOut returns the first most bytes of r and how many there were in all.
func readOut(r io.Reader, most int) ([]byte, int64) {
	out, _ := io.ReadAll(io.LimitReader(r, int64(most)))
	more, _ := io.Copy(io.Discard, r)
	return out, int64(len(out)) + more
}

const (
	maxLine = 4 << 10 // longer ones are cut into several
	maxLast = 2 << 10 // bytes of the last lines that are kept
)

// readLines hands on the lines of r and returns the last ones.
func readLines(r io.Reader, line func(string)) []string {
	var last []string
	kept := 0
	emit := func(s string) {
		s = strings.TrimSuffix(s, "\r")
		if line != nil {
			line(s)
		}
		s = s[:min(len(s), maxLast)]
		last, kept = append(last, s), kept+len(s)
		for kept > maxLast {
			kept -= len(last[0])
			last = last[1:]
		}
	}
	buf, n := make([]byte, maxLine), 0
	for {
		m, err := r.Read(buf[n:])
		n += m
		rest := buf[:n]
		for {
			end := bytes.IndexByte(rest, '\n')
			if end < 0 {
				break
			}
			emit(string(rest[:end]))
			rest = rest[end+1:]
		}
		n = copy(buf, rest)
		if n == len(buf) || err != nil && n > 0 {
			emit(string(buf[:n]))
			n = 0
		}
		if err != nil {
			return last
		}
	}
}
