package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/clusterclient"
	"github.com/headrace/headrace/internal/ledger"
	"github.com/headrace/headrace/internal/localcluster"
	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/task"
)

// world is a cluster, its executors and what was asked of it.
type world struct {
	t       *testing.T
	c       *localcluster.Cluster
	ttl     time.Duration
	tenants []string // of the flows; the executors serve these and probes
	workers []*ledger.Worker
	watched int // how often watch was called

	mu       sync.Mutex // guards what follows
	accepted []accepted
	clients  map[string]*client.Client // by node and tenant
	clusters map[string]*clusterclient.Client
}

// accepted is a task whose submit was answered OK.
type accepted struct {
	id, tenant      string
	partition       uint32
	asked, answered time.Time
}

// probes are tenants that are pinned to some partitions, one for each watch of a row.
var probes = []string{"probe0", "probe1", "probe2", "probe3"}

// newWorld starts a cluster; it ends with the test.
func newWorld(t *testing.T, opt localcluster.Options) *world {
	t.Helper()
	opt.Headrace, opt.EtcdServer = cmp.Or(opt.Headrace, headrace), etcdServer
	if opt.TTL == 0 {
		opt.TTL = pick(3*time.Second, 5*time.Second)
	}
	w := &world{t: t, ttl: opt.TTL, clients: map[string]*client.Client{}, clusters: map[string]*clusterclient.Client{}}
	for i := range 8 {
		w.tenants = append(w.tenants, fmt.Sprintf("t%d", i))
	}
	w.c = localcluster.ForTest(t, opt)
	w.eventually(30*time.Second, "each partition has an open owner, and each node partitions", func() bool {
		ps := w.partitions(w.c.Nodes[0])
		owners := map[string]bool{}
		for _, p := range ps {
			if p.State != "open" {
				return false
			}
			owners[p.NodeId] = true
		}
		return len(ps) > 0 && len(owners) == len(w.c.Nodes)
	})
	return w
}

func (w *world) eventually(d time.Duration, what string, ok func() bool) {
	w.t.Helper()
	ledger.Eventually(w.t, d, what, ok)
}

// worker starts an executor process, which knows the first node's address.
func (w *world) worker(name string, slots int) *ledger.Worker {
	w.t.Helper()
	x := ledger.StartWorker(w.t, w.c.Nodes[0].GRPC, name, fmt.Sprintf("HEADRACE_E2E_SLOTS=%d", slots),
		"HEADRACE_E2E_TENANT="+strings.Join(append(slices.Clone(w.tenants), probes...), ","))
	w.workers = append(w.workers, x)
	return x
}

// client returns a tenant's client of a node.
func (w *world) client(n *localcluster.Node, tenant string) *client.Client {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	key := n.Name + " " + tenant
	if w.clients[key] == nil {
		c, err := client.Dial(client.Config{Addr: n.GRPC, Tenant: tenant, Logger: zap.NewNop()})
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(c.Close)
		w.clients[key] = c
	}
	return w.clients[key]
}

// ask returns a client that asks a node about the cluster; no proxy is in between.
func (w *world) ask(n *localcluster.Node) *clusterclient.Client {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.clusters[n.Name] == nil {
		c, err := clusterclient.Dial(n.Listen, "")
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(c.Close)
		w.clusters[n.Name] = c
	}
	return w.clusters[n.Name]
}

// partitions are those that a node knows of; none when it does not answer.
func (w *world) partitions(n *localcluster.Node) []*headracev1.Partition {
	ps, err := w.ask(n).Partitions(ledger.Within(w.t, 5*time.Second))
	if err != nil {
		return nil
	}
	return ps
}

// id returns a node's id of its present start.
func (w *world) id(n *localcluster.Node) string {
	w.t.Helper()
	nodes, err := w.ask(n).Nodes(ledger.Within(w.t, 5*time.Second))
	if err != nil {
		w.t.Fatal(err)
	}
	id := ""
	for _, o := range nodes {
		if o.Name == n.Name && o.Address == n.GRPC {
			id = o.Id
		}
	}
	if id == "" {
		w.t.Fatalf("%s does not list itself: %v", n.Name, nodes)
	}
	return id
}

