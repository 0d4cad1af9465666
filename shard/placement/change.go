package placement

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/shard/member"
)

// Change says where a tenant shall go: To, or K members of its own order.
type Change struct {
	To   []uint32
	K    int
	Note string // why, for the event
}

// Change moves a tenant and returns its new placement, which this node uses from then on and the others as
// soon as they hear of it. Errors: *task.FieldError, ErrPending, those of the registry.
func (r *Registry) Change(ctx context.Context, tenant string, c Change) (shard.Placement, error) {
	ctx, cancel := context.WithTimeout(ctx, callMax)
	defer cancel()
	for {
		changed := r.change()
		snapshot, catalogue, now := r.snapshot.Load(), r.cfg.Catalogue(), r.cfg.Now()
		if snapshot.loaded && len(catalogue) > 0 {
			p, err := r.try(ctx, snapshot, catalogue, tenant, c, now)
			if p != nil || err != nil {
				return deref(p), err
			}
		}
		// Somebody else wrote, or nothing was heard yet: with the next news again.
		select {
		case <-changed:
		case <-ctx.Done():
			return shard.Placement{}, ErrPending
		}
	}
}

func deref(p *shard.Placement) shard.Placement {
	if p == nil {
		return shard.Placement{}
	}
	return *p
}

// try writes a change; nil and nil when somebody else wrote meanwhile.
func (r *Registry) try(ctx context.Context, snapshot *Snapshot, catalogue []shard.Partition, tenant string, c Change, now time.Time) (*shard.Placement, error) {
	e := snapshot.get(tenant)
	if e == nil {
		e = &entry{p: shard.Place(shard.Key{Secret: r.cfg.Secret, Tenant: tenant}, salts[:1], catalogue, r.cfg.ShardSize, nil, now)}
	}
	fit, _ := shard.Fit(r.cfg.Secret, e.p, catalogue, now)
	var p shard.Placement
	var err error
	if len(c.To) > 0 {
		p, err = shard.Move(r.cfg.Secret, fit, catalogue, c.To, now)
	} else {
		p, err = shard.Resize(r.cfg.Secret, fit, catalogue, c.K, now)
	}
	if err != nil {
		return nil, err
	}
	txn := r.keys.change(snapshot, e, p, c.Note, now)
	ok, revision, err := r.cfg.KV.Commit(ctx, txn)
	if err != nil {
		return nil, fmt.Errorf("store the placement of %s: %w", tenant, err)
	}
	if !ok {
		return nil, nil
	}
	in := injected{applied(txn, revision), make(chan struct{})}
	select {
	case r.injected <- in:
		<-in.applied
	case <-ctx.Done(): // it is stored all the same; the watch brings it
	}
	return &p, nil
}

// change is the transaction that replaces e by p and notes it.
func (k keys) change(s *Snapshot, e *entry, p shard.Placement, note string, now time.Time) member.Txn {
	number := uint64(1)
	for _, ev := range s.events {
		number = max(number, ev.Number+1)
	}
	slot := int(number % keptEvents)
	value, err := json.Marshal(Event{Number: number, At: now.UTC().Truncate(time.Microsecond), Tenant: p.Tenant, Version: p.Version,
		Reason: p.Reason.String(), Note: note, From: e.p.Members, To: p.Members})
	if err != nil {
		panic(fmt.Sprintf("placement: encode an event: %v", err)) // all of its fields can be
	}
	return member.Txn{
		If:   []member.Cond{{Key: k.tenant(p.Tenant), Revision: e.revision}, {Key: k.event(slot), Revision: s.events[slot].revision}},
		Then: []member.Op{{Key: k.tenant(p.Tenant), Value: p.Encode()}, {Key: k.event(slot), Value: value}},
	}
}
