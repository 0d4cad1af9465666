package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
)

// sizes say how much is measured.
type sizes struct {
	rounds  int
	seconds time.Duration // that a load lasts, roughly
	backlog int           // 0: that row is left out
	only    []string      // systems; none: all
}

func (s sizes) wants(system string) bool { return len(s.only) == 0 || slices.Contains(s.only, system) }

type system interface {
	system() string
	loads() []string
	run(ctx context.Context, load string) (*measure, error)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench-peers:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var s sizes
	fl := flag.NewFlagSet("bench-peers", flag.ContinueOnError)
	fl.IntVar(&s.rounds, "rounds", 3, "rounds; figures are medians over them")
	fl.DurationVar(&s.seconds, "time", 10*time.Second, "how long each load lasts, roughly")
	fl.IntVar(&s.backlog, "backlog", 5_000_000, "tasks that wait for the row with a backlog; 0 leaves it out")
	quick := fl.Bool("quick", false, "short for -rounds 1 -time 3s -backlog 200000: a look, no figure to quote")
	only := fl.String("only", "", "systems, with commas between; all by default")
	exe := fl.String("headrace", "bin/headrace", "the program")
	out := fl.String("out", "", "file for the results as JSON; none by default")
	page := fl.String("page", "", "file whose generated part is written anew; none by default")
	render := fl.Bool("render", false, "measure nothing: read -out and write -page")
	if err := fl.Parse(args); err != nil {
		return err
	}
	if *render {
		r, err := readResults(*out)
		if err != nil {
			return err
		}
		return r.writePage(*page)
	}
	if *quick {
		given := map[string]bool{}
		fl.Visit(func(f *flag.Flag) { given[f.Name] = true })
		short := sizes{rounds: 1, seconds: 3 * time.Second, backlog: 200_000}
		if !given["rounds"] {
			s.rounds = short.rounds
		}
		if !given["time"] {
			s.seconds = short.seconds
		}
		if !given["backlog"] {
			s.backlog = short.backlog
		}
	}
	if *only != "" {
		s.only = strings.Split(*only, ",")
	}
	if s.rounds < 1 || s.seconds < time.Second || s.backlog < 0 {
		return fmt.Errorf("-rounds %d, -time %v, -backlog %d: want at least 1, 1s and 0", s.rounds, s.seconds, s.backlog)
	}
	path, err := filepath.Abs(*exe)
	if err != nil {
		return err
	}
	r := newResults(s, strings.TrimSpace("make bench-peers ARGS=\""+strings.Join(own(args), " ")+"\""))
	// Each round is kept, and so are the rounds if what comes after them fails.
	save := func() error {
		r.conclude()
		if *out == "" {
			return nil
		}
		return r.write(*out)
	}
	if err := r.measure(ctx, path, save); err != nil {
		return err
	}
	err = save()
	if *page != "" {
		err = errors.Join(err, r.writePage(*page))
	}
	fmt.Println()
	return errors.Join(err, r.table(os.Stdout))
}

// own returns the arguments that a person gave, without the paths that make adds.
func own(args []string) (out []string) {
	for i := 0; i < len(args); i++ {
		switch args[i] {
		case "-headrace", "-out", "-page":
			i++
		default:
			out = append(out, args[i])
		}
	}
	return out
}

// measure runs all rounds and calls save after each. Whatever it started has ended when it returns.
func (r *results) measure(ctx context.Context, exe string, save func() error) error {
	// As in `headrace bench`: who makes the load trades memory for CPU.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	s := r.sizes
	fmt.Println("starting Postgres")
	pg, err := startPostgres()
	if err != nil {
		return err
	}
	defer pg.Close()
	var systems []system
	onPostgres := &headrace{name: "headrace_postgres", exe: exe, pg: pg, tune: s}
	if s.wants(onPostgres.name) {
		systems = append(systems, onPostgres)
	}
	if s.wants("river") {
		river, err := newRiver(ctx, pg, s)
		if err != nil {
			return err
		}
		defer river.close()
		systems = append(systems, river)
	}
	for _, fsync := range []string{"everysec", "always"} {
		if !s.wants("asynq_" + fsync) {
			continue
		}
		fmt.Println("starting Redis, appendfsync", fsync)
		redis, err := startRedis(ctx, fsync)
		if err != nil {
			return err
		}
		defer redis.close()
		systems = append(systems, &peerAsynq{redis: redis, tune: s})
		r.Settings["asynq_"+fsync] = map[string]string{"appendonly": "yes", "appendfsync": fsync, "save": "", "auto-aof-rewrite-percentage": "0",
			"concurrency": fmt.Sprint(asynqWorkers), "callers": fmt.Sprint(asynqCallers), "task_check_interval": asynqCheck.String() + ", light load also default"}
		r.Versions["redis"] = redis.info(ctx, "redis_version")
	}
	if s.wants("headrace_embedded") {
		systems = append(systems, &headrace{name: "headrace_embedded", exe: exe, tune: s})
	}
	r.postgres(pg)
	for round := range s.rounds {
		for i, load := range []string{cycle, single, light, lightDefault} {
			// Another one begins each time: what is slow for a minute is so for all.
			turn := (round + i) % len(systems)
			for _, sys := range append(slices.Clone(systems[turn:]), systems[:turn]...) {
				if !slices.Contains(sys.loads(), load) {
					continue
				}
				if err := r.one(round, sys.system(), load, func() (*measure, error) { return sys.run(ctx, load) }); err != nil {
					return err
				}
			}
		}
		if err := save(); err != nil {
			return err
		}
	}
	if s.backlog == 0 || !s.wants(onPostgres.name) {
		return nil
	}
	fmt.Printf("storing %d tasks that wait takes minutes\n", s.backlog)
	for i, backlog := range []int{0, s.backlog, 0} {
		load := none
		if backlog > 0 {
			load = waiting
		}
		if err := r.one(i, onPostgres.name, load, func() (*measure, error) { return onPostgres.withBacklog(ctx, backlog) }); err != nil {
			return err
		}
	}
	return nil
}

// one makes one measurement, notes it and says it.
func (r *results) one(round int, system, load string, do func() (*measure, error)) error {
	m, err := do()
	if err != nil {
		return fmt.Errorf("round %d, %s, %s: %w", round+1, system, load, err)
	}
	m.System, m.Load, m.Round = system, load, round+1
	r.add(m)
	line := fmt.Sprintf("round %d  %-18s %-24s %9.0f tasks/s %8.1f µs CPU (%.1f of the database) %6.0f B logged", m.Round, system, load, m.TasksPerS, m.CPUMicros, m.dbMicro, m.WALBytes)
	switch {
	case load == light || load == lightDefault:
		line = fmt.Sprintf("round %d  %-18s %-24s start p50 %.2f ms, p99 %.2f ms", m.Round, system, load, m.Start.P50, m.Start.P99)
	case load == single:
		line += fmt.Sprintf("; %.0f submits/s, p50 %.2f ms", m.SubmitPerS, m.Submit.P50)
	}
	fmt.Printf("%s; others used %.1f cores\n", line, m.Foreign)
	return nil
}
