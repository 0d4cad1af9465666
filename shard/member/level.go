package member

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/headrace/headrace/shard"
)

// levelValue is how the cluster's level is stored.
type levelValue struct {
	Level shard.Level `json:"level"`
}

func parseLevel(b []byte) (shard.Level, error) {
	var v levelValue
	if err := json.Unmarshal(b, &v); err != nil {
		return 0, err
	}
	return v.Level, nil
}

// raise is the leader's write of a level. It holds only if nobody has joined since the leader looked: who joins
// writes the joins key under the level that it has read (see announce), so either the leader's write or the
// newcomer's finds out about the other.
func (s *session) raise(guard Cond, to shard.Level) Txn {
	k := s.m.keys
	return Txn{
		If:   []Cond{guard, {Key: k.level(), Revision: s.view.items[k.level()].Revision}, {Key: k.joins(), Revision: s.view.items[k.joins()].Revision}},
		Then: []Op{{Key: k.level(), Value: encode(levelValue{to})}},
	}
}

// announceTries bounds how often a join meets a level that was raised in between: it is raised a few times a year.
const announceTries = 8

// announce makes the node a member, if it reads the cluster's level. Errors: ErrLevel.
func (m *Member) announce(ctx context.Context, lease LeaseID) error {
	m.mu.Lock()
	m.node.Session = int64(lease)
	node := m.node
	m.mu.Unlock()
	for range announceTries {
		items, _, err := m.kv.List(ctx, m.keys.level())
		if err != nil {
			return fmt.Errorf("read the cluster's level: %w", err)
		}
		var was Item
		for _, it := range items {
			if it.Key == m.keys.level() {
				was = it
			}
		}
		if was.Revision != 0 {
			level, err := parseLevel(was.Value)
			if err != nil {
				return fmt.Errorf("read the cluster's level: %w", err)
			}
			if !node.Reads().Has(level) {
				return fmt.Errorf("join: the cluster is at feature level %d, this build reads %v: start a build that reads %d: %w",
					level, node.Reads(), level, ErrLevel)
			}
		}
		ok, _, err := m.kv.Commit(ctx, Txn{
			If: []Cond{{Key: m.keys.level(), Revision: was.Revision}},
			Then: []Op{
				{Key: m.keys.member(node.ID), Value: encode(node), Lease: lease},
				{Key: m.keys.joins(), Value: []byte(node.ID)},
			},
		})
		if err != nil {
			return fmt.Errorf("announce the node: %w", err)
		}
		if ok {
			return nil
		}
	}
	return fmt.Errorf("announce the node: the cluster's level changed %d times meanwhile", announceTries)
}
