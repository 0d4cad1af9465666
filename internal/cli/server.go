package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/dispatcher"
	"github.com/headrace/headrace/internal/telemetry"
	"github.com/headrace/headrace/internal/version"
	"github.com/headrace/headrace/shard/etcdshard"
)

func newServer(a *app) *cobra.Command {
	file, print := "", false
	c := &cobra.Command{
		Use:   "server --config FILE",
		Short: "Run a node of a cluster, on etcd and Postgres",
		Long: `Server runs one node of a cluster. Membership and ownership are in etcd, tasks in the databases that the
configuration lists. Any node takes any request; one that stops hands its partitions over. A single node needs
no etcd of its own: etcd.dir names a directory for one within it.

--print-defaults prints a configuration with every field and what it means. Each can be overridden in the
environment: HEADRACE_LISTEN, HEADRACE_ETCD_ENDPOINTS, HEADRACE_DATABASE_NAME_DSN.

With -o json the first line of standard output says where the node is, once it is ready:
{"ready":true,"grpc":"…","http":"…","pid":…}.`,
		Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if print {
				return printDefaults(a.Out)
			}
			if file == "" {
				return usagef("--config is required")
			}
			cfg, err := loadServerConfig(file, os.Environ())
			if err != nil {
				return usageError{err}
			}
			return a.server(c.Context(), cfg)
		},
	}
	c.Flags().StringVar(&file, "config", "", "YAML `file`")
	c.Flags().BoolVar(&print, "print-defaults", false, "print a configuration with every field and its default")
	return c
}

func (a *app) server(ctx context.Context, cfg serverConfig) (err error) {
	format := "text"
	if a.json() {
		format = "json"
	}
	log, err := telemetry.NewLogger(a.Err, telemetry.LogConfig{Level: cfg.LogLevel, Format: format})
	if err != nil {
		return usageError{fmt.Errorf("log_level: %w", err)}
	}
	node := dispatcher.Config{
		Name: cfg.Name, Version: version.String(), Listen: cfg.Listen, HTTP: cfg.HTTP, Advertise: cfg.Advertise, Roles: cfg.Roles,
		Secret: cfg.Secret, TTL: cfg.LeaseTTL, Drain: cfg.Drain, MaxPayload: cfg.Limits.MaxPayload, MemoryBytes: int64(cfg.Limits.MemoryBytes),
		Logger: log,
	}
	if node.Name == "" {
		node.Name, _ = os.Hostname() // for people: without one there is none
	}
	for _, db := range cfg.Databases {
		open, err := opener(db.Name, db.DSN, int64(db.SizeLimit), log)
		if err != nil {
			return usageError{err}
		}
		node.Databases = append(node.Databases, dispatcher.Database{Name: db.Name, Zone: db.Zone, Partitions: db.Partitions, Open: open})
	}
	if cfg.Etcd.Dir != "" {
		node.EtcdDir = cfg.Etcd.Dir
		return a.runNode(ctx, "server", node)
	}
	secure, err := cfg.Etcd.tls()
	if err != nil {
		return usageError{err}
	}
	kv, err := etcdshard.Dial(etcdshard.ClientConfig{Endpoints: cfg.Etcd.Endpoints, TLS: secure,
		Username: cfg.Etcd.Username, Password: cfg.Etcd.Password, Logger: log})
	if err != nil {
		return usageError{err}
	}
	defer func() { err = errors.Join(err, kv.Close()) }()
	node.Registry = kv
	return a.runNode(ctx, "server", node)
}

// tls returns what the connection to etcd is secured with; nil: nothing.
func (e etcdConfig) tls() (*tls.Config, error) {
	if e.CAFile == "" && e.CertFile == "" {
		return nil, nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if e.CAFile != "" {
		pem, err := os.ReadFile(e.CAFile)
		if err != nil {
			return nil, fmt.Errorf("etcd.ca_file: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("etcd.ca_file: %s holds no certificate", e.CAFile)
		}
	}
	if e.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(e.CertFile, e.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("etcd.cert_file: %w", err)
		}
		cfg.Certificates = []tls.Certificate{cert}
	}
	return cfg, nil
}
