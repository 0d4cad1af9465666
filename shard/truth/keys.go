package truth

import (
	"strings"

	"github.com/headrace/headrace/shard/member"
)

// Root is what all keys of a cluster start with.
const Root = "/headrace/v1/"

const (
	ownPrefix  = Root + "config/"
	baseKey    = ownPrefix + "base"    // what is added to the count, in decimal
	changesKey = ownPrefix + "changes" // written with each change; its count of writes counts
	shardKeys  = Root + "shard"        // members, owners, assignment: made again by whoever is there
	catalogue  = member.DefaultPrefix + "partitions"
	level      = member.DefaultPrefix + "level" // stored rows may need it
	events     = Root + "placement/events/"     // a history, not configuration
)

// isConfig reports whether a key belongs to the configuration.
func isConfig(key string) bool {
	return key == catalogue || key == level || strings.HasPrefix(key, Root) && !strings.HasPrefix(key, ownPrefix) &&
		!strings.HasPrefix(key, shardKeys) && !strings.HasPrefix(key, events)
}

// lists reports whether a list of the prefix may hold configuration.
func lists(prefix string) bool {
	return isConfig(prefix) || strings.HasPrefix(catalogue, prefix) || strings.HasPrefix(Root, prefix)
}

// changes reports whether a transaction changes configuration.
func changes(txn member.Txn) bool {
	for _, op := range txn.Then {
		if op.Lease == 0 && isConfig(op.Key) {
			return true
		}
	}
	return false
}
