package e2e

import (
	"crypto/rand"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/ledger"
)

// The server is killed under load and the last kilobytes of the newest file of its data directory are cut
// off or scribbled over. It starts all the same, and everything that was answered OK is there.
func TestTornLastWrite(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, file string, size int64){
		"cut off": func(t *testing.T, file string, size int64) {
			if err := os.Truncate(file, max(0, size-4096)); err != nil {
				t.Fatal(err)
			}
		},
		"scribbled over": func(t *testing.T, file string, size int64) {
			f, err := os.OpenFile(file, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			junk := make([]byte, min(size, 4096))
			_, _ = rand.Read(junk)
			if _, err := f.WriteAt(junk, size-int64(len(junk))); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			s.start()
			c := ledger.Dial(t, s.listen, "acme")
			answered := make(chan string, 100_000)
			ctx := ledger.Within(t, time.Minute)
			for i := range 8 {
				go func() { // until the server is gone
					for j := 0; ; j++ {
						outs, err := c.SubmitBatch(ctx, []client.Task{
							{Function: "nobody", Payload: fmt.Appendf(nil, "%d/%d", i, j)},
							{Function: "nobody", Payload: make([]byte, 3000)},
						})
						if err != nil {
							return
						}
						for _, o := range outs {
							if o.Err == nil {
								select {
								case answered <- o.ID:
								default:
									return
								}
							}
						}
					}
				}()
			}
			ledger.Eventually(t, 20*time.Second, "1,000 submits are answered", func() bool { return len(answered) > 1000 })
			s.kill()
			ids := map[string]bool{}
			for len(answered) > 0 {
				ids[<-answered] = true
			}
			file, size := newest(t, s.data)
			damage(t, file, size)
			s.start()
			t.Logf("%d submits answered before the kill; damaged %s (%d bytes); the server says:\n%s", len(ids), filepath.Base(file), size, s.log)
			for info, err := range ledger.Dial(t, s.listen, "acme").ListAll(ledger.Within(t, time.Minute), client.ListOptions{PageSize: 1000}) {
				if err != nil {
					t.Fatal(err)
				}
				delete(ids, info.ID)
			}
			if len(ids) > 0 {
				t.Errorf("%d tasks that were answered OK are gone", len(ids))
			}
		})
	}
}

// newest returns the file below dir that was written last.
func newest(t *testing.T, dir string) (file string, size int64) {
	t.Helper()
	var at time.Time
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Size() > 0 && info.ModTime().After(at) {
			file, size, at = path, info.Size(), info.ModTime()
		}
		return err
	})
	if err != nil || file == "" {
		t.Fatalf("newest file in %s: %q, %v", dir, file, err)
	}
	return file, size
}
