package telemetry_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/headrace/headrace/internal/telemetry"
)

// Somebody calls his executor so that the log would show a line that nobody wrote. In both formats
// there is one record for one event, without control characters, of bounded length (B145).
func TestForgedLinesStayOneLine(t *testing.T) {
	evil := "x\r\n2026-01-01 ERROR forged\x1b[2J\u0085\u2028\u202e\x00" + strings.Repeat("y", 1<<20)
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		log, err := telemetry.NewLogger(&out, telemetry.LogConfig{Format: format})
		if err != nil {
			t.Fatal(err)
		}
		log.Info("executor connected", telemetry.Executor(evil), telemetry.Err(errors.New(evil)))
		got := out.String()
		if n := strings.Count(got, "\n"); n != 1 || !strings.HasSuffix(got, "\n") {
			t.Errorf("%s: %d line ends", format, n)
		}
		if strings.ContainsAny(strings.TrimSuffix(got, "\n"), "\r\n\x1b\x00\u0085\u2028\u202e") {
			t.Errorf("%s: control characters in %q", format, got)
		}
		if len(got) > 4*telemetry.MaxText {
			t.Errorf("%s: %d bytes", format, len(got))
		}
		if format == "json" {
			var m map[string]any
			if err := json.Unmarshal(out.Bytes(), &m); err != nil || m["msg"] != "executor connected" {
				t.Errorf("not a record: %v, %v", m, err)
			}
		}
	}
}

func TestEscapeKeepsWhatIsHarmless(t *testing.T) {
	for in, want := range map[string]string{"": "", "a b/ä😀": "a b/ä😀", "a\tb": `a\tb`, "\xff": `\xff`} {
		if got := telemetry.Escape(in); got != want {
			t.Errorf("Escape(%q) = %q, want %q", in, got, want)
		}
	}
}

// The level is obeyed, and a wrong setting says what would be right.
func TestLogConfig(t *testing.T) {
	var out bytes.Buffer
	log, err := telemetry.NewLogger(&out, telemetry.LogConfig{Level: "warn"})
	if err != nil {
		t.Fatal(err)
	}
	log.Info("quiet", zap.Int("n", 1))
	if out.Len() != 0 {
		t.Errorf("info was written at warn: %q", out.String())
	}
	for _, bad := range []telemetry.LogConfig{{Level: "loud"}, {Format: "xml"}} {
		if _, err := telemetry.NewLogger(&out, bad); err == nil || !strings.Contains(err.Error(), "want") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
