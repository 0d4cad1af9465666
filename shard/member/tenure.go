package member

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/headrace/headrace/shard"
)

// Tenure is what is known of a partition's last owners, as last heard; the zero Tenure if there is nothing to say:
// its owner has had it for shard.TenureCalm.
func (m *Member) Tenure(partition uint32) shard.Tenure {
	return m.directory.Load().Tenures[partition]
}

// Passed notes that this node, which holds a quarantined partition, is alive although everything suspicious was
// handled. Errors: ErrNotHeld.
func (m *Member) Passed(ctx context.Context, partition uint32) error {
	t, there, err := m.tenure(ctx, partition)
	if err == nil && there {
		t.Passed = true
		err = m.whileHeld(ctx, partition, Op{Key: m.keys.tenure(partition), Value: encode(t)})
	}
	if err != nil {
		return fmt.Errorf("note that partition %d passed: %w", partition, err)
	}
	return nil
}

// Caught notes what this node has caught of a partition that it holds: it is listed as quarantined until that has passed.
// Below shard.LevelTenures nothing is written. Errors: ErrNotHeld.
func (m *Member) Caught(ctx context.Context, partition uint32, c shard.Caught) error {
	if m.Directory().Level < shard.LevelTenures {
		return nil
	}
	t, there, err := m.tenure(ctx, partition)
	if !there {
		t = shard.Tenure{Node: m.cfg.Node.ID, Addr: m.cfg.Node.Addr} // it was calm: not open, a death now is no early one
	}
	if err == nil {
		if t.Node != m.cfg.Node.ID { // a sole node's, which leaves none by its claims
			t = shard.Tenure{Node: m.cfg.Node.ID, Addr: m.cfg.Node.Addr}
		}
		t.Caught = c
		err = m.whileHeld(ctx, partition, Op{Key: m.keys.tenure(partition), Value: encode(t)})
	}
	if err != nil {
		return fmt.Errorf("note what was caught of partition %d: %w", partition, err)
	}
	return nil
}

// Calm ends the tenure of a partition that this node has had for shard.TenureCalm, and a quarantine with it. Errors:
// ErrNotHeld.
func (m *Member) Calm(ctx context.Context, partition uint32) error {
	ops := []Op{{Key: m.keys.tenure(partition), Delete: true}}
	if m.Tenure(partition).Careful() {
		ops = append(ops, Op{Key: handsKey(partition), Delete: true})
	}
	if err := m.whileHeld(ctx, partition, ops...); err != nil {
		return fmt.Errorf("end the tenure of partition %d: %w", partition, err)
	}
	return nil
}

func handsKey(partition uint32) string { return DefaultHands + formatUint(partition) }

// Hands reads which tasks the last owner of a quarantined partition handled.
func (m *Member) Hands(ctx context.Context, partition uint32) (h shard.Hands, err error) {
	it, err := m.read(ctx, handsKey(partition))
	if err == nil && it.Revision != 0 {
		err = json.Unmarshal(it.Value, &h)
	}
	if err != nil {
		return shard.Hands{}, fmt.Errorf("read the hands of partition %d: %w", partition, err)
	}
	return h, nil
}

// SetHands notes which tasks this node handles, as long as it holds the partition. Errors: ErrNotHeld.
func (m *Member) SetHands(ctx context.Context, partition uint32, h shard.Hands) error {
	if err := m.whileHeld(ctx, partition, Op{Key: handsKey(partition), Value: encode(h)}); err != nil {
		return fmt.Errorf("note the hands of partition %d: %w", partition, err)
	}
	return nil
}

// whileHeld applies operations if this node holds the partition's key under its present lease.
func (m *Member) whileHeld(ctx context.Context, partition uint32, ops ...Op) error {
	lease := LeaseID(m.lease.Load())
	if lease == 0 {
		return ErrNotHeld
	}
	ok, _, err := m.kv.Commit(ctx, Txn{If: []Cond{{Key: m.keys.owner(partition), Lease: lease}}, Then: ops})
	if err == nil && !ok {
		err = ErrNotHeld
	}
	return err
}

func (m *Member) tenure(ctx context.Context, partition uint32) (t shard.Tenure, there bool, err error) {
	it, err := m.read(ctx, m.keys.tenure(partition))
	if err != nil || it.Revision == 0 {
		return t, false, err
	}
	err = json.Unmarshal(it.Value, &t)
	return t, err == nil, err
}

// read returns one key as it is; the zero Item if it is not there.
func (m *Member) read(ctx context.Context, key string) (Item, error) {
	items, _, err := m.kv.List(ctx, key)
	if err != nil {
		return Item{}, err
	}
	for _, it := range items {
		if it.Key == key {
			return it, nil
		}
	}
	return Item{}, nil
}

// handOver writes what an orderly end leaves of a tenure.
func (m *Member) handOver(partition uint32, t shard.Tenure) Op {
	if t, keep := t.HandOver(); keep {
		return Op{Key: m.keys.tenure(partition), Value: encode(t)}
	}
	return Op{Key: m.keys.tenure(partition), Delete: true}
}

// leaveTenures closes the tenures of partitions that this node still holds at its orderly end: it does not die of
// them.
func (m *Member) leaveTenures(ctx context.Context) error {
	items, _, err := m.kv.List(ctx, m.keys.tenures())
	if err != nil {
		return err
	}
	var txn Txn
	flush := func() error {
		if len(txn.Then) == 0 {
			return nil
		}
		_, _, err := m.kv.Commit(ctx, txn) // not applied: somebody has claimed one, and counted already
		txn = Txn{}
		return err
	}
	for _, it := range items {
		var t shard.Tenure
		p, err := parseUint(strings.TrimPrefix(it.Key, m.keys.tenures()))
		if err != nil || json.Unmarshal(it.Value, &t) != nil || t.Node != m.cfg.Node.ID || !t.Open {
			continue
		}
		txn.If = append(txn.If, Cond{Key: it.Key, Revision: it.Revision})
		txn.Then = append(txn.Then, m.handOver(p, t))
		if len(txn.Then) == MaxTxnOps {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}
