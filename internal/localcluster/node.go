package localcluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/headrace/headrace/internal/localcluster/proxy"
)

// A Node is one `headrace server`.
type Node struct {
	Service
	GRPC   string // host:port for everybody; with proxies that of Links.Front
	Listen string // host:port of the node itself, which no fault of a link touches
	HTTP   string // host:port of health and debug pages
	Links  Links  // with Options.Proxied
}

// Links are the proxies around a node.
type Links struct {
	Front    *proxy.Proxy   // in front of the node, with the groups FromNodes and FromOthers
	Etcd     []*proxy.Proxy // from the node to each member
	Postgres []*proxy.Proxy // from the node to each database
}

// Groups of connections to a node.
const (
	FromNodes  = "nodes"  // other nodes
	FromOthers = "others" // executors and clients
)

// Heal ends every fault.
func (l Links) Heal() {
	for _, p := range l.all() {
		p.Heal()
	}
}

func (l Links) close() {
	for _, p := range l.all() {
		p.Close()
	}
}

func (l Links) all() []*proxy.Proxy {
	all := append(append([]*proxy.Proxy{l.Front}, l.Etcd...), l.Postgres...)
	return slices.DeleteFunc(all, func(p *proxy.Proxy) bool { return p == nil })
}

func (c *Cluster) node(i int) (*Node, error) {
	s := &c.state.Nodes[i]
	n := &Node{GRPC: s.GRPC, Listen: s.Listen, HTTP: s.HTTP}
	if c.opt.Proxied {
		var err error
		if n.Links, err = c.link(*s); err != nil {
			n.Links.close()
			return nil, fmt.Errorf("proxies of %s: %w", s.Name, err)
		}
	}
	file := filepath.Join(c.Dir, s.Name+".yaml")
	n.Service = Service{Name: s.Name, c: c, proc: &s.Process, stop: syscall.SIGTERM, kill: syscall.SIGKILL,
		prepare: func(context.Context) (command, error) {
			if err := os.WriteFile(file, []byte(c.config(n)), 0o644); err != nil {
				return command{}, err
			}
			return command{path: c.opt.Headrace, args: []string{"server", "--config", file}, env: c.opt.NodeEnv, dir: c.Dir}, nil
		},
		serves: func(ctx context.Context) bool {
			return ask(ctx, http.MethodGet, "http://"+s.HTTP+"/readyz", nil) == nil
		},
	}
	return n, nil
}

func (c *Cluster) link(s NodeState) (l Links, err error) {
	add := func(cfg proxy.Config) *proxy.Proxy {
		p, e := proxy.New(cfg)
		err = errors.Join(err, e)
		return p
	}
	l.Front = add(proxy.Config{Listen: s.GRPC, To: s.Listen, Group: c.whose})
	for _, m := range c.state.Etcd {
		l.Etcd = append(l.Etcd, add(proxy.Config{To: m.Client}))
	}
	for _, db := range c.state.Postgres {
		l.Postgres = append(l.Postgres, add(proxy.Config{To: fmt.Sprintf("127.0.0.1:%d", db.Port)}))
	}
	return l, err
}

// config is a node's YAML file.
func (c *Cluster) config(n *Node) string {
	var b strings.Builder
	fmt.Fprintf(&b, "name: %s\nlisten: %s\nadvertise_addr: %s\nhttp: %s\nlease_ttl: %v\n", n.Name, n.Listen, n.GRPC, n.HTTP, c.opt.TTL)
	b.WriteString("etcd:\n  endpoints:\n")
	for i, m := range c.Etcd {
		addr := m.Client
		if c.opt.Proxied {
			addr = n.Links.Etcd[i].Addr()
		}
		fmt.Fprintf(&b, "    - %s\n", addr)
	}
	b.WriteString("databases:\n")
	for i, db := range c.Postgres {
		dsn := db.DSN
		if c.opt.Proxied {
			dsn = strings.Replace(dsn, fmt.Sprintf("127.0.0.1:%d", db.Port), n.Links.Postgres[i].Addr(), 1)
		}
		fmt.Fprintf(&b, "  - name: %s\n    dsn: %s\n    partitions: %d\n", db.Name, dsn, c.opt.Partitions)
	}
	if c.opt.Config != "" {
		b.WriteString(strings.TrimSuffix(c.opt.Config, "\n") + "\n")
	}
	return b.String()
}

// whose tells the connections of nodes from others, by the process that holds the other end.
func (c *Cluster) whose(near net.Conn) string {
	from, ok := near.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return FromOthers
	}
	inode := socketOf(from.Port, near.LocalAddr().(*net.TCPAddr).Port)
	for _, n := range c.State().Nodes {
		if inode != "" && holds(n.PID, inode) {
			return FromNodes
		}
	}
	return FromOthers
}

// socketOf returns the inode of the socket of an IPv4 connection between two ports of the loopback; "" if there is none.
func socketOf(local, remote int) string {
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return ""
	}
	a, b := fmt.Sprintf("0100007F:%04X", local), fmt.Sprintf("0100007F:%04X", remote)
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 9 && f[1] == a && f[2] == b {
			return f[9]
		}
	}
	return ""
}

// holds reports whether a process has a socket open.
func holds(pid int, inode string) bool {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && to == "socket:["+inode+"]" {
			return true
		}
	}
	return false
}
