package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/localcluster"
)

// steps runs the commands of docs/operating/restore.md, and no others.
type steps struct {
	t   *testing.T
	doc string
	env []string
}

// run runs a command that is a line of the page and returns its standard output.
func (s *steps) run(line string) string {
	s.t.Helper()
	if !strings.Contains(s.doc, line) {
		s.t.Fatalf("docs/operating/restore.md does not say %q", line)
	}
	return s.also(line)
}

// also runs a command of somebody who is no operator.
func (s *steps) also(line string) string {
	s.t.Helper()
	out, err := s.try(line)
	if err != nil {
		s.t.Fatalf("%s: %v", line, err)
	}
	return out
}

func (s *steps) try(line string) (string, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	var out, errs bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = s.env, &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, errs.Bytes())
	}
	return strings.TrimSpace(out.String()), nil
}

// clusterStatus is what `headrace cluster status` says.
type clusterStatus struct {
	Held      bool   `json:"held"`
	Etcd      uint64 `json:"etcd_version"`
	Databases []struct {
		Seen   uint64 `json:"seen_version"`
		Copied uint64 `json:"copied_version"`
		Error  string `json:"error"`
	} `json:"databases"`
	Unowned []uint32 `json:"partitions_without_owner"`
}

// status waits until what `headrace cluster status` says is as it should be.
func (s *steps) status(what string, is func(clusterStatus) bool) clusterStatus {
	s.t.Helper()
	var st clusterStatus
	s.eventually(what, func() bool {
		out, err := s.try("headrace -o json cluster status")
		return err == nil && json.Unmarshal([]byte(out), &st) == nil && is(st)
	})
	if !strings.Contains(s.doc, "headrace cluster status") {
		s.t.Fatal("docs/operating/restore.md does not say how to look")
	}
	return st
}

// agreed is a cluster that is well.
func agreed(s clusterStatus) bool {
	ok := !s.Held && len(s.Unowned) == 0 && s.Databases[0].Copied == s.Etcd
	for _, d := range s.Databases {
		ok = ok && d.Seen == s.Etcd && d.Error == ""
	}
	return ok
}

func (s *steps) eventually(what string, is func() bool) {
	s.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !is(); <-tick.C {
		if time.Now().After(end) {
			s.t.Fatalf("not within a minute: %s", what)
		}
	}
}

