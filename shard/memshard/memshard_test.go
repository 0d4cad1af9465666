package memshard_test

import (
	"testing"
	"testing/synctest"

	"github.com/headrace/headrace/shard/member"
	"github.com/headrace/headrace/shard/memshard"
	"github.com/headrace/headrace/shard/shardtest"
)

// The twin keeps the same promises as etcd, in a bubble where leases run out in no time.
func TestConformance(t *testing.T) {
	shardtest.Run(t, shardtest.Subject{
		New: func(t *testing.T) func() member.KV {
			r := memshard.New()
			t.Cleanup(r.Close)
			return func() member.KV { return r.Connect() }
		},
		In: synctest.Test,
	})
}
