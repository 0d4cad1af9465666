package localcluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"
)

// A Service is one process of a cluster, which can be broken and mended.
type Service struct {
	Name string

	c        *Cluster
	proc     *Process // in c.state; guarded by c.mu
	stop     syscall.Signal
	kill     syscall.Signal
	prepare  func(context.Context) (command, error)
	serves   func(context.Context) bool
	complete func(context.Context) error // once it serves; nil: nothing
}

// Process returns the newest process.
func (s *Service) Process() Process {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return *s.proc
}

// Alive reports whether it runs or is paused.
func (s *Service) Alive() bool { return s.Process().Alive() }

// Log returns the file that its processes print to.
func (s *Service) Log() string { return filepath.Join(s.c.Dir, "log", s.Name+".log") }

// Start starts it and returns when it serves.
func (s *Service) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startMax, errors.New("the bound of "+startMax.String()))
	defer cancel()
	if err := s.Spawn(ctx); err != nil {
		return err
	}
	if err := s.Serves(ctx); err != nil {
		return fmt.Errorf("start %s: %w", s.Name, err)
	}
	if s.complete != nil {
		if err := s.complete(ctx); err != nil {
			return fmt.Errorf("start %s: %w", s.Name, err)
		}
	}
	return nil
}

// Spawn starts its process and does not wait for what it does.
func (s *Service) Spawn(ctx context.Context) error {
	cmd, err := s.prepare(ctx)
	if err != nil {
		return fmt.Errorf("start %s: %w", s.Name, err)
	}
	cmd.log, cmd.detached = s.Log(), s.c.opt.Detached
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.proc.Alive() {
		return fmt.Errorf("start %s: it runs already, as process %d", s.Name, s.proc.PID)
	}
	p, err := cmd.start()
	if err != nil {
		return fmt.Errorf("start %s: %w", s.Name, err)
	}
	*s.proc = p
	if err := s.c.save(); err != nil { // nobody could end it later
		return errors.Join(fmt.Errorf("start %s: %w", s.Name, err), p.end(s.kill, 10*time.Second))
	}
	return nil
}

// Serves waits until it serves. The error says that it has ended, or why ctx has.
func (s *Service) Serves(ctx context.Context) error {
	return s.Process().ready(ctx, s.Log(), func() bool { return s.serves(ctx) })
}

// Kill ends it at once, as a crash would, and waits until it is gone.
func (s *Service) Kill() error { return s.Process().end(s.kill, 10*time.Second) }

// Stop ends it in order and waits until it is gone; after a minute it is killed.
func (s *Service) Stop() error { return s.Process().end(s.stop, time.Minute) }

// Term asks it to end in order and does not wait.
func (s *Service) Term() error { return s.Process().signal(s.stop) }

// Ended waits until it is gone; the error is that of ctx.
func (s *Service) Ended(ctx context.Context) error { return s.Process().ended(ctx) }

// Pause stops it in the middle of whatever it does, until Resume. Of a Postgres only the postmaster stops.
func (s *Service) Pause() error { return s.Process().signal(syscall.SIGSTOP) }

// Resume ends a Pause.
func (s *Service) Resume() error { return s.Process().signal(syscall.SIGCONT) }

// Tail returns the last n bytes that it printed.
func (s *Service) Tail(n int) string { return tail(s.Log(), n) }
