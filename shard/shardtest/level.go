package shardtest

import (
	"errors"
	"testing"
	"time"

	"github.com/headrace/headrace/shard"
	"github.com/headrace/headrace/shard/member"
)

func levels(low, high shard.Level) func(*member.Config) {
	return func(c *member.Config) { c.Node.Levels = &shard.Levels{Min: low, Max: high} }
}

func (n *node) reaches(level shard.Level) {
	n.t.Helper()
	n.until("its level", func() bool { return n.Level() == level })
}

// refused waits for a node that must not be let in.
func (n *node) refused() {
	n.t.Helper()
	select {
	case err := <-n.ended:
		n.ended <- err
		if !errors.Is(err, member.ErrLevel) {
			n.t.Errorf("%s ended with %v", n.id, err)
		}
	case <-time.After(patience):
		n.t.Fatalf("%s was let in", n.id)
	}
}

// While an older node is a member the level stays where it reads it. Once it has left the level rises, and an older
// one does not come back; nor does one that reads only later levels come in before.
func testLevels(t *testing.T, c *cluster) {
	a := c.start("a", levels(1, 2))
	a.holds(8)
	a.reaches(2)
	b := c.start("b", levels(2, 4))
	b.holds(4)
	d := c.start("d", levels(1, 3))
	d.until("three members", func() bool { return len(d.Directory().Nodes) == 3 })
	d.reaches(2)
	c.start("older", levels(1, 1)).refused()
	c.start("later", levels(3, 5)).refused()
	a.leave()
	d.reaches(3)
	b.reaches(3)
	d.leave()
	b.reaches(4)
	c.start("later", levels(3, 5)).reaches(4)
	c.start("older", levels(1, 3)).refused()
	b.reaches(4)
}

// A node that was away while the level rose above what it reads ends, and says why.
func testLevelRoseMeanwhile(t *testing.T, c *cluster) {
	a := c.start("a", levels(1, 2))
	a.holds(8)
	b := c.start("b", levels(1, 1+shard.NewestLevel))
	b.holds(4)
	b.reaches(2)
	a.gate.Shut()
	b.holds(8)
	b.reaches(1 + shard.NewestLevel)
	a.gate.Open()
	a.refused()
}
