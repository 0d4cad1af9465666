package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/headrace/headrace/task"
)

// serverConfig is the file of `headrace server`. Each field's doc is what --print-defaults says of it.
type serverConfig struct {
	Name      string           `yaml:"name" doc:"For people, in lists and logs; the host's name by default."`
	Listen    string           `yaml:"listen" doc:"host:port for gRPC. Without API keys a loopback address; port 0 picks one."`
	HTTP      string           `yaml:"http" doc:"host:port for health and debug pages; off for none."`
	Advertise string           `yaml:"advertise_addr" doc:"host:port that other nodes, clients and executors reach this node by; the one it listens on by default."`
	Roles     []string         `yaml:"roles" doc:"api: takes requests for the whole cluster. dispatcher: owns partitions. Both by default."`
	Secret    string           `yaml:"secret" doc:"Keys shards and page tokens: 16 characters or more, the same on all nodes and for ever. By default the first node puts a random one into etcd, of which the first database keeps a copy; without both, page tokens and the shards that no placement records change."`
	Etcd      etcdConfig       `yaml:"etcd" doc:"Where the cluster's etcd is."`
	Databases []databaseConfig `yaml:"databases" doc:"The databases that hold the partitions, the same list on all nodes. One that is added gets its partitions once all nodes know it. At least one."`
	LeaseTTL  time.Duration    `yaml:"lease_ttl" doc:"A dead node's partitions move after this; whole seconds, 1s to 60s, the same on all nodes."`
	Drain     time.Duration    `yaml:"drain" doc:"How long a stop may take to hand partitions over; at most 1h."`
	Limits    limitsConfig     `yaml:"limits" doc:"Bounds of this node."`
	LogLevel  string           `yaml:"log_level" doc:"Least level of log lines on standard error: debug, info, warn or error."`
}

type etcdConfig struct {
	Endpoints []string `yaml:"endpoints" doc:"host:port of each member. Required, or dir."`
	Dir       string   `yaml:"dir" doc:"Instead of endpoints, for a cluster of one node: a directory for an etcd of one member within the node. It opens no port. Set secret too if the cluster may grow."`
	CAFile    string   `yaml:"ca_file" doc:"PEM file of the authority that signed the members' certificates; with it the connection is TLS."`
	CertFile  string   `yaml:"cert_file" doc:"PEM file of this node's certificate for etcd, with key_file."`
	KeyFile   string   `yaml:"key_file" doc:"PEM file of that certificate's key."`
	Username  string   `yaml:"username" doc:"For etcd's own authentication; none by default."`
	Password  string   `yaml:"password" doc:"For etcd's own authentication; better in the environment."`
}

type databaseConfig struct {
	Name       string `yaml:"name" doc:"The same on all nodes and for ever: the catalogue of partitions names it."`
	DSN        string `yaml:"dsn" doc:"postgres://USER:PASSWORD@HOST:PORT/DATABASE. Or HEADRACE_DATABASE_NAME_DSN in the environment, with NAME in capitals and _ for what is neither letter nor digit."`
	Zone       string `yaml:"zone" doc:"The failure domain, where several databases share one; the name by default."`
	Partitions int    `yaml:"partitions" doc:"How many partitions it holds at least, 1 to 1024. They are never taken away. 8 by default."`
	SizeLimit  int    `yaml:"size_limit" doc:"Bytes that the database may take, as Postgres does not tell how full its disk is: from 85 % of it on submits are refused, outcomes never. At least 67108864; 0, the default: no limit."`
}

type limitsConfig struct {
	MaxPayload  int `yaml:"max_payload" doc:"Largest payload and result in bytes; at most 16777216, the same on all nodes."`
	MemoryBytes int `yaml:"memory_bytes" doc:"What the process's memory stays within, softly. GOGC and GOMEMLIMIT win."`
}

func serverDefaults() serverConfig {
	return serverConfig{
		Listen: "127.0.0.1:7070", HTTP: "127.0.0.1:7071", Roles: []string{"api", "dispatcher"},
		LeaseTTL: 5 * time.Second, Drain: 5 * time.Second,
		Limits:   limitsConfig{MaxPayload: task.MaxPayload, MemoryBytes: 300 << 20},
		LogLevel: "info",
	}
}