// pin sends a tenant's new tasks to some partitions.
func (w *world) pin(via *localcluster.Node, tenant string, to []uint32) {
	w.t.Helper()
	_, err := w.ask(via).MovePlacement(ledger.Within(w.t, 10*time.Second), &headracev1.MovePlacementRequest{Tenant: tenant, Partitions: to})
	if err != nil {
		w.t.Fatal(err)
	}
}

// took notes an accepted task.
func (w *world) took(tenant, id string, asked time.Time) {
	parsed, err := task.ParseID(id)
	if err != nil {
		w.t.Errorf("a submit was answered with the id %q: %v", id, err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.accepted = append(w.accepted, accepted{id, tenant, parsed.Partition(), asked, time.Now()})
}

// books returns what was accepted so far.
func (w *world) books() []accepted {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.accepted)
}

// settle waits until everything accepted has ended, closes the books and returns what ran. It fails for a task that
// was lost or did not succeed, for one that exists twice, and for anything that stays in use.
func (w *world) settle(limit time.Duration) map[string]*ledger.Runs {
	w.t.Helper()
	for _, x := range w.workers {
		x.Release()
	}
	began := time.Now()
	via := w.c.Nodes[0]
	last := ""
	w.eventually(limit, "each partition has an owner, and nothing waits or runs", func() bool {
		ps := w.partitions(via)
		text, busy := "", 0
		for _, p := range ps {
			if p.State != "open" || p.Backlog+p.Scheduled+p.Running > 0 {
				text += fmt.Sprintf(" %d:%s/%d/%d/%d", p.Id, p.State, p.Backlog, p.Scheduled, p.Running)
				busy++
			}
		}
		if text != last && time.Since(began) > limit*3/4 {
			w.t.Logf("still busy (partition:state/backlog/scheduled/running):%s", text)
		}
		last = text
		return len(ps) > 0 && busy == 0
	})
	byTenant := map[string][]string{}
	for _, a := range w.books() {
		byTenant[a.tenant] = append(byTenant[a.tenant], a.id)
	}
	states := map[task.State]int{}
	for tenant, ids := range byTenant {
		for s, n := range ledger.Audit(w.t, w.client(via, tenant), ids, time.Minute) {
			states[s] += n
		}
	}
	runs := ledger.Read(w.t, w.workers...)
	w.t.Logf("ledger: accepted %d, %s", len(w.books()), ledger.Describe(states, runs))
	if states[task.Succeeded] != len(w.books()) {
		w.t.Errorf("%d tasks succeeded of %d accepted", states[task.Succeeded], len(w.books()))
	}
	for id, r := range runs {
		seen := map[string]bool{}
		for _, token := range r.Tokens {
			if seen[token] {
				w.t.Errorf("task %s: token %s was started twice", id, token)
			}
			seen[token] = true
		}
	}
	return runs
}

// again returns how many tasks started more than once.
func again(runs map[string]*ledger.Runs) (n int) {
	for _, r := range runs {
		if r.Starts > 1 {
			n++
		}
	}
	return n
}

// started waits until an executor runs each of the tasks.
func (w *world) started(ids []string) {
	w.t.Helper()
	w.eventually(30*time.Second, "the long tasks run", func() bool {
		runs := ledger.Read(w.t, w.workers...)
		return !slices.ContainsFunc(ids, func(id string) bool { return runs[id] == nil })
	})
}

// goOn lets what flows flow for a while.
func (w *world) goOn(d time.Duration) {
	select {
	case <-time.After(d):
	case <-w.t.Context().Done():
	}
}

// others are the nodes but one.
func others(all []*localcluster.Node, but *localcluster.Node) []*localcluster.Node {
	return slices.DeleteFunc(slices.Clone(all), func(n *localcluster.Node) bool { return n == but })
}
