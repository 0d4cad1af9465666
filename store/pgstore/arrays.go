package pgstore

import "encoding/binary"

// Types of Postgres by their OIDs: of elements, and of arrays of them.
const (
	oidBool, oidBools   = 16, 1000
	oidBytea, oidByteas = 17, 1001
	oidInt8, oidInt8s   = 20, 1016
	oidInt2, oidInt2s   = 21, 1005
	oidInt4, oidInt4s   = 23, 1007
	oidText, oidTexts   = 25, 1009
	oidUUID, oidUUIDs   = 2950, 2951
)

var arrayOIDs = map[uint32]uint32{
	oidBool: oidBools, oidBytea: oidByteas, oidInt8: oidInt8s, oidInt2: oidInt2s, oidInt4: oidInt4s, oidText: oidTexts, oidUUID: oidUUIDs,
}

// array is a one-dimensional array in Postgres' binary format in the making. Its memory is used again.
type array struct {
	elem  uint32
	n     int
	nulls bool
	b     []byte
}

const arrayHeader = 20 // dimensions, nulls, element type, length, lower bound

func (a *array) reset() {
	if cap(a.b) < arrayHeader {
		a.b = make([]byte, arrayHeader, 256)
	}
	a.b, a.n, a.nulls = a.b[:arrayHeader], 0, false
}

// bytes returns the parameter. It is valid until the next reset.
func (a *array) bytes() []byte {
	dims, nulls := uint32(1), uint32(0)
	if a.n == 0 {
		dims = 0
	}
	if a.nulls {
		nulls = 1
	}
	binary.BigEndian.PutUint32(a.b, dims)
	binary.BigEndian.PutUint32(a.b[4:], nulls)
	binary.BigEndian.PutUint32(a.b[8:], a.elem)
	if a.n == 0 {
		return a.b[:12]
	}
	binary.BigEndian.PutUint32(a.b[12:], uint32(a.n))
	binary.BigEndian.PutUint32(a.b[16:], 1)
	return a.b
}

func (a *array) int64(v int64) {
	a.n++
	a.b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(a.b, 8), uint64(v))
}

func (a *array) int32(v int32) {
	a.n++
	a.b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(a.b, 4), uint32(v))
}

func (a *array) int16(v int16) {
	a.n++
	a.b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint32(a.b, 2), uint16(v))
}

func (a *array) bool(v bool) {
	a.n++
	a.b = binary.BigEndian.AppendUint32(a.b, 1)
	if v {
		a.b = append(a.b, 1)
	} else {
		a.b = append(a.b, 0)
	}
}

func (a *array) text(v string) {
	a.n++
	a.b = append(binary.BigEndian.AppendUint32(a.b, uint32(len(v))), v...)
}

func (a *array) null() {
	a.n++
	a.nulls = true
	a.b = binary.BigEndian.AppendUint32(a.b, 1<<32-1)
}

// data adds bytes; none are NULL.
func (a *array) data(v []byte) {
	if len(v) == 0 {
		a.null()
		return
	}
	a.raw(v)
}

// raw adds bytes, which may be none.
func (a *array) raw(v []byte) {
	a.n++
	a.b = append(binary.BigEndian.AppendUint32(a.b, uint32(len(v))), v...)
}

// encode adds what f appends.
func (a *array) encode(f func(dst []byte) []byte) {
	a.n++
	at := len(a.b)
	a.b = f(append(a.b, 0, 0, 0, 0))
	binary.BigEndian.PutUint32(a.b[at:], uint32(len(a.b)-at-4))
}