// snapshot asks etcd for one, as `etcdctl snapshot save` does.
func snapshot(t *testing.T, endpoint, file string) {
	t.Helper()
	res, err := http.Post("http://"+endpoint+"/v3/maintenance/snapshot", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var all []byte
	for d := json.NewDecoder(res.Body); ; {
		var m struct {
			Result struct {
				Blob []byte `json:"blob"`
			} `json:"result"`
			Error json.RawMessage `json:"error"`
		}
		if err := d.Decode(&m); err == io.EOF {
			break
		} else if err != nil || m.Error != nil {
			t.Fatalf("snapshot: %v %s", err, m.Error)
		}
		all = append(all, m.Result.Blob...)
	}
	if err := os.WriteFile(file, all, 0o600); err != nil {
		t.Fatal(err)
	}
}

// The steps of docs/operating/restore.md, one after the other on one cluster: etcd from an older snapshot, etcd lost, the
// first database from an older backup.
func TestRestoreSteps(t *testing.T) {
	root, err := localcluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	etcdutl, err := localcluster.BuildEtcdutl(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(filepath.Join(root, "docs", "operating", "restore.md"))
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	for name, path := range map[string]string{"headrace": headrace, "etcdutl": etcdutl} {
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	c := localcluster.ForTest(t, localcluster.Options{Nodes: 2, Etcd: 1, Postgres: 2, Partitions: 4, TTL: 2 * time.Second, Headrace: headrace, EtcdServer: etcdServer})
	file := filepath.Join(bin, "snapshot")
	s := &steps{t: t, doc: string(doc), env: append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "HEADRACE_ADDR="+c.Nodes[0].GRPC,
		"HEADRACE_TENANT=acme", "ETCD="+c.Etcd[0].Client, "ETCD_DATA="+c.Etcd[0].Data, "SNAPSHOT="+file)}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	worker := exec.Command(headrace, "worker", "--function", "echo", "--slots", "4", "--", "cat")
	worker.Env = s.env
	must(worker.Start())
	t.Cleanup(func() { worker.Process.Kill(); worker.Wait() })
	// submit stores a task, as often as it takes, and returns its id.
	submit := func(id string) string {
		t.Helper()
		var task struct{ ID string }
		s.eventually("submit "+id, func() bool {
			out, err := s.try("headrace -o json submit echo --payload hello --id " + id)
			return err == nil && json.Unmarshal([]byte(out), &task) == nil
		})
		return task.ID
	}
	get := func(id string) (task struct {
		State      string `json:"state"`
		WaitReason string `json:"wait_reason"`
	}) {
		t.Helper()
		must(json.Unmarshal([]byte(s.also("headrace -o json task get "+id)), &task))
		return task
	}
	ends := func(id string) {
		t.Helper()
		s.eventually(id+" succeeds", func() bool { return get(id).State == "succeeded" })
	}
	draining := func() (n int) {
		t.Helper()
		return strings.Count(s.also("headrace -o json partition list"), `"intake":"draining"`)
	}

	first := submit("order-1")
	ends(first)
	s.status("all agree at first", agreed)
	snapshot(t, c.Etcd[0].Client, file)
	s.also("headrace partition drain 3")
	was := s.status("the copies know of the drain", agreed)

	t.Log("etcd from an older snapshot")
	must(c.Etcd[0].Stop())
	s.run(`mv "$ETCD_DATA" "$ETCD_DATA.old"`)
	s.run(`etcdutl snapshot restore "$SNAPSHOT" --data-dir "$ETCD_DATA"`)
	must(c.Etcd[0].Start(t.Context()))
	st := s.status("pushes are held", func(s clusterStatus) bool { return s.Held && len(s.Unowned) == 0 })
	if st.Etcd >= was.Etcd {
		t.Errorf("etcd's version %d is not behind %d", st.Etcd, was.Etcd)
	}
	held := submit("order-2")
	s.eventually("it says why it waits", func() bool { return strings.Contains(get(held).WaitReason, "accept-restore") })
	s.eventually("both nodes raise the alarm", func() bool {
		return strings.Count(s.also("headrace -o json node list"), `"kind":"registry_behind"`) == 2
	})
	if _, err := s.try("headrace partition drain 4"); err == nil {
		t.Error("the catalogue can be changed meanwhile")
	}
	s.run("headrace cluster accept-restore --from database")
	s.status("all agree again", agreed)
	ends(held)
	if n := draining(); n != 1 {
		t.Errorf("%d partitions drain, want the one of after the snapshot", n)
	}

	t.Log("etcd lost")
	must(c.Etcd[0].Stop())
	must(os.RemoveAll(c.Etcd[0].Data + ".old"))
	s.run(`mv "$ETCD_DATA" "$ETCD_DATA.old"`)
	must(c.Etcd[0].Start(t.Context()))
	s.status("pushes are held", func(s clusterStatus) bool { return s.Held })
	s.run("headrace cluster accept-restore --from database")
	s.status("all agree again", agreed)
	if n := draining(); n != 1 {
		t.Errorf("%d partitions drain, want 1", n)
	}
	if again := submit("order-1"); again != first {
		t.Errorf("the client id was accepted again: %s, was %s", again, first)
	}
	ends(submit("order-3"))

	t.Log("the first database from an older backup")
	db := c.Postgres[0]
	s.status("all agree", agreed)
	must(db.Stop())
	s.also("cp -a " + db.Data + " " + db.Data + ".backup")
	must(db.Start(t.Context()))
	s.also("headrace partition activate 3")
	var lost []string
	for i := range 5 {
		lost = append(lost, submit(fmt.Sprint("lost-", i)))
		ends(lost[i])
	}
	s.status("the copies know of the change", agreed)
	must(db.Stop())
	s.also("rm -rf " + db.Data)
	s.also("mv " + db.Data + ".backup " + db.Data)
	must(db.Start(t.Context()))
	s.status("all agree, and the copies are made again", agreed)
	if n := draining(); n != 0 {
		t.Errorf("%d partitions drain, want none", n)
	}
	for i := range 5 {
		ends(submit(fmt.Sprint("lost-", i))) // the same one if the other database has it
		ends(submit(fmt.Sprint("new-", i)))
	}
	ends(first)
}
