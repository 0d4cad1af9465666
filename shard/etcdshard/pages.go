package etcdshard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// checkLock returns ErrLocked if another server has the directory's file open, another error if the file
// can't be opened, nil if it can or is not there.
func checkLock(dir string) error {
	file := filepath.Join(dir, "member", "snap", "db")
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	// Read-only, it reads nothing but the two meta pages.
	db, err := bolt.Open(file, 0o600, &bolt.Options{ReadOnly: true, Timeout: 50 * time.Millisecond})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return ErrLocked
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", file, err)
	}
	return db.Close()
}

// The parts of bbolt's file format that the walk needs. All numbers are in the byte order of the machine, which
// is little-endian wherever we run.
const (
	metaFlag, freelistFlag, branchFlag, leafFlag = 0x04, 0x10, 0x01, 0x02

	magic         = 0xED0CDAED
	headerBytes   = 16 // id u64, flags u16, count u16, overflow u32
	elementBytes  = 16 // branch: pos u32, ksize u32, child u64; leaf: flags u32, pos u32, ksize u32, vsize u32
	bucketBytes   = 16 // root u64, sequence u64
	metaBytes     = 64 // magic, version, page size, flags u32; root bucket; freelist, page count, txid, checksum u64
	isBucket      = 1
	noFreelist    = 1<<64 - 1
	bucketDepth   = 8 // etcd nests none
	pageSizeLimit = 1 << 16
)

// checkPages walks bbolt's file: every page that can be reached is where it says, holds sorted keys inside
// its bounds, and is reached once. bbolt itself reads through mmap and trusts what it finds. A file that is
// not there is fine. What is in use is read into memory: etcd's quota bounds it.
func checkPages(file string) (err error) {
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	defer func() {
		// A number that points outside the file: the walk checks bounds where it decides something, and lets
		// the slices check the rest.
		if p := recover(); p != nil {
			err = fmt.Errorf("pages of %s: %v", file, p)
		}
	}()
	w := &walk{seen: map[uint64]bool{}}
	if err := w.run(f, uint64(info.Size())); err != nil {
		return fmt.Errorf("pages of %s: %w", file, err)
	}
	return nil
}

type walk struct {
	data     []byte
	pageSize uint64
	pages    uint64          // in use: higher numbers are free space at the end
	seen     map[uint64]bool // reached or free
}

func (w *walk) run(f io.ReaderAt, size uint64) error {
	w.data = make([]byte, min(size, 2*pageSizeLimit)) // enough for both meta pages
	if _, err := f.ReadAt(w.data, 0); err != nil {
		return err
	}
	meta, err := w.meta()
	if err != nil {
		return err
	}
	if w.pages > size/w.pageSize {
		return fmt.Errorf("%d pages of %d bytes in a file of %d", w.pages, w.pageSize, size)
	}
	// The rest of the file, mostly, is space that bbolt took ahead.
	w.data = make([]byte, w.pages*w.pageSize)
	if _, err := f.ReadAt(w.data, 0); err != nil {
		return err
	}
	root, freelist := u64(meta[16:]), u64(meta[32:])
	w.seen[0], w.seen[1] = true, true
	if freelist != noFreelist {
		if err := w.freelist(freelist); err != nil {
			return err
		}
	}
	return w.tree(root, nil, nil, 0)
}

// meta returns the newer valid one of the two meta pages, as bbolt does.
func (w *walk) meta() ([]byte, error) {
	var best []byte
	for _, size := range []uint64{4096, 8192, 16384, 32768, pageSizeLimit} { // the second is one page behind the first
		for _, at := range []uint64{0, size} {
			if uint64(len(w.data)) < at+headerBytes+metaBytes {
				continue
			}
			m := w.data[at+headerBytes : at+headerBytes+metaBytes]
			sum := fnv.New64a()
			sum.Write(m[:metaBytes-8])
			if u32(m) == magic && u64(m[56:]) == sum.Sum64() && (best == nil || u64(m[48:]) > u64(best[48:])) {
				best = m
			}
		}
	}
	if best == nil {
		return nil, errors.New("both meta pages are bad")
	}
	w.pageSize, w.pages = uint64(u32(best[8:])), u64(best[40:])
	if w.pageSize < 1024 || w.pageSize > pageSizeLimit {
		return nil, fmt.Errorf("pages of %d bytes", w.pageSize)
	}
	return best, nil
}

