package filestore

import (
	"encoding/binary"
	"errors"
	"strings"
	"time"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/task"
)

// The key spaces, by their first byte. All numbers are big-endian, so that bytes order as they do;
// texts end with a mark (see appendText), so that no key is the start of another.
//
//	m                                           → format of the directory
//	g                                           → versions of the configuration: seen, copied
//	G key                                       → version and value of a copied key
//	p partition                                 → the partition's row
//	f partition tenant function                 → a function's policy
//	c partition tenant function band            → ready rows of a flow and their bytes
//	t partition seq                             → row, hot or finished
//	q partition tenant function band sort seq   → ready index
//	d partition due seq                         → due index
//	x partition seq                             → hot rows with a record or a pending cancel
//	b partition seq kind                        → payload (0) or result (1) above blobMin
//	i tenant client-id                          → id of the task
//	r partition minute tenant request-id        → what a submit made
//	l tenant state function ^created ^id        → list index; id without its random bits
//	k tenant label ^created ^id                 → list index of one label
const (
	metaSpace     = 'm'
	configSpace   = 'g'
	copySpace     = 'G'
	partSpace     = 'p'
	funcSpace     = 'f'
	flowSpace     = 'c'
	rowSpace      = 't'
	readySpace    = 'q'
	dueSpace      = 'd'
	markSpace     = 'x'
	blobSpace     = 'b'
	clientSpace   = 'i'
	requestSpace  = 'r'
	listSpace     = 'l'
	labelSpace    = 'k'
	payloadBlob   = 0
	resultBlob    = 1
	placeLen      = 8 + 4 + 6 // created, partition, seq
	indexPlaceLen = 8 + 6     // sort or due, seq
)

var errBadKey = errors.New("a key that this version did not write")

func appendPart(k []byte, space byte, partition uint32) []byte {
	return binary.BigEndian.AppendUint32(append(k, space), partition)
}

// appendText writes s so that the order of texts is kept and no text is the start of another: a NUL
// is written as 00 FF, and 00 01 ends it.
func appendText(k []byte, s string) []byte {
	for {
		i := strings.IndexByte(s, 0)
		if i < 0 {
			break
		}
		k = append(append(k, s[:i]...), 0, 0xff)
		s = s[i+1:]
	}
	return append(append(k, s...), 0, 1)
}

// cutText reads what appendText wrote and returns the rest.
func cutText(k []byte) (s string, rest []byte, err error) {
	var b []byte
	for i := 0; i+1 < len(k); i++ {
		switch {
		case k[i] != 0:
			b = append(b, k[i])
		case k[i+1] == 0xff:
			b = append(b, 0)
			i++
		case k[i+1] == 1:
			return string(b), k[i+2:], nil
		default:
			return "", nil, errBadKey
		}
	}
	return "", nil, errBadKey
}

// appendSigned keeps the order of signed numbers.
func appendSigned(k []byte, v int64) []byte {
	return binary.BigEndian.AppendUint64(k, uint64(v)^1<<63)
}

func appendSeq(k []byte, seq uint64) []byte {
	return append(k, byte(seq>>40), byte(seq>>32), byte(seq>>24), byte(seq>>16), byte(seq>>8), byte(seq))
}

func readSeq(k []byte) uint64 {
	return uint64(k[0])<<40 | uint64(k[1])<<32 | uint64(k[2])<<24 | uint64(k[3])<<16 | uint64(k[4])<<8 | uint64(k[5])
}

// appendRow builds the key of a row in a space that is ordered by sequence number.
func appendRow(k []byte, space byte, id task.ID) []byte {
	return appendSeq(appendPart(k, space, id.Partition()), id.Seq())
}

func appendFlow(k []byte, space byte, partition uint32, f store.Flow) []byte {
	k = appendText(appendText(appendPart(k, space, partition), f.Tenant), f.Function)
	return append(k, byte(f.Band))
}

// appendIndex adds the place of a row in a ready or due index.
func appendIndex(k []byte, at store.Key) []byte { return appendSeq(appendSigned(k, at.Sort), at.Seq) }

func readIndex(place []byte) store.Key {
	return store.Key{Sort: int64(binary.BigEndian.Uint64(place) ^ 1<<63), Seq: readSeq(place[8:])}
}

func dueKey(t *store.Task) store.Key { return store.Key{Sort: t.DueAt.UnixMicro(), Seq: t.ID.Seq()} }

// appendPlace adds the place of a row in a list, newest first.
func appendPlace(k []byte, created time.Time, id task.ID) []byte {
	k = binary.BigEndian.AppendUint64(k, ^(uint64(created.UnixMicro()) ^ 1<<63))
	k = binary.BigEndian.AppendUint32(k, ^id.Partition())
	return appendSeq(k, ^id.Seq())
}

// readPlace returns the partition and the number of the row in a list's place.
func readPlace(place []byte) (partition uint32, seq uint64) {
	return ^binary.BigEndian.Uint32(place[8:]), ^readSeq(place[12:]) & task.MaxSeq
}

func appendList(k []byte, tenant string, state task.State) []byte {
	return append(appendText(append(k, listSpace), tenant), byte(state))
}

func appendLabel(k []byte, tenant, label string) []byte {
	return appendText(appendText(append(k, labelSpace), tenant), label)
}

func appendClient(k []byte, tenant, clientID string) []byte {
	return appendText(appendText(append(k, clientSpace), tenant), clientID)
}

// minute is the bucket of a request.
func minute(at time.Time) int64 {
	s := at.Unix()
	if s < 0 {
		s -= 59
	}
	return s / 60
}

func appendRequest(k []byte, partition uint32, minute int64, tenant, id string) []byte {
	return appendText(appendText(appendSigned(appendPart(k, requestSpace, partition), minute), tenant), id)
}

// after returns the smallest key that does not start with prefix; nil if there is none. It may use
// the prefix's memory.
func after(prefix []byte) []byte {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] != 0xff {
			prefix[i]++
			return prefix[:i+1]
		}
	}
	return nil
}
