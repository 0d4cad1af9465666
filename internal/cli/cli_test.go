package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/task"
)

func TestParseDuration(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"0":         0,
		"500ms":     500 * time.Millisecond,
		"2d":        48 * time.Hour,
		"1.5d":      36 * time.Hour,
		"1d12h30m":  36*time.Hour + 30*time.Minute,
		"3650d":     task.MaxDelay,
		"106751d":   106751 * 24 * time.Hour,
		"0d":        0,
		"1h30m0.5s": 90*time.Minute + 500*time.Millisecond,
	} {
		if got, err := parseDuration(in); err != nil || got != want {
			t.Errorf("%s: %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "d", "5", "-1s", "-1d", "1d-1h", "1h1d", "NaNd", "Infd", "106752d", "106751d23h59m", "1 d", "2d ", "ten"} {
		if got, err := parseDuration(in); err == nil {
			t.Errorf("%q gave %v", in, got)
		}
	}
}

func readAll(t *testing.T, file string, defaults client.Task) ([]client.Task, error) {
	t.Helper()
	r := newBatchReader(strings.NewReader(file), defaults)
	var all []client.Task
	for {
		one, err := r.next()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, one)
	}
}

// Lines override flags; a last line needs no end; empty lines are nothing.
func TestBatchFile(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	defaults := client.Task{Function: "f", ContentType: "text/plain", Options: client.Options{
		At: at, Band: client.BandLow, MaxAttempts: 2, Labels: map[string]string{"a": "1"},
	}}
	got, err := readAll(t, `{"payload":"ü\n\u0000","id":"x"}

  {"payload_base64":"/w==","delay":"1d","priority":0,"band":"high","labels":{"b":"2"}}
{"at":"2031-01-01T00:00:00Z","start_ttl":"90s","deadline":"2032-01-01T00:00:00+01:00","timeout":"5s","max_attempts":7,"labels":{"a":"3"},"content_type":""}`, defaults)
	if err != nil || len(got) != 3 {
		t.Fatalf("%d tasks, %v", len(got), err)
	}
	if g := got[0]; string(g.Payload) != "ü\n\x00" || g.ID != "x" || !g.At.Equal(at) || g.Band != client.BandLow || g.ContentType != "text/plain" || g.Labels["a"] != "1" {
		t.Errorf("first: %+v", g)
	}
	if g := got[1]; string(g.Payload) != "\xff" || g.Delay != 24*time.Hour || !g.At.IsZero() || *g.Priority != 0 || g.Band != client.BandHigh || len(g.Labels) != 2 {
		t.Errorf("second: %+v", g)
	}
	if g := got[2]; g.Payload != nil || g.StartTTL != 90*time.Second || g.Timeout != 5*time.Second || g.MaxAttempts != 7 || g.Labels["a"] != "3" ||
		!g.Deadline.Equal(time.Date(2031, 12, 31, 23, 0, 0, 0, time.UTC)) || g.ContentType != "" {
		t.Errorf("third: %+v", g)
	}
	if defaults.Labels["a"] != "1" || len(defaults.Labels) != 1 {
		t.Errorf("the defaults were changed: %v", defaults.Labels)
	}
}

// What is wrong is told with the line; the lines before are fine.
func TestBatchFileErrors(t *testing.T) {
	for line, want := range map[string]string{
		`{"payload":"x"} {"payload":"y"}`:            "one JSON object",
		`{"payload":{"a":1}}`:                        "payload",
		`["x"]`:                                      "JSON object",
		`{"paylaod":"x"}`:                            "paylaod",
		`{"payload":"x","payload_base64":""}`:        "exclude",
		`{"delay":"1s","at":"2030-01-01T00:00:00Z"}`: "exclude",
		`{"delay":"soon"}`:                           "delay",
		`{"at":"tomorrow"}`:                          "at",
		`{"priority":10}`:                            "priority",
		`{"priority":-1}`:                            "priority",
		`{"band":"urgent"}`:                          "band",
		`{"max_attempts":1001}`:                      "max_attempts",
		`{"id":"a\u0007"}`:                           "id",
		`{"labels":{"":"x"}}`:                        "labels",
		"{\"payload\":\"\xff\"}":                     "UTF-8",
		`{"payload":"x"`:                             "JSON",
		`{"delay":"9999d"}`:                          "delay",
	} {
		got, err := readAll(t, "{}\n\n"+line+"\n{}\n", client.Task{Function: "f"})
		if err == nil || !strings.HasPrefix(err.Error(), "line 3: ") || !strings.Contains(err.Error(), want) || len(got) != 1 {
			t.Errorf("%s: %d tasks, %v", line, len(got), err)
		}
		if isUsage(err) {
			t.Errorf("%s: counts as wrong usage", line)
		}
	}
	if _, err := readAll(t, `{"payload":"`+strings.Repeat("x", maxBatchLine)+`"}`, client.Task{Function: "f"}); err == nil {
		t.Error("a line without bound was read")
	}
}

