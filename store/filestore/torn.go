package filestore

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/record"
)

// inspect looks at the ends of the newest logs and manifest before the engine reads them, and notes
// what it will leave out. Two logs, because the one before the last may just have been closed. Only what lies behind the last complete commit can be that: the engine
// refuses to open if something before it is damaged.
func (d *disk) inspect(dir string) error {
	for _, kind := range []string{"*.log", "MANIFEST-*"} {
		names, err := filepath.Glob(filepath.Join(dir, kind))
		if err != nil {
			return err
		}
		slices.SortFunc(names, byNumber)
		for _, name := range names[max(len(names)-2, 0):] {
			if err := d.inspectEnd(name); err != nil {
				return err
			}
		}
	}
	return d.inspectPads(dir)
}

// inspectPads looks for noise in the pads of the files that were written last: tables are many, and
// what damages the end of an old one has nothing to do with the last end of the process.
func (d *disk) inspectPads(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	var newest string
	var at time.Time
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return err
		}
		if padded(e.Name()) && info.ModTime().After(at) {
			newest, at = e.Name(), info.ModTime()
		}
	}
	if newest == "" {
		return nil
	}
	f, err := d.FS.Open(filepath.Join(dir, newest))
	if err != nil {
		return err
	}
	defer f.Close()
	size, err := d.sizeOf(f, newest)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if size == info.Size() && strings.HasSuffix(newest, ".sst") {
		// The process ended while it wrote this table, so that nothing refers to it yet and the engine removes it. Were
		// it cut by more than its pad, the engine would find it shorter than the manifest says and refuse to open.
		d.note(newest + " was never finished; what it was to hold is in the logs or in older tables")
		return nil
	}
	if info.Size() <= size+padHeaderSize {
		return nil
	}
	first, last, err := nonZero(f, size+padHeaderSize, info.Size())
	if err == nil && last > first {
		d.note(fmt.Sprintf("dropped %d bytes of noise in the padding at the end of %s (offset %d); nothing was stored there",
			last-first, newest, first))
	}
	return err
}

// logBlock is the unit of the engine's logs.
const logBlock = 32 << 10

// byNumber orders the engine's files by the number in their names.
func byNumber(a, b string) int { return int(number(a)) - int(number(b)) }

func number(name string) uint64 {
	digits := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(name), "MANIFEST-"), ".log")
	n, _ := strconv.ParseUint(digits, 10, 64)
	return n
}

func (d *disk) inspectEnd(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	var logNum uint64
	step := int64(manifestStep)
	if strings.HasSuffix(path, ".log") {
		logNum, step = number(path), d.logStep
	}
	r := recordReader(record.NewReader, f, logNum)
	end := int64(0) // of the last whole record
	for {
		var rec io.Reader
		if rec, err = r.Next(); err == nil {
			_, err = io.Copy(io.Discard, rec)
		}
		if err != nil {
			break
		}
		end = r.Offset()
	}
	if errors.Is(err, io.EOF) { // closed by its writer, which put an end mark into this block or the next
		end = (end/logBlock + 2) * logBlock
	}
	first, last, err := nonZero(f, end, info.Size())
	if err != nil {
		return err
	}
	switch name := filepath.Base(path); {
	case last > first:
		d.note(fmt.Sprintf("dropped %d bytes of an unfinished commit at the end of %s (offset %d); nothing in it had been answered OK",
			last-first, name, first))
	case info.Size()%min(step, manifestStep/4) != 0:
		d.note(name + " ends early; nothing had been written there")
	}
	return nil
}

// recordReader names the type of a log's number, which the engine keeps to itself.
func recordReader[N ~uint64](open func(io.Reader, N) *record.Reader, r io.Reader, n uint64) *record.Reader {
	return open(r, N(n))
}

// nonZero returns where the bytes of f from an offset to its size start and end to be other than zero.
func nonZero(f io.ReaderAt, from, size int64) (first, last int64, err error) {
	buf := make([]byte, 64<<10)
	for at := from; at < size; at += int64(len(buf)) {
		n, err := f.ReadAt(buf, at)
		if err != nil && err != io.EOF {
			return 0, 0, err
		}
		for i, b := range buf[:n] {
			if b != 0 {
				if last == 0 {
					first = at + int64(i)
				}
				last = at + int64(i) + 1
			}
		}
	}
	return first, last, nil
}