// page takes a page with its overflow, which must not have been reached before.
func (w *walk) page(id uint64) (flags uint16, count int, body []byte, err error) {
	if id < 2 || id >= w.pages {
		return 0, 0, nil, fmt.Errorf("page %d of %d", id, w.pages)
	}
	p := w.data[id*w.pageSize:]
	overflow := uint64(u32(p[12:]))
	if u64(p) != id || overflow >= w.pages-id {
		return 0, 0, nil, fmt.Errorf("page %d says it is %d with %d more", id, u64(p), overflow)
	}
	for i := id; i <= id+overflow; i++ {
		if w.seen[i] {
			return 0, 0, nil, fmt.Errorf("page %d is used twice", i)
		}
		w.seen[i] = true
	}
	return u16(p[8:]), int(u16(p[10:])), p[:(overflow+1)*w.pageSize], nil
}

func (w *walk) freelist(id uint64) error {
	flags, count, p, err := w.page(id)
	if err != nil {
		return err
	}
	if flags != freelistFlag {
		return fmt.Errorf("page %d is no freelist", id)
	}
	at := uint64(headerBytes)
	n := uint64(count)
	if n == 0xFFFF { // too many for the count: it is the first element
		n = u64(p[at:])
		at += 8
	}
	if n > (uint64(len(p))-at)/8 {
		return fmt.Errorf("freelist of %d pages", n)
	}
	for i := range n {
		free := u64(p[at+8*i:])
		if free < 2 || free >= w.pages || w.seen[free] {
			return fmt.Errorf("free page %d is none", free)
		}
		w.seen[free] = true
	}
	return nil
}

// tree walks a bucket's pages; its keys lie in [low, high), where nil is no bound.
func (w *walk) tree(id uint64, low, high []byte, depth int) error {
	flags, count, p, err := w.page(id)
	if err != nil {
		return err
	}
	return w.elements(flags, count, p, low, high, depth)
}

func (w *walk) elements(flags uint16, count int, p, low, high []byte, depth int) error {
	if flags != branchFlag && flags != leafFlag {
		return fmt.Errorf("page with flags %#x in a tree", flags)
	}
	if flags == branchFlag && count == 0 || headerBytes+count*elementBytes > len(p) {
		return fmt.Errorf("page with %d elements in %d bytes", count, len(p))
	}
	type child struct {
		id  uint64
		key []byte
	}
	var children []child
	last := low
	for i := range count {
		at := uint64(headerBytes + i*elementBytes)
		e := p[at : at+elementBytes]
		var key, value []byte
		var elementFlags uint32
		if flags == branchFlag {
			from := at + uint64(u32(e))
			key = p[from : from+uint64(u32(e[4:]))]
			children = append(children, child{u64(e[8:]), key})
		} else {
			elementFlags = u32(e)
			from := at + uint64(u32(e[4:]))
			mid := from + uint64(u32(e[8:]))
			key, value = p[from:mid], p[mid:mid+uint64(u32(e[12:]))]
		}
		// The first key of a branch may be below what was deleted from under it; it still is not below low.
		if len(key) == 0 || last != nil && bytes.Compare(key, last) < 0 || i > 0 && bytes.Equal(key, last) || high != nil && bytes.Compare(key, high) >= 0 {
			return fmt.Errorf("key %x is out of order", key)
		}
		last = key
		if elementFlags&isBucket != 0 {
			if err := w.bucket(value, depth+1); err != nil {
				return err
			}
		}
	}
	for i, c := range children {
		next := high
		if i+1 < len(children) {
			next = children[i+1].key
		}
		if err := w.tree(c.id, c.key, next, depth); err != nil {
			return err
		}
	}
	return nil
}

// bucket follows a bucket's root, which for a small one is in the value itself.
func (w *walk) bucket(value []byte, depth int) error {
	if depth > bucketDepth || len(value) < bucketBytes {
		return fmt.Errorf("bucket of %d bytes at depth %d", len(value), depth)
	}
	if root := u64(value); root != 0 {
		return w.tree(root, nil, nil, depth)
	}
	p := value[bucketBytes:]
	if len(p) < headerBytes {
		return fmt.Errorf("inline bucket of %d bytes", len(p))
	}
	return w.elements(u16(p[8:]), int(u16(p[10:])), p, nil, nil, depth)
}

func u16(b []byte) uint16 { return binary.LittleEndian.Uint16(b) }
func u32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
func u64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
