package etcdshard

import (
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/shard/shardtest"
)

func embedded(t *testing.T, dir string) *Embedded {
	t.Helper()
	e, err := StartEmbedded(t.Context(), EmbeddedConfig{Dir: dir, Logger: zaptest.NewLogger(t, zaptest.Level(zap.WarnLevel))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return e
}

// The embedded server keeps the promises that membership needs, in real time.
func TestConformance(t *testing.T) {
	shardtest.Run(t, shardtest.Subject{
		TTL: 2 * time.Second, Slack: 3 * time.Second,
		New: func(t *testing.T) func() member.KV {
			e := embedded(t, filepath.Join(t.TempDir(), "etcd"))
			return func() member.KV { return e.KV() }
		},
	})
}
