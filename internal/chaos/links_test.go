package chaos

import (
	"testing"
	"time"

	"github.com/headrace/headrace/internal/localcluster"
	"github.com/headrace/headrace/internal/localcluster/proxy"
)

// One node is cut off from one thing at a time, by resets and by silence. The callers use the others and see no error;
// everything finishes.
func TestNodeCutOff(t *testing.T) {
	onlyLong(t)
	for _, link := range []struct {
		name    string
		proxies func(localcluster.Links) []*proxy.Proxy
		groups  []string
		moves   bool // the partitions get other owners
	}{
		{"etcd", func(l localcluster.Links) []*proxy.Proxy { return l.Etcd }, nil, true},
		{"databases", func(l localcluster.Links) []*proxy.Proxy { return l.Postgres }, nil, false},
		{"executors", func(l localcluster.Links) []*proxy.Proxy { return []*proxy.Proxy{l.Front} }, []string{localcluster.FromOthers}, false},
		{"peers", func(l localcluster.Links) []*proxy.Proxy { return []*proxy.Proxy{l.Front} }, []string{localcluster.FromNodes}, false},
	} {
		for name, cut := range map[string]func(*proxy.Proxy, ...string){"cut": (*proxy.Proxy).Cut, "silent": (*proxy.Proxy).Blackhole} {
			t.Run(link.name+" "+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, localcluster.Options{Proxied: true})
				w.worker("x1", 100)
				victim := w.c.Nodes[1] // the executor knows the first one's address
				f := w.flow(150, others(w.c.Nodes, victim), nap)
				w.goOn(2 * time.Second)
				k := w.watch(victim)
				from := time.Now()
				k.broken(func() error {
					for _, p := range link.proxies(victim.Links) {
						cut(p, link.groups...)
					}
					return nil
				})
				if link.moves {
					k.opened(w.ttl + 3*time.Second)
				}
				w.goOn(time.Until(from.Add(20 * time.Second)))
				to := time.Now()
				victim.Links.Heal()
				w.goOn(3 * time.Second)
				f.stop()
				f.report("the flow")
				runs := w.settle(time.Minute)
				w.steady("cut off from "+link.name, runs, from, to, 0)
				w.onlyNewestCounts(runs)
				w.nothingTwice()
				t.Logf("%d of %d partitions changed their owner", len(k.open), len(k.old))
			})
		}
	}
}
