package executor

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/task"
)

func TestHTTPError(t *testing.T) {
	const date = "Mon, 30 Nov 2026 12:00:00 GMT"
	for _, c := range []struct {
		code   int
		after  string
		throws bool // a failure at all
		thr    bool
		want   time.Duration
	}{
		{200, "", false, false, 0},
		{302, "5", false, false, 0},
		{404, "5", true, false, 0},
		{500, "", true, false, 0},
		{429, "", true, true, 0},
		{429, "7", true, true, 7 * time.Second},
		{503, "Mon, 30 Nov 2026 12:00:30 GMT", true, true, 30 * time.Second},
		{503, "Mon, 30 Nov 2026 11:00:30 GMT", true, true, 0},
		{503, "soon", true, true, 0},
		{429, "-1", true, true, 0},
		{429, "99999999999999999999", true, true, 0},
		{429, "9999999999999", true, true, 24 * time.Hour},
	} {
		rec := httptest.NewRecorder()
		rec.Header().Set("Date", date)
		if c.after != "" {
			rec.Header().Set("Retry-After", c.after)
		}
		rec.WriteHeader(c.code)
		resp := rec.Result()
		resp.Request = httptest.NewRequest("POST", "https://api.example/pay?key=secret", nil)
		err := HTTPError(resp, "pay")
		if (err != nil) != c.throws {
			t.Errorf("%d: %v", c.code, err)
			continue
		}
		if err == nil {
			continue
		}
		if !strings.Contains(err.Error(), "api.example") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%d reads %q", c.code, err)
		}
		r := classify(err)
		if (r.Class == task.Throttled) != c.thr || r.RetryAfter != c.want || c.thr && r.Downstream != "pay" {
			t.Errorf("%d with Retry-After %q is %v after %v of %q, want throttled %v after %v", c.code, c.after, r.Class, r.RetryAfter, r.Downstream, c.thr, c.want)
		}
	}
}
