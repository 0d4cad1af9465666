package shardtest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/headrace/headrace/shard/member"
)

func put(key, value string, lease member.LeaseID) member.Op {
	return member.Op{Key: key, Value: []byte(value), Lease: lease}
}

// A transaction applies all or nothing, by revision, absence and lease.
func testKeys(t *testing.T, c *cluster) {
	ctx, kv := t.Context(), c.admin
	commit := func(want bool, txn member.Txn) int64 {
		t.Helper()
		ok, revision, err := kv.Commit(ctx, txn)
		if err != nil || ok != want {
			t.Fatalf("commit = %v, %v; want %v", ok, err, want)
		}
		return revision
	}
	lease, err := kv.Grant(ctx, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	absent := member.Cond{Key: "/k/a"}
	first := commit(true, member.Txn{If: []member.Cond{absent}, Then: []member.Op{put("/k/a", "1", lease), put("/k/b", "2", 0)}})
	commit(false, member.Txn{If: []member.Cond{absent}, Then: []member.Op{put("/k/a", "x", 0)}})
	commit(false, member.Txn{If: []member.Cond{{Key: "/k/a", Revision: first}, {Key: "/k/b", Revision: first + 1}}, Then: []member.Op{put("/k/a", "x", 0)}})
	commit(false, member.Txn{If: []member.Cond{{Key: "/k/b", Lease: lease}}, Then: []member.Op{put("/k/a", "x", 0)}})
	commit(false, member.Txn{If: []member.Cond{{Key: "/k/none", Lease: lease}}, Then: []member.Op{put("/k/a", "x", 0)}})
	second := commit(true, member.Txn{If: []member.Cond{{Key: "/k/a", Lease: lease}, {Key: "/k/b", Revision: first}},
		Then: []member.Op{{Key: "/k/b", Delete: true}, put("/k/c", "3", 0)}})
	if second <= first {
		t.Errorf("revisions %d, then %d", first, second)
	}
	items, revision, err := kv.List(ctx, "/k/")
	if err != nil || revision < second {
		t.Fatalf("list at %d: %v", revision, err)
	}
	got := fmt.Sprint(items)
	want := fmt.Sprint([]member.Item{{Key: "/k/a", Value: []byte("1"), Lease: lease, Revision: first, Writes: 1}, {Key: "/k/c", Value: []byte("3"), Revision: second, Writes: 1}})
	if got != want {
		t.Errorf("list = %s, want %s", got, want)
	}
	// The count of a key's writes grows with each, and begins anew when the key does.
	commit(true, member.Txn{Then: []member.Op{put("/k/c", "4", 0)}})
	commit(true, member.Txn{Then: []member.Op{put("/k/c", "5", 0)}})
	commit(true, member.Txn{Then: []member.Op{put("/k/b", "6", 0)}})
	for key, writes := range map[string]int64{"/k/b": 1, "/k/c": 3} {
		if items, _, err := kv.List(ctx, key); err != nil || len(items) != 1 || items[0].Writes != writes {
			t.Errorf("%s = %v, %v; want %d writes", key, items, err, writes)
		}
	}
}

// A lease that is not kept alive ends with all its keys, one that is doesn't; a dead one is told as such.
func testLeases(t *testing.T, c *cluster) {
	ctx, kv := t.Context(), c.admin
	grant := func(key string) member.LeaseID {
		id, err := kv.Grant(ctx, c.ttl)
		if err == nil {
			_, _, err = kv.Commit(ctx, member.Txn{Then: []member.Op{put(key, "", id)}})
		}
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	dies, lives, revoked := grant("/k/dies"), grant("/k/lives"), grant("/k/revoked")
	if err := kv.Revoke(ctx, revoked); err != nil {
		t.Fatal(err)
	}
	if err := kv.Revoke(ctx, revoked); err != nil {
		t.Errorf("second revoke: %v", err)
	}
	watch := kv.Watch(ctx, "/k/dies", 1)
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(patience)
	startedAt := time.Now()
	for gone := false; !gone; {
		select {
		case <-tick.C:
			if err := kv.KeepAlive(ctx, lives); err != nil {
				t.Fatal(err)
			}
		case changes := <-watch:
			gone = changes[0].Deleted
		case <-timeout:
			t.Fatal("a lease does not end")
		}
	}
	if d := time.Since(startedAt); d < c.ttl-100*time.Millisecond {
		t.Errorf("the lease ended after %v", d)
	}
	for _, id := range []member.LeaseID{dies, revoked} {
		if err := kv.KeepAlive(ctx, id); !errors.Is(err, member.ErrLeaseLost) {
			t.Errorf("keep alive of a dead lease = %v", err)
		}
		if _, _, err := kv.Commit(ctx, member.Txn{Then: []member.Op{put("/k/x", "", id)}}); !errors.Is(err, member.ErrLeaseLost) {
			t.Errorf("write on a dead lease = %v", err)
		}
	}
	items, _, err := kv.List(ctx, "/k/")
	if err != nil || len(items) != 1 || items[0].Key != "/k/lives" {
		t.Errorf("left over: %v, %v", items, err)
	}
}

// A watch gives what follows its revision, by transaction, and ends with its context.
func testWatch(t *testing.T, c *cluster) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	write := func(ops ...member.Op) int64 {
		_, revision, err := c.admin.Commit(ctx, member.Txn{Then: ops})
		if err != nil {
			t.Fatal(err)
		}
		return revision
	}
	write(put("/k/before", "", 0))
	from := write(put("/other", "", 0))
	watch := c.admin.Watch(ctx, "/k/", from)
	second := write(put("/k/a", "1", 0), put("/k/b", "2", 0), put("/other", "", 0))
	write(put("/other", "", 0))
	third := write(member.Op{Key: "/k/a", Delete: true})
	for _, want := range []string{
		fmt.Sprint([]member.Change{{Item: member.Item{Key: "/k/a", Value: []byte("1"), Revision: second, Writes: 1}}, {Item: member.Item{Key: "/k/b", Value: []byte("2"), Revision: second, Writes: 1}}}),
		fmt.Sprint([]member.Change{{Item: member.Item{Key: "/k/a", Revision: third}, Deleted: true}}),
	} {
		select {
		case got := <-watch:
			if fmt.Sprint(got) != want {
				t.Errorf("watch gave %v, want %v", got, want)
			}
		case <-time.After(patience):
			t.Fatal("the watch says nothing")
		}
	}
	cancel()
	for range watch { // must end
	}
}
