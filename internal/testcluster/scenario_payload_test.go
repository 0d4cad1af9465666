package testcluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/executor"
	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/internal/faketime"
	"github.com/headrace/headrace/internal/testcluster"
	"github.com/headrace/headrace/task"
)

// odd is what has broken platforms that look into payloads.
func odd() map[string][]byte {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	list := map[string][]byte{
		"absent": nil, "empty": {}, "NUL": {0}, "NULs": make([]byte, 1000), "0xFF": {0xff}, "BOM": {0xef, 0xbb, 0xbf}, "every byte": all,
		"1 MiB": bytes.Repeat([]byte{0xfe, 0, '\n', 'x'}, 1<<18), "deep": bytes.Repeat([]byte("["), 1<<20),
	}
	for _, text := range []string{"null", `""`, "[]", "{}", " ", "0", "false", `{"a":"\u0000"}`, `{"\u0000":[{"\u0000":"\u0000"}]}`, `"\ud800"`, "a\r\nb",
		"\x1b[2J", "caf\u00e9", "cafe\u0301", "</script><script>", "\u2028", strings.Repeat("x", 7999), strings.Repeat("x", 8000), strings.Repeat("x", 8001), strings.Repeat("y", 64<<10)} {
		list[fmt.Sprintf("%.30q of %d", text, len(text))] = []byte(text)
	}
	return list
}

// Any bytes arrive at the handler as they were submitted, and its result at the caller as it was returned:
// pushed at once, delayed over a crash of the node, retried, and snoozed with a checkpoint (B008, B079).
func TestScenarioPayloadBytesAreKept(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		c.Executor(20, "acme", func(x *executor.Executor) {
			quick := fn.Options{Backoff: fn.Backoff{Base: time.Second, Max: time.Second}}
			echo := func(_ context.Context, tk *executor.Task) (executor.Result, error) {
				return executor.Result{Body: tk.Payload, ContentType: tk.ContentType}, nil
			}
			x.HandleRaw("echo", quick, echo)
			x.HandleRaw("retried", quick, func(ctx context.Context, tk *executor.Task) (executor.Result, error) {
				if tk.Attempt == 1 {
					return executor.Result{}, errors.New(string(tk.Payload)) // as error text too
				}
				return echo(ctx, tk)
			})
			x.HandleRaw("checkpoint", quick, func(ctx context.Context, tk *executor.Task) (executor.Result, error) {
				if tk.Checkpoint == nil && len(tk.Payload) > 0 {
					if err := executor.Checkpoint(ctx, tk.Payload[:min(len(tk.Payload), task.MaxCheckpoint)]); err != nil {
						return executor.Result{}, err
					}
					return executor.Result{}, executor.Snooze(time.Second)
				}
				if !bytes.HasPrefix(tk.Payload, tk.Checkpoint) {
					return executor.Result{}, executor.NonRetryable(errors.New("another checkpoint"))
				}
				return echo(ctx, tk)
			})
		})
		cl := c.Client("acme")
		type sent struct {
			id, way string
			payload []byte
		}
		var all []sent
		began := time.Now()
		for name, payload := range odd() {
			for way, tk := range map[string]client.Task{
				"at once": {Function: "echo"}, "retried": {Function: "retried"}, "checkpoint": {Function: "checkpoint"},
				"delayed": {Function: "echo", Options: client.Options{Delay: 10 * time.Second}},
			} {
				tk.Payload, tk.ContentType = payload, "text/x-odd; name=\"é\""
				tk.Labels = map[string]string{"k": "é\u200d"}
				id := submit(t, cl, tk)
				if way == "delayed" {
					if info := get(t, cl, id); !bytes.Equal(info.Payload, payload) || info.PayloadSize != len(payload) {
						t.Errorf("%s: stored as %.40q", name, info.Payload)
					}
				}
				all = append(all, sent{id, name + ", " + way, payload})
			}
		}
		faketime.Pass(5*time.Second - time.Since(began)) // of the bubble
		for _, s := range all {
			if !strings.HasSuffix(s.way, "delayed") {
				if info := get(t, cl, s.id); info.State != task.Succeeded {
					t.Errorf("%s: %v after 5 s, %v", s.way, info.State, info.Error)
				}
			}
		}
		c.Kill()
		c.Start()
		for _, s := range all {
			info := wait(t, cl, s.id)
			if info.State != task.Succeeded || !bytes.Equal(info.Result, s.payload) || info.ResultContentType != "text/x-odd; name=\"é\"" || info.Labels["k"] != "é\u200d" {
				t.Errorf("%s: %v, %v, %d bytes %.40q of %q", s.way, info.State, info.Error, len(info.Result), info.Result, info.ResultContentType)
			}
		}
		nothingRuns(t, c, "acme")
	})
}