// The names and forms that scripts rely on.
func TestTaskJSON(t *testing.T) {
	created := time.Date(2026, 1, 2, 3, 4, 5, 678_900_000, time.FixedZone("", 3600))
	info := &client.TaskInfo{
		ID: "a", Tenant: "t", Function: "f", State: task.Succeeded, Attempt: 2, MaxAttempts: 4, Band: client.BandNormal, Priority: 5,
		CreatedAt: created, Payload: []byte{0xff}, PayloadSize: 1, Result: []byte("<HELLO>"),
		Error: &client.TaskError{Class: task.Retryable, Message: "once\x1b[2J"}, Labels: map[string]string{"k": "v"},
	}
	var out bytes.Buffer
	a := &app{Streams: Streams{Out: &out}, output: "json"}
	if err := a.printTask(info); err != nil {
		t.Fatal(err)
	}
	want := `{"id":"a","client_id":"","tenant":"t","function":"f","state":"succeeded","attempt":2,"max_attempts":4,` +
		`"losses":0,"throttles":0,"snoozes":0,"partition":0,"priority":5,"band":"normal","created_at":"2026-01-02T02:04:05.678900Z",` +
		`"due_at":null,"started_at":null,"finished_at":null,"deadline":null,"payload":"/w==","payload_size":1,"content_type":"",` +
		`"labels":{"k":"v"},"result":"PEhFTExPPg==","result_text":"<HELLO>","error":{"class":"retryable","message":"once\u001b[2J"},` +
		`"wait_reason":"","cancel_requested":false,"token":"","progress":null}` + "\n"
	if out.String() != want {
		t.Errorf("got  %s\nwant %s", out.String(), want)
	}
	for _, c := range []struct {
		info   client.TaskInfo
		full   bool
		result string
	}{
		{client.TaskInfo{State: task.Succeeded}, true, `""`},
		{client.TaskInfo{State: task.Succeeded}, false, "null"},
		{client.TaskInfo{State: task.Failed}, true, "null"},
	} {
		b, err := json.Marshal(newTaskJSON(&c.info, c.full))
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]json.RawMessage
		if err := json.Unmarshal(b, &m); err != nil || string(m["result"]) != c.result {
			t.Errorf("%v, full %v: result %s", c.info.State, c.full, m["result"])
		}
		if _, has := m["result_text"]; has != (c.result == `""`) {
			t.Errorf("%v, full %v: result_text is there: %v", c.info.State, c.full, has)
		}
	}
}

// For people nothing from outside reaches the terminal unescaped (B145).
func TestTaskTextIsEscaped(t *testing.T) {
	evil := "x\x1b[2J\r\nINFO forged\u2028"
	var out bytes.Buffer
	a := &app{Streams: Streams{Out: &out}, output: "text"}
	err := a.printTask(&client.TaskInfo{
		ID: "a", ClientID: evil, Function: evil, WaitReason: evil, State: task.Succeeded, Payload: []byte(evil), PayloadSize: len(evil),
		Result: []byte(evil), Labels: map[string]string{evil: evil}, Error: &client.TaskError{Message: evil},
		Progress: &client.Progress{Message: evil},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"\x1b", "\r", "\nINFO", "\u2028"} {
		if strings.Contains(out.String(), bad) {
			t.Errorf("%q is in\n%s", bad, out.String())
		}
	}
}

func TestSeconds(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"30": 30 * time.Second, "0.5": 500 * time.Millisecond, "": 0, "soon": 0, "-1": 0, "NaN": 0, "Inf": 0, "retry in 3": 0,
	} {
		if got := seconds(in); got != want {
			t.Errorf("%q: %v, want %v", in, got, want)
		}
	}
	if _, err := parseRate("NaN"); err == nil {
		t.Error("NaN is a rate")
	}
	if r, err := parseRate("50/s"); err != nil || r != 50 {
		t.Errorf("50/s: %v, %v", r, err)
	}
}
