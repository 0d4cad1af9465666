package localcluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
)

// A Member is one etcd server.
type Member struct {
	Service
	Client string // host:port
	Data   string // its directory
}

func (c *Cluster) member(i int) *Member {
	s := &c.state.Etcd[i]
	m := &Member{Client: s.Client, Data: filepath.Join(c.Dir, s.Name)}
	var all []string
	for _, o := range c.state.Etcd {
		all = append(all, o.Name+"=http://"+o.Peer)
	}
	// The state says only at a member's first start that the cluster is new; its data know better later.
	args := []string{"--name", s.Name, "--data-dir", m.Data,
		"--listen-client-urls", "http://" + s.Client, "--advertise-client-urls", "http://" + s.Client,
		"--listen-peer-urls", "http://" + s.Peer, "--initial-advertise-peer-urls", "http://" + s.Peer,
		"--initial-cluster", strings.Join(all, ","), "--initial-cluster-state", "new", "--initial-cluster-token", "headrace-local",
		"--log-level", "warn"}
	m.Service = Service{Name: s.Name, c: c, proc: &s.Process, stop: syscall.SIGTERM, kill: syscall.SIGKILL,
		prepare: func(context.Context) (command, error) {
			return command{path: c.opt.EtcdServer, args: args, dir: c.Dir}, nil
		},
		serves: func(ctx context.Context) bool {
			var health struct {
				Health string `json:"health"`
			}
			return ask(ctx, http.MethodGet, "http://"+s.Client+"/health", &health) == nil && health.Health == "true"
		},
	}
	return m
}

// Leader returns the member that leads; an error when none is known.
func (c *Cluster) Leader(ctx context.Context) (*Member, error) {
	for _, m := range c.Etcd {
		var status struct {
			Header struct {
				MemberID string `json:"member_id"`
			} `json:"header"`
			Leader string `json:"leader"`
		}
		if !m.Alive() || ask(ctx, http.MethodPost, "http://"+m.Client+"/v3/maintenance/status", &status) != nil {
			continue
		}
		if status.Leader != "" && status.Leader == status.Header.MemberID {
			return m, nil
		}
	}
	return nil, fmt.Errorf("find etcd's leader: no member says that it leads")
}

// ask gets JSON.
func ask(ctx context.Context, method, url string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, askMax)
	defer cancel()
	var body io.Reader
	if method == http.MethodPost {
		body = strings.NewReader("{}")
	}
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, res.Status)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(text, into)
}