// A text field takes no control characters; an error text of any bytes is kept as text, its task ends (B008).
func TestScenarioTextFields(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		c.Executor(20, "acme", func(x *executor.Executor) {
			raw(x, "fail", fn.Options{}, func(_ context.Context, tk *executor.Task) ([]byte, error) {
				return nil, executor.NonRetryable(errors.New(string(tk.Payload)))
			})
		})
		cl := c.Client("acme")
		for _, bad := range []string{"a\x00b", "\xff", "a\nb", "\x1b[2J", "\u0085"} {
			for field, o := range map[string]client.Options{"label": {Labels: map[string]string{"k": bad}}, "label key": {Labels: map[string]string{bad: "v"}}, "id": {ID: bad}} {
				var fe *task.FieldError
				if s, err := cl.Submit(t.Context(), client.Task{Function: "fail", Options: o}); !errors.As(err, &fe) {
					t.Errorf("%s %q: %+v, %v", field, bad, s, err)
				}
			}
		}
		for name, text := range odd() {
			id := submit(t, cl, client.Task{Function: "fail", Payload: text})
			began := time.Now()
			info := wait(t, cl, id)
			if took := time.Since(began); info.State != task.Failed || took > 2*time.Second {
				t.Errorf("%s: %v after %v", name, info.State, took)
			}
			m := info.Error.Message
			if !utf8.ValidString(m) || strings.ContainsRune(m, 0) || len(m) > task.MaxErrorText {
				t.Errorf("%s: the error text is %.60q of %d bytes", name, m, len(m))
			}
			if plain := string(text); len(plain) > 0 && len(plain) <= 8000 && utf8.ValidString(plain) && !strings.ContainsRune(plain, 0) && m != plain {
				t.Errorf("%s: the error text became %.60q", name, m)
			}
			if as := attempts(t, cl, id); len(as) != 1 || as[0].Error == nil || as[0].Error.Message != m {
				t.Errorf("%s: %d tries, %+v", name, len(as), as)
			}
		}
	})
}

// What a handler can't decode is one failure, reported at once and not retried; the executor goes on (B078).
func TestScenarioUndecodableInput(t *testing.T) {
	testcluster.Run(t, func(t *testing.T, c *testcluster.Cluster) {
		type in struct{ N int }
		typed := fn.Define[in, int]("typed", fn.Options{})
		c.Executor(1, "acme", func(x *executor.Executor) {
			executor.Handle(x, typed, func(_ context.Context, v in) (int, error) { return v.N, nil })
		})
		cl := c.Client("acme")
		for _, p := range []string{"abc", `{"n":"x"}`, `{"n":`, `{"n":1}{`, "\x08\x96\x01", "[]", "\x00", `{"n":1e999}`} {
			began := time.Now()
			id := submit(t, cl, client.Task{Function: "typed", Payload: []byte(p), ContentType: "application/protobuf"})
			good, err := client.Submit(t.Context(), cl, typed, in{7}, client.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if n, err := good.Wait(t.Context()); err != nil || n != 7 {
				t.Errorf("after %q: %d, %v", p, n, err)
			}
			info := wait(t, cl, id)
			if info.State != task.Failed || info.Error.Class != task.NonRetryable || !strings.Contains(info.Error.Message, "decode error") || info.Attempt != 1 {
				t.Errorf("%q: %v at attempt %d, %v", p, info.State, info.Attempt, info.Error)
			}
			if took := time.Since(began); took > time.Second || len(attempts(t, cl, id)) != 1 {
				t.Errorf("%q: %d tries in %v", p, len(attempts(t, cl, id)), took)
			}
		}
	})
}
