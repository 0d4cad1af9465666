package localcluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// State says who belongs to a cluster and, in state.json, which processes run.
type State struct {
	BootID   string          `json:"boot_id,omitempty"` // of the machine: process ids mean nothing after a reboot
	Nodes    []NodeState     `json:"nodes"`
	Etcd     []EtcdState     `json:"etcd"`
	Postgres []PostgresState `json:"postgres"`
}

// Process is one process; a PID of 0: it does not run.
type Process struct {
	PID int `json:"pid"`
	// Started is its start time in clock ticks since boot, which tells it from a later process of that id.
	Started int64 `json:"started,omitempty"`
}

// NodeState is one node of Headrace.
type NodeState struct {
	Name string `json:"name"`
	Process
	GRPC string `json:"grpc"` // host:port for clients and executors
	HTTP string `json:"http"` // host:port of health and debug pages
	// Listen is where its gRPC really is when GRPC is a proxy's.
	Listen string `json:"listen,omitempty"`
}

// EtcdState is one etcd member.
type EtcdState struct {
	Name string `json:"name"`
	Process
	Client string `json:"client"` // host:port for clients
	Peer   string `json:"peer"`   // host:port for the other members
}

// PostgresState is one Postgres server.
type PostgresState struct {
	Name string `json:"name"`
	Process
	DSN  string `json:"dsn"`
	Port int    `json:"port"`
}

// Names of the files.
const (
	membersFile = "cluster.json"
	stateFile   = "state.json"
)

// ReadState reads state.json of a cluster's directory; fs.ErrNotExist when none was started there.
func ReadState(dir string) (State, error) { return readState(filepath.Join(dir, stateFile)) }

func readState(path string) (s State, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("read %s: %w", path, err)
	}
	return s, nil
}

// write replaces a file as a whole: a reader sees the old or the new text.
func (s State) write(path string) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// stopped is the same cluster with no process.
func (s State) stopped() State {
	s.BootID = ""
	s.Nodes, s.Etcd, s.Postgres = append([]NodeState{}, s.Nodes...), append([]EtcdState{}, s.Etcd...), append([]PostgresState{}, s.Postgres...)
	for _, p := range s.processes() {
		*p = Process{}
	}
	return s
}

// processes are all of them, in the order in which they are ended.
func (s *State) processes() (all []*Process) {
	for i := range s.Nodes {
		all = append(all, &s.Nodes[i].Process)
	}
	for i := range s.Etcd {
		all = append(all, &s.Etcd[i].Process)
	}
	for i := range s.Postgres {
		all = append(all, &s.Postgres[i].Process)
	}
	return all
}

// Running reports whether every process runs.
func (s State) Running() bool {
	boot, err := bootID()
	if err != nil || s.BootID != boot {
		return false
	}
	for _, p := range s.processes() {
		if !p.Alive() {
			return false
		}
	}
	return true
}

// bootID names this run of the machine.
func bootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", errors.Join(errors.New("a local cluster needs Linux's /proc"), err)
	}
	return strings.TrimSpace(string(text)), nil
}
