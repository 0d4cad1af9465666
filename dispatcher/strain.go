package dispatcher

import (
	"context"
	"time"

	"github.com/headrace/headrace/dispatcher/core"
	"github.com/headrace/headrace/task"
)

// Where overload begins, if it stands (flowcontrol/pressure): commits that take so long, queues and memory so full, each as
// a part of what makes the node refuse by itself. How busy the loop is says nothing: at full speed it always is.
const (
	strainCommit  = 1500 * time.Millisecond
	strainQueue   = 0.5  // of the commits' queue
	strainMailbox = 0.5  // of the loop's
	strainMemory  = 1.25 // of what windows may take: they fill it up by themselves
)

// strain is door.Config.Local.
func (n *Node) strain(ctx context.Context) ([]core.TenantUsage, float64, error) {
	var usages []core.TenantUsage // apart from what is returned: the loop may write them after an error
	var s core.Strain
	now := n.clock.Now()
	if err := n.loop.Do(ctx, func(c *core.Core) { usages, s = c.Usages(), c.Strain(now) }); err != nil {
		return nil, 0, err
	}
	commit := max(n.loop.Stats().CommitTime, s.Commit)
	shared := max(s.Queue/strainQueue, s.Memory/strainMemory, n.loop.Fill()/strainMailbox, commit.Seconds()/strainCommit.Seconds())
	return usages, shared, nil
}

// loads is pools.Config.Local.
func (n *Node) loads(ctx context.Context) ([]core.FunctionLoad, []core.PoolLoad, error) {
	var fs []core.FunctionLoad // apart from what is returned: the loop may write them after an error
	var ps []core.PoolLoad
	now := n.clock.Now()
	if err := n.loop.Do(ctx, func(c *core.Core) { fs, ps = c.Loads(now) }); err != nil {
		return nil, nil, err
	}
	return fs, ps, nil
}

// granted is tenants.Config.Changed.
func (n *Node) granted(tenant string, g task.Tenant) {
	n.door.Grant(tenant, g)
	g = g.WithDefaults()
	n.loop.SetTenant(tenant, g.Weight, g.Class)
}
