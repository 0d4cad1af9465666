package store

import (
	"fmt"
	"time"

	storev1 "github.com/headrace/headrace/proto/headrace/store/v1"
	"github.com/headrace/headrace/task"
)

// EncodeFunction appends the stored form of a policy to dst.
func EncodeFunction(dst []byte, f *Function) []byte {
	p := f.Policy
	return marshal(dst, &storev1.Function{
		Tenant: f.Tenant, Name: f.Name, Version: p.Version,
		Timeout: int64(p.Timeout), MaxAttempts: int64(p.MaxAttempts),
		BackoffBase: int64(p.Backoff.Base), BackoffFactor: p.Backoff.Factor, BackoffMax: int64(p.Backoff.Max),
		OrphanTimeout: int64(p.OrphanTimeout), CancelGrace: int64(p.CancelGrace),
		Exclusive: p.Exclusive, Downstream: p.Downstream, Cost: int64(p.Cost), Requires: p.Requires, Prefers: p.Prefers,
	})
}

// DecodeFunction reads what EncodeFunction wrote. It keeps nothing of data.
func DecodeFunction(data []byte) (Function, error) {
	var m storev1.Function
	if err := m.UnmarshalVT(data); err != nil {
		return Function{}, fmt.Errorf("decode a function: %w", err)
	}
	return Function{Tenant: m.Tenant, Name: m.Name, Policy: task.Policy{
		Version: m.Version, Timeout: duration(m.Timeout), MaxAttempts: int(m.MaxAttempts),
		Backoff:       task.Backoff{Base: duration(m.BackoffBase), Factor: m.BackoffFactor, Max: duration(m.BackoffMax)},
		OrphanTimeout: duration(m.OrphanTimeout), CancelGrace: duration(m.CancelGrace),
		Exclusive: m.Exclusive, Downstream: m.Downstream, Cost: int(m.Cost), Requires: m.Requires, Prefers: m.Prefers,
	}}, nil
}

// EncodeRequest appends the stored form of a request to dst.
func EncodeRequest(dst []byte, r *Request) []byte {
	m := &storev1.Request{Id: raw(r.ID), Tenant: r.Tenant, At: micros(r.At), HasDedup: r.Dedup != nil}
	m.Ids = make([]byte, 0, len(r.IDs)*len(task.ID{}))
	for i := range r.IDs {
		m.Ids = append(m.Ids, r.IDs[i][:]...)
	}
	if r.Dedup != nil {
		m.Dedup = make([]byte, len(r.Dedup))
		for i, d := range r.Dedup {
			if d {
				m.Dedup[i] = 1
			}
		}
	}
	return marshal(dst, m)
}

// DecodeRequest reads what EncodeRequest wrote. It keeps nothing of data.
func DecodeRequest(data []byte) (*Request, error) {
	var m storev1.Request
	if err := m.UnmarshalVT(data); err != nil {
		return nil, fmt.Errorf("decode a request: %w", err)
	}
	const size = len(task.ID{})
	if len(m.Ids)%size != 0 {
		return nil, fmt.Errorf("decode a request: %d bytes of ids", len(m.Ids))
	}
	r := &Request{ID: string(m.Id), Tenant: m.Tenant, At: instant(m.At)}
	for ids := m.Ids; len(ids) > 0; ids = ids[size:] {
		r.IDs = append(r.IDs, task.ID(ids[:size]))
	}
	if m.HasDedup {
		r.Dedup = make([]bool, len(m.Dedup))
		for i, d := range m.Dedup {
			r.Dedup[i] = d != 0
		}
	}
	return r, nil
}

// EncodePartition appends the stored form of a partition's own row to dst.
func EncodePartition(dst []byte, p *Partition) []byte {
	return marshal(dst, &storev1.Partition{
		Id: p.ID, Epoch: p.Epoch, Floor: p.Floor, Seq: p.Seq, Ready: p.Ready, Due: p.Due, Bytes: p.Bytes,
		Released: p.Released,
	})
}

// DecodePartition reads what EncodePartition wrote.
func DecodePartition(data []byte) (Partition, error) {
	var m storev1.Partition
	if err := m.UnmarshalVT(data); err != nil {
		return Partition{}, fmt.Errorf("decode a partition: %w", err)
	}
	return Partition{ID: m.Id, Epoch: m.Epoch, Floor: m.Floor, Seq: m.Seq, Ready: m.Ready, Due: m.Due, Bytes: m.Bytes,
		Released: m.Released}, nil
}

func marshal(dst []byte, m interface {
	SizeVT() int
	MarshalToSizedBufferVT([]byte) (int, error)
}) []byte {
	n, at := m.SizeVT(), len(dst)
	dst = append(dst, make([]byte, n)...)
	if _, err := m.MarshalToSizedBufferVT(dst[at:]); err != nil {
		panic(err) // it has no error but that of a size that SizeVT got wrong
	}
	return dst
}

// yearOne is the distance of Go's zero time from 1970: so the zero time is 0 on disk.
const yearOne = 62135596800

// Instants beyond these (292,000 years off) are stored as these.
const (
	minSeconds = -9223372036854 + 1
	maxSeconds = 9223372036854 - yearOne - 1
)

// micros returns t as stored.
func micros(t time.Time) int64 {
	s := min(max(t.Unix(), minSeconds), maxSeconds)
	return (s+yearOne)*1e6 + int64(t.Nanosecond()/1000)
}

// instant reads what micros wrote, in UTC.
func instant(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us - yearOne*1e6).UTC()
}

func duration(ns int64) time.Duration { return time.Duration(ns) }
