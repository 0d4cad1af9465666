package demo

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"unicode/utf8"
)

// A Path is a file's name in bytes. In JSON it is a string, or {"base64": …} where it is no UTF-8: file
// names may hold any byte but NUL.
type Path string

type base64Path struct {
	Base64 []byte `json:"base64"`
}

// MarshalJSON implements json.Marshaler.
func (p Path) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(p)) {
		return json.Marshal(string(p))
	}
	return json.Marshal(base64Path{[]byte(p)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *Path) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var v base64Path
		err := json.Unmarshal(b, &v)
		*p = Path(v.Base64)
		return err
	}
	var s string
	err := json.Unmarshal(b, &s)
	*p = Path(s)
	return err
}

// Sum is what checksum finds out about a file.
type Sum struct {
	SHA256 string `json:"sha256"` // hex
	Bytes  int64  `json:"bytes"`
	Lines  int64  `json:"lines"` // new-line characters, as wc -l counts
}

var newline = []byte{'\n'}

// sumFile reads a file. It stops early, with ctx's cause, when ctx ends.
func sumFile(ctx context.Context, name string) (Sum, error) {
	f, err := os.Open(name)
	if err != nil {
		return Sum{}, err
	}
	defer f.Close()
	h, sum := sha256.New(), Sum{}
	buf := make([]byte, 64<<10)
	for ctx.Err() == nil {
		n, err := f.Read(buf)
		h.Write(buf[:n])
		sum.Bytes += int64(n)
		sum.Lines += int64(bytes.Count(buf[:n], newline))
		if errors.Is(err, io.EOF) {
			sum.SHA256 = hex.EncodeToString(h.Sum(nil))
			return sum, nil
		}
		if err != nil {
			return Sum{}, fmt.Errorf("read %s: %w", name, err)
		}
	}
	return Sum{}, context.Cause(ctx)
}

// listFiles returns the regular files under root that can be read, relative to it, and how many could
// not. Symbolic links are not followed, except root itself. Without is a directory to leave out, or "".
func listFiles(root, without string) (files []Path, unreadable int, err error) {
	info, err := os.Stat(root)
	if err != nil {
		return nil, 0, err
	}
	if !info.IsDir() {
		return nil, 0, fmt.Errorf("%s is not a directory", root)
	}
	out, _ := os.Stat(without)
	if root, err = filepath.Abs(root); err != nil {
		return nil, 0, err
	}
	top := root + "/" // enters a root that is a symbolic link
	err = filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && name == top:
			return err
		case err != nil:
			unreadable++
			return nil
		case d.IsDir() && out != nil:
			if here, err := d.Info(); err == nil && os.SameFile(here, out) {
				return fs.SkipDir
			}
			return nil
		case !d.Type().IsRegular():
			return nil
		}
		f, err := os.Open(name)
		if err != nil {
			unreadable++
			return nil
		}
		f.Close()
		files = append(files, Path(strings.TrimPrefix(strings.TrimPrefix(name, root), "/")))
		return nil
	})
	return files, unreadable, err
}

// DefaultDir returns Go's own source tree: some 11,000 real files that most who read this have.
func DefaultDir() (string, error) {
	//lint:ignore SA1019 the second is for machines without the go command
	for _, root := range []string{goEnv(), runtime.GOROOT()} {
		dir := filepath.Join(root, "src")
		if info, err := os.Stat(dir); root != "" && err == nil && info.IsDir() {
			return dir, nil
		}
	}
	return "", errors.New("the source tree of Go is not on this machine: name a directory with --dir")
}

func goEnv() string {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return ""
	}
	return strings.TrimRight(string(out), "\r\n")
}
