package member

import (
	"strconv"
	"strings"

	"github.com/headrace/headrace/shard"
)

// DefaultPrefix is where a cluster's membership lives. Other things of the cluster (placements,
// overrides, pause rules) are its neighbours, so that nobody here has to watch them.
const DefaultPrefix = "/headrace/v1/shard/"

// DefaultHands is where the tasks are noted that owners of quarantined partitions handle, one key a partition. It
// is not below DefaultPrefix: nobody watches it.
const DefaultHands = "/headrace/v1/hands/"

// keys builds the paths; the value of each is JSON, to be read with etcdctl.
type keys string

func (k keys) members() string               { return string(k) + "members/" }             // /headrace/v1/shard/members/
func (k keys) member(id shard.NodeID) string { return k.members() + string(id) }           // …members/<id>          shard.Node
func (k keys) leader() string                { return string(k) + "leader" }               // …leader                id
func (k keys) level() string                 { return string(k) + "level" }                // …level                 {level}
func (k keys) joins() string                 { return string(k) + "joins" }                // …joins                 the id of who joined last
func (k keys) tenures() string               { return string(k) + "tenures/" }             // …tenures/
func (k keys) tenure(p uint32) string        { return k.tenures() + formatUint(p) }        // …tenures/<partition>   shard.Tenure
func (k keys) partitions() string            { return string(k) + "partitions" }           // …partitions            [shard.Partition]
func (k keys) assignment() string            { return string(k) + "assignment" }           // …assignment            {version, nodes: id → [partition]}
func (k keys) owners() string                { return string(k) + "owners/" }              // …owners/
func (k keys) owner(partition uint32) string { return k.owners() + formatUint(partition) } // …owners/<partition>    id
func (k keys) epoch(partition uint32) string { // beside the prefix, so that nobody watches them: the highest epoch, in decimal
	return strings.TrimSuffix(string(k), "/") + "-epochs/" + formatUint(partition)
}
func formatUint(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
func parseUint(s string) (n uint32, err error) {
	u, err := strconv.ParseUint(s, 10, 32)
	return uint32(u), err
}