// loadServerConfig reads a file and lays the environment over it. Its errors name the field, and the line
// where it is.
func loadServerConfig(path string, environ []string) (serverConfig, error) {
	cfg := serverDefaults()
	text, err := os.ReadFile(path)
	if err != nil {
		return cfg, fmt.Errorf("read the configuration: %w", err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return cfg, fmt.Errorf("%s: %s", path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(doc.Content) > 0 && doc.Content[0].Tag != "!!null" {
		if err := readYAML(reflect.ValueOf(&cfg).Elem(), doc.Content[0], ""); err != nil {
			return cfg, fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := readEnviron(reflect.ValueOf(&cfg).Elem(), "HEADRACE", environ); err != nil {
		return cfg, err
	}
	for i := range cfg.Databases {
		db := &cfg.Databases[i]
		if s, ok := lookup(environ, "HEADRACE_DATABASE_"+envName(db.Name)+"_DSN"); ok {
			db.DSN = s
		}
	}
	return cfg, cfg.check()
}

// check finds what dispatcher.Config.Validate does not see.
func (c *serverConfig) check() error {
	if (len(c.Etcd.Endpoints) == 0) == (c.Etcd.Dir == "") {
		return &task.FieldError{Field: "etcd.endpoints", Want: "at least one host:port, or etcd.dir for a cluster of one node"}
	}
	if (c.Etcd.CertFile == "") != (c.Etcd.KeyFile == "") {
		return &task.FieldError{Field: "etcd.cert_file", Value: c.Etcd.CertFile, Want: "both cert_file and key_file, or none"}
	}
	if c.Secret != "" && len(c.Secret) < 16 {
		return &task.FieldError{Field: "secret", Want: "at least 16 characters"}
	}
	if len(c.Databases) == 0 {
		return &task.FieldError{Field: "databases", Want: "at least one"}
	}
	for i, db := range c.Databases {
		if db.DSN == "" {
			return &task.FieldError{Field: fmt.Sprintf("databases[%d].dsn", i), Want: "a postgres:// URL, here or in the environment"}
		}
		if db.SizeLimit != 0 && db.SizeLimit < 64<<20 {
			return &task.FieldError{Field: fmt.Sprintf("databases[%d].size_limit", i), Value: fmt.Sprint(db.SizeLimit), Want: "at least 67108864, or 0 for none"}
		}
	}
	if c.LeaseTTL < time.Second || c.LeaseTTL > time.Minute || c.LeaseTTL%time.Second != 0 {
		return &task.FieldError{Field: "lease_ttl", Value: c.LeaseTTL.String(), Want: "whole seconds from 1s to 60s"}
	}
	if c.Limits.MemoryBytes < 1<<20 {
		return &task.FieldError{Field: "limits.memory_bytes", Value: fmt.Sprint(c.Limits.MemoryBytes), Want: "at least 1048576"}
	}
	return nil
}

// fields calls f for each field of a struct with the name that the file has for it.
func fields(v reflect.Value, f func(name, doc string, v reflect.Value) error) error {
	for i := range v.NumField() {
		t := v.Type().Field(i)
		if err := f(t.Tag.Get("yaml"), t.Tag.Get("doc"), v.Field(i)); err != nil {
			return err
		}
	}
	return nil
}

var errFound = errors.New("found")

// readYAML reads a node into a value; at is its field, for people.
func readYAML(v reflect.Value, n *yaml.Node, at string) error {
	wrong := func(want string) error {
		return fmt.Errorf("line %d: %s: want %s", n.Line, at, want)
	}
	switch v.Kind() {
	case reflect.Struct:
		if n.Kind != yaml.MappingNode {
			if at == "" {
				return fmt.Errorf("line %d: want fields, one a line", n.Line)
			}
			return wrong("fields, one a line")
		}
		seen := map[string]bool{}
		for i := 0; i < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			name := strings.TrimPrefix(at+"."+key.Value, ".")
			if seen[key.Value] {
				return fmt.Errorf("line %d: %s is there twice", key.Line, name)
			}
			seen[key.Value] = true
			err := fields(v, func(field, _ string, f reflect.Value) error {
				if field != key.Value {
					return nil
				}
				if err := readYAML(f, value, name); err != nil {
					return err
				}
				return errFound
			})
			switch {
			case err == nil:
				return fmt.Errorf("line %d: there is no field %s (headrace server --print-defaults lists them)", key.Line, name)
			case !errors.Is(err, errFound):
				return err
			}
		}
		return nil
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			return wrong("a list")
		}
		list := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
		for i, item := range n.Content {
			if err := readYAML(list.Index(i), item, fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
		v.Set(list)
		return nil
	}
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		return wrong(wanted(v))
	}
	if err := setText(v, n.Value); err != nil {
		return fmt.Errorf("line %d: %s: %w", n.Line, at, err)
	}
	return nil
}

// wanted says what a scalar takes.
func wanted(v reflect.Value) string {
	switch {
	case v.Type() == reflect.TypeFor[time.Duration]():
		return "a duration such as 5s"
	case v.Kind() == reflect.Int:
		return "a whole number"
	}
	return "a text"
}

func setText(v reflect.Value, s string) error {
	var err error
	switch {
	case v.Type() == reflect.TypeFor[time.Duration]():
		var d time.Duration
		d, err = time.ParseDuration(s)
		v.SetInt(int64(d))
	case v.Kind() == reflect.Int:
		var n int64
		n, err = strconv.ParseInt(s, 10, 64)
		v.SetInt(n)
	default:
		v.SetString(s)
	}
	if err != nil {
		return fmt.Errorf("%q given, want %s", s, wanted(v))
	}
	return nil
}

// readEnviron lays HEADRACE_… over the fields: capitals, _ between a field and its inner one, lists of texts with
// commas.
func readEnviron(v reflect.Value, prefix string, environ []string) error {
	return fields(v, func(name, _ string, f reflect.Value) error {
		key := prefix + "_" + envName(name)
		if f.Kind() == reflect.Struct {
			return readEnviron(f, key, environ)
		}
		s, ok := lookup(environ, key)
		switch {
		case !ok:
			return nil
		case f.Kind() != reflect.Slice:
			if err := setText(f, s); err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
		case f.Type().Elem().Kind() == reflect.String:
			f.Set(reflect.ValueOf(strings.Split(s, ",")))
		default:
			return fmt.Errorf("%s: a list of %s is for the file", key, name)
		}
		return nil
	})
}

func lookup(environ []string, key string) (string, bool) {
	i := slices.IndexFunc(environ, func(e string) bool { return strings.HasPrefix(e, key+"=") })
	if i < 0 {
		return "", false
	}
	return environ[i][len(key)+1:], true
}

func envName(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, strings.ToUpper(name))
}

// printDefaults writes a file with every field, its doc and its default.
func printDefaults(w io.Writer) error {
	cfg := serverDefaults()
	cfg.Databases = []databaseConfig{{Name: "db1", DSN: "postgres://headrace@127.0.0.1:5432/headrace", Partitions: 8}}
	cfg.Etcd.Endpoints = []string{"127.0.0.1:2379"}
	var b strings.Builder
	b.WriteString("# headrace server --config FILE. Every field with its default; databases and etcd.endpoints are examples.\n" +
		"# HEADRACE_LISTEN, HEADRACE_ETCD_ENDPOINTS=a:1,b:2, HEADRACE_LIMITS_MAX_PAYLOAD … in the environment win.\n")
	_ = printFields(&b, reflect.ValueOf(cfg), "") // it never fails
	_, err := io.WriteString(w, b.String())
	return err
}

func printFields(b *strings.Builder, v reflect.Value, indent string) error {
	inner := strings.Repeat(" ", len(indent)) // an item of a list has its dash in the first line only
	lead := indent
	return fields(v, func(name, doc string, f reflect.Value) error {
		if inner == "" {
			b.WriteByte('\n')
		}
		comment(b, inner, doc)
		switch {
		case f.Kind() == reflect.Struct:
			fmt.Fprintf(b, "%s%s:\n", lead, name)
			_ = printFields(b, f, inner+"  ")
		case f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.Struct:
			fmt.Fprintf(b, "%s%s:\n", lead, name)
			for i := range f.Len() {
				_ = printFields(b, f.Index(i), inner+"  - ")
			}
		case f.Kind() == reflect.Slice:
			fmt.Fprintf(b, "%s%s: [%s]\n", lead, name, strings.Join(f.Interface().([]string), ", "))
		case f.Kind() == reflect.String:
			fmt.Fprintf(b, "%s%s: %q\n", lead, name, f.String())
		default:
			fmt.Fprintf(b, "%s%s: %v\n", lead, name, f.Interface())
		}
		lead = inner
		return nil
	})
}

// comment writes text as lines of at most 100 characters.
func comment(b *strings.Builder, indent, text string) {
	line := indent + "#"
	for word := range strings.FieldsSeq(text) {
		if len(line)+1+len(word) > 100 {
			b.WriteString(line + "\n")
			line = indent + "#"
		}
		line += " " + word
	}
	b.WriteString(line + "\n")
}
