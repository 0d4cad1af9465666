package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/headrace/headrace/internal/devserver"
	"github.com/headrace/headrace/internal/pgtest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"headrace": main})
}

// The command line as scripts use it: real processes, a real server, files under testdata/script.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("XDG_DATA_HOME", "")
			for _, v := range []string{"HEADRACE_ADDR", "HEADRACE_API_KEY"} {
				env.Setenv(v, "")
			}
			env.Setenv("HEADRACE_TENANT", "default")
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"server":   server,
			"exits":    exits,
			"field":    field,
			"setvar":   setvar,
			"until":    until,
			"oddtree":  oddTree,
			"postgres": func(ts *testscript.TestScript, _ bool, _ []string) { postgres(ts) },
		},
	})
}

// postgres: starts a Postgres and sets PG to the URL of a database on it.
func postgres(ts *testscript.TestScript) {
	pg, err := pgtest.New()
	ts.Check(err)
	ts.Defer(pg.Close)
	ts.Setenv("PG", pg.DSN("postgres"))
}

// server [DIR | FILE.yaml]: starts a server on a free port and sets HEADRACE_ADDR and PID. It is stopped at the end, in
// order; one of a file is killed, if it still runs.
func server(ts *testscript.TestScript, neg bool, args []string) {
	exe, err := exec.LookPath("headrace")
	ts.Check(err)
	dir := "data"
	if len(args) > 0 {
		dir = args[0]
	}
	cfg := devserver.Config{Exe: exe, Data: ts.MkAbs(dir)}
	if strings.HasSuffix(dir, ".yaml") {
		cfg.File = cfg.Data
	}
	s, err := devserver.Start(context.Background(), cfg)
	ts.Check(err)
	ts.Setenv("PID", strconv.Itoa(s.PID))
	ts.Setenv("HEADRACE_ADDR", s.GRPC)
	ts.Setenv("HTTP", s.HTTP)
	ts.Defer(func() {
		if cfg.File != "" {
			s.Kill()
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			ts.Fatalf("%v", err)
		}
	})
}

// exits CODE COMMAND…: runs a command that must end with that code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// until TEXT COMMAND…: runs a command again and again until its output has the text, for a minute at most.
func until(ts *testscript.TestScript, neg bool, args []string) {
	tick, late := time.NewTicker(20*time.Millisecond), time.After(time.Minute)
	defer tick.Stop()
	for {
		if err := ts.Exec(args[1], args[2:]...); err == nil && strings.Contains(ts.ReadFile("stdout"), args[0]) {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			ts.Fatalf("no %q within a minute", args[0])
		}
	}
}

// objects returns the JSON objects on stdout, one a line.
func objects(ts *testscript.TestScript) []map[string]any {
	var all []map[string]any
	lines := bufio.NewScanner(strings.NewReader(ts.ReadFile("stdout")))
	for lines.Scan() {
		var o map[string]any
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			ts.Fatalf("%s: %v", lines.Text(), err)
		}
		all = append(all, o)
	}
	return all
}

func lookup(ts *testscript.TestScript, o map[string]any, path string) string {
	var v any = o
	for _, k := range strings.Split(path, ".") {
		m, ok := v.(map[string]any)
		if !ok {
			ts.Fatalf("no %s in %v", path, o)
		}
		if v, ok = m[k]; !ok {
			ts.Fatalf("no %s in %v", path, o)
		}
	}
	if f, ok := v.(float64); ok {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return fmt.Sprint(v)
}

// field PATH VALUE…: the objects on stdout have these values, one each; ">0" matches numbers above 0.
func field(ts *testscript.TestScript, neg bool, args []string) {
	all := objects(ts)
	if len(all) != len(args)-1 {
		ts.Fatalf("%d objects, want %d", len(all), len(args)-1)
	}
	for i, o := range all {
		got := strings.ReplaceAll(lookup(ts, o, args[0]), "\n", `\n`) // a script has no new-lines in words
		if args[i+1] == ">0" {
			if f, err := strconv.ParseFloat(got, 64); err != nil || f <= 0 {
				ts.Fatalf("object %d: %s is %s, want more than 0", i, args[0], got)
			}
		} else if got != args[i+1] {
			ts.Fatalf("object %d: %s is %q, want %q", i, args[0], got, args[i+1])
		}
	}
}

// setvar NAME PATH: sets a variable to a field of the only object on stdout.
func setvar(ts *testscript.TestScript, neg bool, args []string) {
	all := objects(ts)
	if len(all) != 1 {
		ts.Fatalf("%d objects, want one", len(all))
	}
	ts.Setenv(args[0], lookup(ts, all[0], args[1]))
}

// oddtree DIR: makes files with names and contents that are hard, and sets DIGEST and FILES. The digest
// is computed by other means than the demo's: whole lines by sorted names.
func oddTree(ts *testscript.TestScript, neg bool, args []string) {
	root := ts.MkAbs(args[0])
	contents := map[string]string{"new\nline": "x", "\xff\xfe": "bytes\n", "tab\t": "1", "back\\slash": "2", "sub.txt": "3", "empty": ""}
	for i := range 400 {
		contents[fmt.Sprintf("sub/%d/näh-%d", i%7, i)] = strings.Repeat(fmt.Sprintln(i), i)
	}
	var names []string
	for name, content := range contents {
		names = append(names, name)
		path := filepath.Join(root, name)
		ts.Check(os.MkdirAll(filepath.Dir(path), 0o755))
		ts.Check(os.WriteFile(path, []byte(content), 0o644))
	}
	ts.Check(os.Symlink("empty", filepath.Join(root, "link")))
	slices.Sort(names)
	h := sha256.New()
	for _, name := range names {
		fmt.Fprintf(h, "%x  %s\n", sha256.Sum256([]byte(contents[name])), name)
	}
	ts.Setenv("DIGEST", fmt.Sprintf("%x", h.Sum(nil)))
	ts.Setenv("FILES", strconv.Itoa(len(names)))
}
