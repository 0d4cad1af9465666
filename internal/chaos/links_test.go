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
		moves   func(ttl time.Duration) time.Duration // within which its partitions get other owners; nil: they don't
	}{
		{"etcd", func(l localcluster.Links) []*proxy.Proxy { return l.Etcd }, nil, func(ttl time.Duration) time.Duration { return ttl + 3*time.Second }},
		{"databases", func(l localcluster.Links) []*proxy.Proxy { return l.Postgres }, nil, func(ttl time.Duration) time.Duration { return ttl*19/10 + 3*time.Second }},
		{"executors", func(l localcluster.Links) []*proxy.Proxy { return []*proxy.Proxy{l.Front} }, []string{localcluster.FromOthers}, nil},
		{"peers", func(l localcluster.Links) []*proxy.Proxy { return []*proxy.Proxy{l.Front} }, []string{localcluster.FromNodes}, nil},
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
				if link.moves != nil {
					if bound, took := link.moves(w.ttl), k.opened(30*time.Second); took > bound {
						t.Errorf("its partitions were open elsewhere after %v, want at most %v", took, bound)
					}
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
