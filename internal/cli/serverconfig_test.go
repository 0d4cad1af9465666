package cli

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func configFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "headrace.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const minimal = "etcd: {endpoints: [127.0.0.1:2379]}\ndatabases: [{name: db1, dsn: 'postgres://x'}]\n"

// What --print-defaults prints is a configuration, and it is that of an empty file.
func TestPrintedDefaultsAreTheDefaults(t *testing.T) {
	var b strings.Builder
	if err := printDefaults(&b); err != nil {
		t.Fatal(err)
	}
	printed, err := loadServerConfig(configFile(t, b.String()), nil)
	if err != nil {
		t.Fatal(err)
	}
	want, err := loadServerConfig(configFile(t, minimal), nil)
	if err != nil {
		t.Fatal(err)
	}
	want.Databases, want.Etcd.Endpoints = printed.Databases, printed.Etcd.Endpoints // examples
	if !reflect.DeepEqual(printed, want) {
		t.Errorf("printed %+v\nwithout a file %+v", printed, want)
	}
	if n := strings.Count(b.String(), "  # "); n < 13 {
		t.Errorf("%d inner fields with a doc", n)
	}
}

// A wrong field is an error that names it, and its line.
func TestWrongFieldsAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		minimal + "listne: x":                              "line 3: there is no field listne",
		minimal + "limits:\n  max_payload: lots":           `line 4: limits.max_payload: "lots" given, want a whole number`,
		minimal + "lease_ttl: 5":                           `line 3: lease_ttl: "5" given, want a duration such as 5s`,
		minimal + "lease_ttl: 1500ms":                      "lease_ttl",
		minimal + "roles: api":                             "line 3: roles: want a list",
		minimal + "roles: [api]\nroles: [api]":             "roles is there twice",
		minimal + "listen: {a: b}":                         "line 3: listen: want a text",
		minimal + "listen:":                                "line 3: listen: want a text",
		minimal + "secret: short":                          "secret: ",
		"etcd: {endpoints: [a:1]}":                         "databases: ",
		"etcd: {endpoints: [a:1], dir: x}":                 "etcd.endpoints",
		"etcd: {endpoint: [a:1]}":                          "line 1: there is no field etcd.endpoint ",
		"databases: [{name: a, dsn: 'postgres://x'}]":      "etcd.endpoints",
		"etcd: {endpoints: [a:1]}\ndatabases: [{nam: a}]":  "line 2: there is no field databases[0].nam ",
		"etcd: {endpoints: [a:1]}\ndatabases: [{name: a}]": "databases[0].dsn",
		"etcd: {endpoints: [a:1]}\ndatabases: [{name: a, dsn: 'postgres://x', size_limit: 7}]": "databases[0].size_limit",
		"- a":  "line 1: want fields",
		"a: [": "line 1: ",
	} {
		if _, err := loadServerConfig(configFile(t, text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := opener("a", "mysql://user:geheim@host/db", 0, nil); err == nil || strings.Contains(err.Error(), "geheim") {
		t.Errorf("a wrong dsn: %v", err)
	}
}

// The environment wins over the file.
func TestEnvironmentWins(t *testing.T) {
	cfg, err := loadServerConfig(configFile(t, minimal+"listen: 127.0.0.1:1"), []string{
		"HEADRACE_LISTEN=127.0.0.1:2", "HEADRACE_ETCD_ENDPOINTS=a:1,b:2", "HEADRACE_LIMITS_MAX_PAYLOAD=17", "HEADRACE_DRAIN=9s",
		"HEADRACE_DATABASE_DB1_DSN=postgres://y", "HEADRACE_ADDR=not ours",
	})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Listen != "127.0.0.1:2" || !reflect.DeepEqual(cfg.Etcd.Endpoints, []string{"a:1", "b:2"}) || cfg.Limits.MaxPayload != 17 ||
		cfg.Drain != 9*time.Second || cfg.Databases[0].DSN != "postgres://y" {
		t.Errorf("%+v", cfg)
	}
	if _, err := loadServerConfig(configFile(t, minimal), []string{"HEADRACE_DRAIN=soon"}); err == nil || !strings.Contains(err.Error(), "HEADRACE_DRAIN") {
		t.Errorf("a wrong variable: %v", err)
	}
}
