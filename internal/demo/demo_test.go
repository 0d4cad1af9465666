package demo

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// oddTree makes a tree with what trees can hold, and returns it with the digest, computed by other means.
func oddTree(t *testing.T) (root, digest string, regular []string) {
	t.Helper()
	root = t.TempDir()
	files := map[string]string{
		"plain.txt":          "hello\n",
		"empty":              "",
		"no end":             "a\nb",
		"new\nline":          "x",
		"\xff\xfe bytes":     strings.Repeat("\x00\n", 100_000),
		"sub/-dash":          "1",
		"sub/ü/deep/näh":     "2",
		"sub.txt":            "sorts before sub/ bytewise: '.' is less than '/'",
		"back\\slash":        "3",
		".hidden/..data/...": "4",
		"\u2028":             "5",
	}
	for name, content := range files {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"link": "plain.txt", "dirlink": "sub", "dangling": "nowhere"} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	var lines []string // by sorting whole paths, not by walking
	for name, content := range files {
		regular = append(regular, name)
		lines = append(lines, name+"\x00"+fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte(content)), name))
	}
	slices.Sort(lines)
	slices.Sort(regular)
	h := sha256.New()
	for _, l := range lines {
		_, line, _ := strings.Cut(l, "\x00")
		h.Write([]byte(line))
	}
	return root, hex.EncodeToString(h.Sum(nil)), regular
}

func TestListFiles(t *testing.T) {
	root, _, want := oddTree(t)
	check := func(dir, without string, want []string) {
		t.Helper()
		got, unreadable, err := listFiles(dir, without)
		var names []string
		for _, p := range got {
			names = append(names, string(p))
		}
		slices.Sort(names)
		if err != nil || unreadable != 0 || !slices.Equal(names, want) {
			t.Errorf("%q, %d unreadable, %v; want %q", names, unreadable, err, want)
		}
	}
	check(root, "", want)
	check(root+"/", "", want)
	link := filepath.Join(t.TempDir(), "root")
	if err := os.Symlink(root, link); err != nil {
		t.Fatal(err)
	}
	check(link, "", want)
	var some []string
	for _, name := range want {
		if !strings.HasPrefix(name, "sub/") {
			some = append(some, name)
		}
	}
	check(root, filepath.Join(root, "sub"), some)
	for _, dir := range []string{filepath.Join(root, "plain.txt"), filepath.Join(root, "nowhere")} {
		if _, _, err := listFiles(dir, ""); err == nil {
			t.Errorf("%s was listed", dir)
		}
	}
	t.Chdir(root)
	check(".", "", want)
}

// Any name survives the way through a payload.
func TestPathInJSON(t *testing.T) {
	for _, p := range []Path{"", "plain", "new\nline", "\xff\xfe", "ü\u2028", "{", `{"base64":"AA=="}`, "a\ufffdb"} {
		b, err := json.Marshal(File{Root: "/r", Path: p})
		if err != nil {
			t.Fatal(err)
		}
		var f File
		if err := json.Unmarshal(b, &f); err != nil || f.Path != p || f.Root != "/r" {
			t.Errorf("%q became %s and %q, %v", p, b, f.Path, err)
		}
	}
}

func TestSumAndDigest(t *testing.T) {
	root, digest, names := oddTree(t)
	s, err := startIndex()
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	for range 2 { // a task that runs twice posts twice
		for _, name := range names {
			sum, err := sumFile(t.Context(), filepath.Join(root, name))
			if err != nil {
				t.Fatal(err)
			}
			content, _ := os.ReadFile(filepath.Join(root, name))
			if sum.Bytes != int64(len(content)) || sum.Lines != int64(bytes.Count(content, []byte("\n"))) {
				t.Errorf("%q: %+v", name, sum)
			}
			if err := postEntry(t.Context(), http.DefaultClient, s.url, Entry{Path(name), sum}); err != nil {
				t.Fatalf("%q: %v", name, err)
			}
		}
	}
	files, _, got := s.totals()
	if files != int64(len(names)) || got != digest {
		t.Errorf("%d files, digest %s; want %d, %s", files, got, len(names), digest)
	}
	if _, err := sumFile(t.Context(), filepath.Join(root, "nowhere")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// Above eight requests at once the service says 429 and when to come back, and forgets nothing.
func TestIndexIsFullAtEight(t *testing.T) {
	s, err := startIndex()
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	for range indexAtOnce {
		s.atOnce <- struct{}{} // requests that are under way
	}
	res, err := http.Post(s.url, "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusTooManyRequests || res.Header.Get("Retry-After") != "1" {
		t.Errorf("%s, Retry-After %q", res.Status, res.Header.Get("Retry-After"))
	}
	if err := postEntry(t.Context(), http.DefaultClient, s.url, Entry{Path: "p"}); !errors.Is(err, errTooMany) {
		t.Errorf("post: %v", err)
	}
	for range indexAtOnce {
		<-s.atOnce
	}
	var wg sync.WaitGroup
	for i := range indexAtOnce {
		wg.Go(func() {
			if err := postEntry(t.Context(), http.DefaultClient, s.url, Entry{Path: Path(fmt.Sprint(i))}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if s.count() != indexAtOnce {
		t.Errorf("%d entries", s.count())
	}
	if err := postEntry(t.Context(), http.DefaultClient, s.url, Entry{Path: Path(strings.Repeat("x", indexMaxBody))}); err == nil {
		t.Error("a body without bound was read")
	}
}

func TestDefaultDir(t *testing.T) {
	dir, err := DefaultDir()
	if err != nil {
		t.Skip(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "fmt", "print.go")); err != nil {
		t.Error(err)
	}
	t.Setenv("PATH", "")
	t.Setenv("GOROOT", filepath.Dir(dir))
	if again, err := DefaultDir(); err != nil || again != dir {
		t.Errorf("without the go command: %s, %v", again, err)
	}
}

// Whatever is missing counts as lost.
func TestReportOK(t *testing.T) {
	good := Report{Files: 2, FilesFound: 2, Submitted: 5, Succeeded: 5}
	if !good.OK() {
		t.Error("a complete tour is not OK")
	}
	for name, spoil := range map[string]func(*Report){
		"a file that never reached the index": func(r *Report) { r.Files = 1 },
		"a task that did not succeed":         func(r *Report) { r.Succeeded, r.Failed = 4, 1 },
		"a submit that was refused":           func(r *Report) { r.Errors = []string{"x"} },
	} {
		r := good
		spoil(&r)
		if r.OK() {
			t.Errorf("%s is OK", name)
		}
	}
}
