package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// sample is a run of two rounds in which Headrace misses some bars and reaches others.
func sample() *results {
	r := newResults(sizes{rounds: 2, seconds: time.Second, backlog: 1000}, "make bench-peers ARGS=\"\"")
	at := func(round int, system, load string, rate, cpu, wal, p50 float64) {
		s := &spread{p50, p50 * 2, p50 * 3, p50 * 4}
		r.add(&measure{System: system, Load: load, Round: round, TasksPerS: rate, SubmitPerS: rate, CPUMicros: cpu, WALBytes: wal, Submit: s, Start: s})
	}
	for round, slow := range []float64{1, 2} { // the second round is half as fast for all: the ratios stay
		at(round, "headrace_postgres", cycle, 70_000/slow, 20, 500, 1)
		at(round, "headrace_embedded", cycle, 140_000/slow, 10, 900, 1)
		at(round, "river", cycle, 10_000/slow, 80, 3600, 1)
		at(round, "asynq_everysec", cycle, 10_000/slow, 80, 1300, 1)
		at(round, "headrace_postgres", single, 30_000/slow, 20, 500, 1)
		at(round, "river", single, 3000/slow, 20, 500, 1)
		at(round, "headrace_postgres", light, 50, 20, 500, 1)
		at(round, "river", lightDefault, 50, 20, 500, 40)
	}
	at(1, "headrace_postgres", none, 60_000, 20, 500, 1)
	at(2, "headrace_postgres", waiting, 56_000, 20, 500, 1)
	at(3, "headrace_postgres", none, 80_000, 20, 500, 1)
	r.conclude()
	return r
}

// Each bar is judged by ratios within a round, and what falls short is said by how much.
func TestBars(t *testing.T) {
	var got []string
	for _, b := range sample().Bars {
		got = append(got, b.figure()+" "+b.limit()+" "+b.verdict())
	}
	want := []string{
		"7.00 × ≥ 6 × reached", "7.00 × ≥ 8 × 12 % short", "7.20 × ≥ 5 × reached", "4.00 × ≥ 5 × 20 % short", "2.00 × ≥ 1 × reached",
		"10.00 × ≥ 6 × reached", "1.00 ms ≤ 1.5 ms reached", "3.00 ms ≤ 5 ms reached", "3.00 ms ≤ 40 ms reached", "0.80 × ≥ 0.9 × 11 % short",
		"— — not measured",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// The page keeps what is written by hand, and writing it twice changes nothing.
func TestPage(t *testing.T) {
	dir := t.TempDir()
	page, file := filepath.Join(dir, "page.md"), filepath.Join(dir, "latest.json")
	if err := os.WriteFile(page, []byte("above\n"+beginMark+"\nof last year\n"+endMark+"\nbelow\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := sample().write(file); err != nil {
		t.Fatal(err)
	}
	var texts [2]string
	for i := range texts {
		if err := run(t.Context(), []string{"-render", "-out", file, "-page", page}); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = string(b)
	}
	if texts[0] != texts[1] || strings.Contains(texts[0], "of last year") {
		t.Errorf("first\n%s\nsecond\n%s", texts[0], texts[1])
	}
	for _, want := range []string{"above\n", "\nbelow\n", "| **20 % short**; all processes |", "| Headrace on Postgres | 35,000 | 20.0 µs | 500 B | nothing |",
		"| River | 40.00 ms | 120.00 ms |", "make bench-peers"} {
		if !strings.Contains(texts[0], want) {
			t.Errorf("no %q in\n%s", want, texts[0])
		}
	}
	if err := os.WriteFile(page, []byte("no marks"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := sample().writePage(page); err == nil {
		t.Error("a page without marks was written")
	}
}

// The real thing, for seconds: Headrace and River, on a Postgres of the test's own.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	exe, out := filepath.Join(dir, "headrace"), filepath.Join(dir, "latest.json")
	build := exec.Command("go", "build", "-o", exe, "./cmd/headrace")
	build.Dir = ".."
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if err := run(t.Context(), []string{"-headrace", exe, "-out", out, "-rounds", "1", "-time", "1s", "-backlog", "0", "-only", "headrace_postgres,river"}); err != nil {
		t.Fatal(err)
	}
	r, err := readResults(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*summary{r.HeadracePostgres, r.River} {
		if s == nil || s.TasksPerS <= 0 || s.CPUMicros <= 0 || s.WALBytes <= 0 || s.SubmitPerS <= 0 || s.Start.P50 <= 0 || s.Start.P99 < s.Start.P50 {
			t.Errorf("%+v", s)
		}
	}
	if r.AsynqAlways != nil || r.River.Settings["synchronous_commit"] != "on" || r.HeadracePostgres.Settings["fsync"] != "on" || r.Versions["river"] == "" {
		t.Errorf("%+v", r)
	}
	missing := 0
	for _, b := range r.Bars { // Asynq, the embedded store, the backlog and takeovers were left out
		if !b.Measured {
			missing++
		}
	}
	if missing != 4 {
		t.Errorf("%d bars were not measured: %+v", missing, r.Bars)
	}
}

// An interrupt ends what was started and is an error.
func TestInterrupt(t *testing.T) {
	tmp, err := os.MkdirTemp("", "headrace-bench-test-") // t.TempDir is closed to Postgres' user
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", tmp)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = run(ctx, []string{"-headrace", "/bin/true", "-only", "headrace_postgres", "-time", "1s"})
	left, _ := os.ReadDir(tmp)
	if !errors.Is(err, context.Canceled) || len(left) > 0 {
		t.Errorf("%v; %v are left", err, left)
	}
}
