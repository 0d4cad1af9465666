package task

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of what a client may send (design: names, payload, ids, labels, batches). Each is part of
// the public contract: one more is refused with a FieldError that names the field and the range.
const (
	MaxNameLen        = 63
	MaxClientIDLen    = 256
	MaxPayload        = 1 << 20 // default; a server may allow up to MaxPayloadConfig
	MaxPayloadConfig  = 16 << 20
	MaxContentTypeLen = 255
	MaxErrorText      = 8 << 10
	MaxLabels         = 16
	MaxLabelKeyLen    = 63
	MaxLabelValueLen  = 255
	MaxBatchItems     = 1000
	MaxBatchBytes     = 4 << 20
	MaxPriority       = 9
	DefaultPriority   = 5
	MaxAttemptsLimit  = 1000
	MaxDelay          = 10 * 365 * 24 * time.Hour
	MaxTimeout        = 365 * 24 * time.Hour
	MaxCheckpoint     = 64 << 10
	MaxLogBytes       = 64 << 10 // per attempt; the oldest lines are dropped
	MaxTraceState     = 512
	MaxWatches        = 10_000 // open waits of a tenant
)

// A FieldError says which field of a request is wrong and what would be right. The door maps it
// to INVALID_ARGUMENT.
type FieldError struct {
	Field string // as in the API, such as "function" or "labels[3].key"
	Value string // what was given, shortened; empty when it would not help
	Want  string // the accepted range in words
}

func (e *FieldError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("%s: want %s", e.Field, e.Want)
	}
	return fmt.Sprintf("%s: %s given, want %s", e.Field, Shorten(e.Value), e.Want)
}

// Shorten returns s quoted, control characters escaped, cut after 64 bytes: fit for logs and errors.
func Shorten(s string) string {
	const most = 64
	if len(s) <= most {
		return fmt.Sprintf("%q", s)
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return fmt.Sprintf("%q…(%d bytes)", s[:cut], len(s))
}

// Name checks the name of a tenant, function, downstream or pool: [a-z0-9]([a-z0-9._-]{0,62}).
func Name(field, s string) error {
	ok := len(s) >= 1 && len(s) <= MaxNameLen
	for i := 0; ok && i < len(s); i++ {
		c := s[i]
		ok = c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || i > 0 && (c == '.' || c == '_' || c == '-')
	}
	if !ok {
		return &FieldError{Field: field, Value: s, Want: "1-63 characters of a-z, 0-9, '.', '_', '-', the first a letter or digit"}
	}
	return nil
}

// ClientID checks a task id given by a client: 1-256 bytes of UTF-8 without control characters.
func ClientID(field, s string) error {
	if len(s) < 1 || len(s) > MaxClientIDLen || !utf8.ValidString(s) || strings.ContainsFunc(s, isControl) {
		return &FieldError{Field: field, Value: s, Want: "1-256 bytes of UTF-8 without control characters"}
	}
	return nil
}

func isControl(r rune) bool {
	return r < 0x20 || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029
}

// Labels checks labels: at most 16, keys of 1-63 bytes, values of at most 255 bytes, UTF-8 without
// control characters.
func Labels(labels map[string]string) error {
	if len(labels) > MaxLabels {
		return &FieldError{Field: "labels", Value: fmt.Sprintf("%d labels", len(labels)), Want: "at most 16"}
	}
	for k, v := range labels {
		if len(k) < 1 || len(k) > MaxLabelKeyLen || !utf8.ValidString(k) || strings.ContainsFunc(k, isControl) {
			return &FieldError{Field: "labels", Value: k, Want: "keys of 1-63 bytes of UTF-8 without control characters"}
		}
		if len(v) > MaxLabelValueLen || !utf8.ValidString(v) || strings.ContainsFunc(v, isControl) {
			return &FieldError{Field: "labels", Value: k, Want: "values of at most 255 bytes of UTF-8 without control characters"}
		}
	}
	return nil
}

// Duration checks that d is in [low, high].
func Duration(field string, d, low, high time.Duration) error {
	if d < low || d > high {
		return &FieldError{Field: field, Value: d.String(), Want: fmt.Sprintf("%v to %v", low, high)}
	}
	return nil
}

// CutError returns text as valid UTF-8 of at most MaxErrorText bytes; what is cut is marked, and a
// NUL, which Postgres can't hold, is written as its escape.
func CutError(text string) string {
	const mark = "… (cut)"
	cut := len(text) > 2*MaxErrorText
	if cut {
		text = text[:2*MaxErrorText] // bounds the work below
	}
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\ufffd"), "\x00", `\x00`)
	if !cut && len(text) <= MaxErrorText {
		return text
	}
	at := min(len(text), MaxErrorText-len(mark))
	for at > 0 && at < len(text) && !utf8.RuneStart(text[at]) {
		at--
	}
	return text[:at] + mark
}
