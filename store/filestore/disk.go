package filestore

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"
)

// disk is the file system as the engine sees it. It makes the end of every file worthless, so that a
// crash, a cut or a scribble there takes nothing that was answered:
//
//   - Files that grow (the engine's log and its manifest) grow ahead of what is written, in steps, by
//     zeros, which the engine's reader takes for the end.
//   - Files that are written once (tables, options) get a pad behind their end, which the engine does
//     not see. The pad starts with the file's size, so that it is found from what is left of it.
type disk struct {
	vfs.FS
	logStep int64             // bytes by which logs grow
	note    func(what string) // told about ends that are not as they were left
}

const (
	padSize       = 64 << 10
	padHeaderSize = 28
	padMagic      = "headrace: end\r\n\x00"
	manifestStep  = 256 << 10
)

func grows(name string) bool {
	base := filepath.Base(name)
	return strings.HasSuffix(base, ".log") || strings.HasPrefix(base, "MANIFEST-")
}

func padded(name string) bool {
	base := filepath.Base(name)
	return strings.HasSuffix(base, ".sst") || strings.HasSuffix(base, ".dbtmp") || strings.HasPrefix(base, "OPTIONS-")
}

// Create implements vfs.FS.
func (d *disk) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.Create(name, category)
	if err != nil {
		return nil, err
	}
	switch {
	case grows(name):
		step := d.logStep
		if !strings.HasSuffix(name, ".log") {
			step = min(manifestStep, step)
		}
		return &growing{File: f, step: step}, nil
	case padded(name):
		return &padding{File: f}, nil
	}
	return f, nil
}

// ReuseForWrite implements vfs.FS. A log is not written over an older one: what is behind its end
// would not be zeros.
func (d *disk) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := d.FS.Remove(oldname); err != nil {
		return nil, err
	}
	return d.Create(newname, category)
}

// Open implements vfs.FS.
func (d *disk) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.FS.Open(name, opts...)
	if err != nil || !padded(name) {
		return f, err
	}
	size, err := d.sizeOf(f, name)
	if err != nil {
		f.Close()
		return nil, err
	}
	return &unpadded{File: f, size: size}, nil
}

// Stat implements vfs.FS.
func (d *disk) Stat(name string) (vfs.FileInfo, error) {
	info, err := d.FS.Stat(name)
	if err != nil || !padded(name) {
		return info, err
	}
	f, err := d.FS.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := d.sizeOf(f, name)
	if err != nil {
		return nil, err
	}
	return sized{info, size}, nil
}

// sizeOf finds where the pad of a file starts. Without a pad it is the file's end.
func (d *disk) sizeOf(f vfs.File, name string) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	end := info.Size()
	from := max(end-padSize, 0)
	tail := make([]byte, end-from)
	n := min(padHeaderSize, len(tail))
	if _, err := f.ReadAt(tail[:n], from); err != nil && err != io.EOF {
		return 0, err
	}
	if isPad(tail[:n], from) {
		return from, nil
	}
	// The pad was cut: its start is further back from what is the end now.
	if _, err := f.ReadAt(tail, from); err != nil && err != io.EOF {
		return 0, err
	}
	for i := range tail {
		if isPad(tail[i:], from+int64(i)) {
			d.note(filepath.Base(name) + " ends early; only padding is missing")
			return from + int64(i), nil
		}
	}
	return end, nil
}

// isPad reports whether b is the start of a pad at an offset of its file.
func isPad(b []byte, offset int64) bool {
	return len(b) >= padHeaderSize && string(b[:len(padMagic)]) == padMagic && string(b[:padHeaderSize]) == string(padHeader(offset))
}

func padHeader(offset int64) []byte {
	b := binary.BigEndian.AppendUint64([]byte(padMagic), uint64(offset))
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

// growing is a log or a manifest that is written.
type growing struct {
	vfs.File
	step          int64
	written, size int64
	full          bool // the last try to grow met a full disk
}

// Preallocate implements vfs.File: growing does it, and better.
func (f *growing) Preallocate(int64, int64) error { return nil }

// Write implements vfs.File.
func (f *growing) Write(p []byte) (int, error) {
	if need := f.written + int64(len(p)) + f.step/4; need > f.size {
		size := (need + f.step - 1) / f.step * f.step
		err := extend(int(f.Fd()), f.size, size)
		switch {
		case err == nil:
			f.size, f.full = size, false
		case errors.Is(err, unix.ENOSPC) && f.full: // again: it has to do without
		case errors.Is(err, unix.ENOSPC):
			f.full = true
			return 0, err // what wraps this makes room and comes back
		default:
			return 0, err
		}
	}
	n, err := f.File.Write(p)
	f.written += int64(n)
	return n, err
}

// extend makes a file longer, by zeros that have their place on the disk.
func extend(fd int, from, to int64) error {
	err := fallocate(fd, from, to-from)
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, unix.EOPNOTSUPP) {
		return unix.Ftruncate(fd, to)
	}
	return err
}

// padding is a table or an options file that is written.
type padding struct {
	vfs.File
	written int64
	done    bool
}

// Write implements vfs.File.
func (f *padding) Write(p []byte) (int, error) {
	if f.done { // behind the pad: take it away again
		if err := unix.Ftruncate(int(f.Fd()), f.written); err != nil {
			return 0, err
		}
		f.done = false
	}
	n, err := f.File.Write(p)
	f.written += int64(n)
	return n, err
}

// pad writes the pad, without moving the place of the next write.
func (f *padding) pad() error {
	if f.done {
		return nil
	}
	if err := extend(int(f.Fd()), f.written, f.written+padSize); err != nil {
		return err
	}
	if _, err := unix.Pwrite(int(f.Fd()), padHeader(f.written), f.written); err != nil {
		return err
	}
	f.done = true
	return nil
}

// Sync implements vfs.File.
func (f *padding) Sync() error { return errors.Join(f.pad(), f.File.Sync()) }

// SyncData implements vfs.File.
func (f *padding) SyncData() error { return errors.Join(f.pad(), f.File.SyncData()) }

// Close implements vfs.File.
func (f *padding) Close() error { return errors.Join(f.pad(), f.File.Close()) }

// Stat implements vfs.File.
func (f *padding) Stat() (vfs.FileInfo, error) {
	info, err := f.File.Stat()
	if err != nil {
		return nil, err
	}
	return sized{info, f.written}, nil
}

// unpadded is a padded file that is read.
type unpadded struct {
	vfs.File
	size, at int64
}

// Read implements vfs.File.
func (f *unpadded) Read(p []byte) (int, error) {
	if f.at >= f.size {
		return 0, io.EOF
	}
	n, err := f.File.Read(p[:min(int64(len(p)), f.size-f.at)])
	f.at += int64(n)
	return n, err
}

// ReadAt implements vfs.File.
func (f *unpadded) ReadAt(p []byte, off int64) (int, error) {
	if off >= f.size {
		return 0, io.EOF
	}
	if rest := f.size - off; int64(len(p)) > rest {
		n, err := f.File.ReadAt(p[:rest], off)
		if err == nil {
			err = io.EOF
		}
		return n, err
	}
	return f.File.ReadAt(p, off)
}

// Stat implements vfs.File.
func (f *unpadded) Stat() (vfs.FileInfo, error) {
	info, err := f.File.Stat()
	if err != nil {
		return nil, err
	}
	return sized{info, f.size}, nil
}

type sized struct {
	vfs.FileInfo
	size int64
}

func (s sized) Size() int64 { return s.size }

var _ os.FileInfo = sized{}
