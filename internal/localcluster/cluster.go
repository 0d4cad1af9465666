package localcluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/headrace/headrace/internal/pgtest"
)

// Options say what a cluster is. The zero value of a field is its documented default.
type Options struct {
	Nodes, Etcd, Postgres int           // 3, 3 and 2; ignored when the directory holds a cluster already
	Partitions            int           // of each database; 8
	TTL                   time.Duration // of a node's lease, whole seconds; 5 s
	Headrace              string        // the binary; required
	EtcdServer            string        // etcd's server; required, see BuildEtcd
	Config                string        // further lines of each node's YAML file
	NodeEnv               []string      // of the nodes, besides our own environment without HEADRACE_…
	PostgresSettings      []string      // lines of postgresql.conf such as "max_connections=50"
	Proxied               bool          // links that can be broken; they live in this process
	Detached              bool          // the processes live on after this one; not with Proxied
}

func (o Options) withDefaults() Options {
	for _, d := range []struct {
		field *int
		value int
	}{{&o.Nodes, 3}, {&o.Etcd, 3}, {&o.Postgres, 2}, {&o.Partitions, 8}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if o.TTL == 0 {
		o.TTL = 5 * time.Second
	}
	return o
}

// startMax bounds the start of one process, a database's recovery included.
const startMax = time.Minute

// A Cluster is one that runs. Its services can be used by several goroutines, each of them by one at a time.
type Cluster struct {
	Dir      string
	Nodes    []*Node
	Etcd     []*Member
	Postgres []*Database

	opt Options

	mu    sync.Mutex // guards what follows
	state State
}

// Start starts a cluster in a directory, or what has ended of one that is there, and returns when all of it serves.
// What runs already goes on. On an error everything that Start started has ended.
func Start(ctx context.Context, dir string, opt Options) (c *Cluster, err error) {
	opt = opt.withDefaults()
	if opt.Headrace == "" || opt.EtcdServer == "" || opt.Detached && opt.Proxied {
		return nil, errors.New("start a local cluster: want both binaries, and not both proxies and detached processes")
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(dir, "log"), 0o755); err != nil {
		return nil, err
	}
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	c = &Cluster{Dir: dir, opt: opt}
	if err := c.load(); err != nil {
		return nil, err
	}
	before := c.running()
	defer func() {
		if err != nil {
			c.closeProxies()
			c.end(before)
		}
	}()
	if err := c.build(); err != nil {
		return nil, err
	}
	all := c.services()
	if err := startAll(ctx, all[len(c.Nodes):]); err != nil {
		return nil, err
	}
	return c, startAll(ctx, all[:len(c.Nodes)])
}

// services returns all of them, the nodes first.
func (c *Cluster) services() (all []*Service) {
	for _, n := range c.Nodes {
		all = append(all, &n.Service)
	}
	for _, m := range c.Etcd {
		all = append(all, &m.Service)
	}
	for _, db := range c.Postgres {
		all = append(all, &db.Service)
	}
	return all
}

// startAll starts what does not run, and waits for all.
func startAll(ctx context.Context, all []*Service) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, s := range all {
		wg.Go(func() {
			if !s.Alive() {
				errs[i] = s.Start(ctx)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// load reads who belongs to the cluster, or decides it.
func (c *Cluster) load() error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	s, err := ReadState(c.Dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && s.BootID != boot {
		s, err = readState(filepath.Join(c.Dir, membersFile))
	}
	if errors.Is(err, fs.ErrNotExist) {
		if s, err = c.invent(); err == nil {
			err = s.write(filepath.Join(c.Dir, membersFile))
		}
	}
	s.BootID = boot
	c.state = s
	return err
}

// invent makes up names and addresses.
func (c *Cluster) invent() (s State, err error) {
	free := ports{}
	addr := func() string {
		a, e := free.addr()
		err = errors.Join(err, e)
		return a
	}
	for i := range c.opt.Nodes {
		n := NodeState{Name: fmt.Sprintf("n%d", i+1), GRPC: addr(), HTTP: addr()}
		n.Listen = n.GRPC
		if c.opt.Proxied {
			n.Listen = addr()
		}
		s.Nodes = append(s.Nodes, n)
	}
	for i := range c.opt.Etcd {
		s.Etcd = append(s.Etcd, EtcdState{Name: fmt.Sprintf("e%d", i+1), Client: addr(), Peer: addr()})
	}
	for i := range c.opt.Postgres {
		port, e := free.next()
		err = errors.Join(err, e)
		s.Postgres = append(s.Postgres, PostgresState{Name: fmt.Sprintf("db%d", i+1), Port: port,
			DSN: fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", port, databaseName)})
	}
	return s, err
}

// build makes the services of the state, and their proxies.
func (c *Cluster) build() error {
	bin, err := pgtest.Binaries()
	if err != nil {
		return err
	}
	cred, err := pgtest.Credential()
	if err != nil {
		return err
	}
	for i := range c.state.Etcd {
		c.Etcd = append(c.Etcd, c.member(i))
	}
	for i := range c.state.Postgres {
		c.Postgres = append(c.Postgres, c.database(i, bin, cred))
	}
	for i := range c.state.Nodes {
		n, err := c.node(i)
		if err != nil {
			return err
		}
		c.Nodes = append(c.Nodes, n)
	}
	return nil
}

// running returns which processes run.
func (c *Cluster) running() map[Process]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[Process]bool{}
	for _, p := range c.state.processes() {
		if p.Alive() {
			out[*p] = true
		}
	}
	return out
}

// save writes state.json.
func (c *Cluster) save() error {
	return c.state.write(filepath.Join(c.Dir, stateFile))
}

// State returns what state.json holds.
func (c *Cluster) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.state.stopped()
	s.BootID = c.state.BootID
	for i, p := range s.processes() {
		*p = *c.state.processes()[i]
	}
	return s
}

// Close ends every process at once, as a crash would, and the proxies. The files stay.
func (c *Cluster) Close() error {
	c.closeProxies()
	return c.end(nil)
}

func (c *Cluster) closeProxies() {
	for _, n := range c.Nodes {
		n.Links.close()
	}
}

// end kills all but some, and Postgres by its own immediate shutdown: a killed postmaster leaves children.
func (c *Cluster) end(but map[Process]bool) error {
	s := c.State()
	var wg sync.WaitGroup
	var mu sync.Mutex // guards err
	var err error
	kill := func(p Process, sig syscall.Signal) {
		if !but[p] {
			wg.Go(func() {
				if e := p.end(sig, 10*time.Second); e != nil {
					mu.Lock()
					err = errors.Join(err, e)
					mu.Unlock()
				}
			})
		}
	}
	for _, n := range s.Nodes {
		kill(n.Process, syscall.SIGKILL)
	}
	for _, m := range s.Etcd {
		kill(m.Process, syscall.SIGKILL)
	}
	for _, db := range s.Postgres {
		kill(db.Process, syscall.SIGQUIT)
	}
	wg.Wait()
	if err == nil && len(but) == 0 {
		err = os.Remove(filepath.Join(c.Dir, stateFile))
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	return err
}
