package executor

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/headrace/headrace/task"
)

// HTTPError says what an HTTP answer of a downstream means for the task: nil below 400; Throttled for 429 and 503,
// with the answer's Retry-After (seconds or a date; clamped to 0 … 24 h); any other is a failure to be retried.
// downstream is as for Throttled. The body is neither read nor closed.
//
//	resp, err := http.DefaultClient.Do(req)
//	if err != nil {
//		return err
//	}
//	defer resp.Body.Close()
//	if err := executor.HTTPError(resp, "stripe"); err != nil {
//		return err
//	}
func HTTPError(resp *http.Response, downstream string) error {
	if resp.StatusCode < 400 {
		return nil
	}
	status := resp.Status
	if status == "" {
		status = strings.TrimSpace(fmt.Sprint(resp.StatusCode, " ", http.StatusText(resp.StatusCode)))
	}
	err := fmt.Errorf("http: %s", status)
	if resp.Request != nil && resp.Request.URL != nil {
		err = fmt.Errorf("http %s %s: %s", resp.Request.Method, resp.Request.URL.Host, status) // a path or query may hold secrets
	}
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return err
	}
	return Throttled(err, downstream, retryAfter(resp.Header))
}

// retryAfter reads Retry-After; 0: there is none. A date is compared with the answer's own, if it has one.
func retryAfter(h http.Header) time.Duration {
	text := strings.TrimSpace(h.Get("Retry-After"))
	if n, err := strconv.ParseUint(text, 10, 63); err == nil {
		return time.Duration(min(n, uint64(task.MaxRetryAfter/time.Second))) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return min(max(at.Sub(now), 0), task.MaxRetryAfter)
}
