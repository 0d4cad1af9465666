package shard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// MaxRecord is how many bytes a placement takes at most, with partition numbers below 16,384.
const MaxRecord = 128

// recordFormat is the first byte of a record.
const recordFormat = 1

// Encode returns the record of a placement. It is binary, because there is one for each tenant and the registry
// keeps all of them in memory: format, then as uvarints version, salt, K, home, reason, seconds since
// 1970, the members and those before, each list after its length. The tenant is the record's key.
func (p Placement) Encode() []byte {
	b := make([]byte, 1, MaxRecord)
	b[0] = recordFormat
	for _, v := range []uint64{p.Version, uint64(p.Salt), uint64(p.K), uint64(p.Home), uint64(p.Reason), uint64(max(p.At.Unix(), 0))} {
		b = binary.AppendUvarint(b, v)
	}
	for _, list := range [][]uint32{p.Members, p.Before} {
		b = binary.AppendUvarint(b, uint64(len(list)))
		for _, id := range list {
			b = binary.AppendUvarint(b, uint64(id))
		}
	}
	return b
}

var errRecord = errors.New("not a placement record")

// DecodePlacement reads a tenant's record.
func DecodePlacement(tenant string, b []byte) (Placement, error) {
	p := Placement{Tenant: tenant}
	if len(b) == 0 {
		return p, errRecord
	}
	if b[0] != recordFormat {
		return p, fmt.Errorf("placement record of format %d: this version reads %d", b[0], recordFormat)
	}
	b = b[1:]
	next := func(most uint64) (v uint64) {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > most {
			b = nil
			return most + 1
		}
		b = b[n:]
		return v
	}
	const (
		number  = 1<<32 - 1
		seconds = 253402300799 // the end of the year 9999
	)
	version, salt, k, home, reason, at := next(1<<62), next(number), next(MaxShard), next(number), next(255), next(seconds)
	if version > 1<<62 || salt > number || k > MaxShard || home > number || reason > 255 || at > seconds {
		return p, errRecord
	}
	p.Version, p.Salt, p.K, p.Home, p.Reason, p.At = version, uint32(salt), int(k), uint32(home), Reason(reason), time.Unix(int64(at), 0).UTC()
	for _, list := range []*[]uint32{&p.Members, &p.Before} {
		n := next(MaxShard + homeMembers)
		if n > MaxShard+homeMembers {
			return p, errRecord
		}
		for range n {
			id := next(number)
			if id > number {
				return p, errRecord
			}
			*list = append(*list, uint32(id))
		}
	}
	if len(b) != 0 || len(p.Members) == 0 {
		return p, errRecord
	}
	return p, nil
}
