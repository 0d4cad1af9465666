package shardtest

import (
	"cmp"
	"testing"
	"time"

	"github.com/headrace/headrace/shard/member"
)

// Run runs all cases on a kind of registry.
func Run(t *testing.T, s Subject) {
	cases := []struct {
		name string
		f    func(t *testing.T, c *cluster)
	}{
		{"Keys", testKeys},
		{"Leases", testLeases},
		{"Watch", testWatch},
		{"OneNodeOwnsAll", testOneNodeOwnsAll},
		{"CleanStopLeavesNothing", testCleanStop},
		{"SoleRestartWaitsForNothing", testSoleRestart},
		{"LostLease", testLostLease},
		{"LostLeaseAndSilentWatch", testLostLeaseAndSilentWatch},
		{"LostRaceForAKey", testLostRace},
		{"TwoNodesShare", testTwoNodesShare},
		{"DeadNode", testDeadNode},
		{"HoldsIsHonest", testHoldsIsHonest},
		{"TrustBase", testTrustBase},
		{"Isolated", testIsolated},
		{"UnhealthyNodeLosesItsLease", testUnhealthy},
		{"Reacquire", testReacquire},
		{"Release", testRelease},
		{"DeletedKeys", testDeletedKeys},
		{"Drain", testDrain},
		{"MorePartitions", testMorePartitions},
		{"SilentWatch", testSilentWatch},
		{"JoinDelay", testJoinDelay},
		{"Quarantine", testQuarantine},
		{"TenuresOfTheLiving", testTenuresOfTheLiving},
		{"Levels", testLevels},
		{"LevelRoseMeanwhile", testLevelRoseMeanwhile},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			body := func(t *testing.T) {
				connect := s.New(t)
				tc.f(t, &cluster{t: t, connect: connect, admin: connect(), ttl: cmp.Or(s.TTL, time.Second), slack: s.Slack})
			}
			if s.In == nil {
				t.Parallel() // most of it is waiting for leases
				body(t)
			} else {
				s.In(t, body)
			}
		})
	}
}

var _ member.KV = (*Gate)(nil)
