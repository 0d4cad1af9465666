package fn_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headrace/headrace/fn"
	"github.com/headrace/headrace/task"
)

type form struct {
	Name  string         `json:"name"`
	Tags  map[string]int `json:"tags,omitempty"`
	Lines []string       `json:"lines"`
}

func TestJSONRoundTrip(t *testing.T) {
	f := fn.Define[form, *form]("render", fn.Options{Timeout: time.Minute})
	if err := f.Validate(); err != nil {
		t.Fatal(err)
	}
	in := form{Name: "ü", Tags: map[string]int{"z": 1, "a": 2, "m": 3}, Lines: []string{}}
	first, contentType, err := f.EncodeInput(in)
	if err != nil || contentType != "application/json" {
		t.Fatalf("%s, %v", contentType, err)
	}
	got, err := f.DecodeInput(first)
	if err != nil || fmt.Sprint(got) != fmt.Sprint(in) || got.Lines == nil {
		t.Errorf("decoded %+v, %v", got, err)
	}
	for range 20 {
		if again, _, _ := f.EncodeInput(in); !bytes.Equal(first, again) {
			t.Fatalf("the same value gave %s and %s: a repeated submit would look different", first, again)
		}
	}
	out, _, err := f.EncodeOutput(&in)
	if back, err2 := f.DecodeOutput(out); err != nil || err2 != nil || back.Name != "ü" {
		t.Errorf("result: %v, %v, %v", back, err, err2)
	}
	if f.Name() != "render" || f.Policy().Timeout != time.Minute {
		t.Errorf("%s, %+v", f.Name(), f.Policy())
	}
}

// Empty, null and zero-length are not confused (B079): bytes pass unchanged, and JSON without bytes is
// the zero value.
func TestEmptyPayloads(t *testing.T) {
	raw := fn.Raw("raw", fn.Options{})
	for _, p := range []string{"", "null", `""`, "[]", "{}", " ", "0", "false", "\xff", "\xef\xbb\xbf"} {
		payload, contentType, err := raw.EncodeInput([]byte(p))
		got, err2 := raw.DecodeInput(payload)
		if err != nil || err2 != nil || string(got) != p || contentType != "application/octet-stream" {
			t.Errorf("%q became %q (%s), %v, %v", p, got, contentType, err, err2)
		}
	}
	list := fn.Define[[]int, map[string]int]("list", fn.Options{})
	for payload, isNil := range map[string]bool{"": true, "null": true, "[]": false} {
		if got, err := list.DecodeInput([]byte(payload)); err != nil || len(got) != 0 || (got == nil) != isNil {
			t.Errorf("%q became %#v, %v", payload, got, err)
		}
	}
	if payload, _, err := list.EncodeInput([]int{}); err != nil || string(payload) != "[]" {
		t.Errorf("[] became %s, %v", payload, err)
	}
}

func TestOtherCodecs(t *testing.T) {
	f := fn.DefineCodec("f", fn.Text(), fn.Proto[*structpb.Value](), fn.Options{})
	if err := f.Validate(); err != nil {
		t.Fatal(err)
	}
	if p, _, err := f.EncodeInput(`say "hi"`); err != nil || string(p) != `say "hi"` {
		t.Errorf("text became %q, %v", p, err)
	}
	if _, _, err := f.EncodeInput("\xff"); err == nil {
		t.Error("text that is no UTF-8 was encoded")
	}
	if _, err := f.DecodeInput([]byte{0xff}); err == nil {
		t.Error("text that is no UTF-8 was decoded")
	}
	result, contentType, err := f.EncodeOutput(structpb.NewStringValue("x"))
	back, err2 := f.DecodeOutput(result)
	if err != nil || err2 != nil || back.GetStringValue() != "x" || contentType != "application/protobuf" {
		t.Errorf("proto became %v (%s), %v, %v", back, contentType, err, err2)
	}
	if _, err := f.DecodeOutput([]byte{0xff}); err == nil {
		t.Error("garbage was decoded as a message")
	}
}

// Errors name the function and never show the payload.
func TestCodecErrors(t *testing.T) {
	f := fn.Define[float64, struct{}]("half", fn.Options{})
	if _, _, err := f.EncodeInput(math.NaN()); err == nil || !strings.Contains(err.Error(), "input of half") {
		t.Errorf("NaN: %v", err)
	}
	_, err := f.DecodeInput([]byte(`"secret"`))
	if err == nil || !strings.Contains(err.Error(), "input of half (8 bytes)") || strings.Contains(err.Error(), "secret") {
		t.Errorf("wrong type: %v", err)
	}
}

func TestValidateNamesTheField(t *testing.T) {
	for _, c := range []struct {
		f     interface{ Validate() error }
		field string
	}{
		{fn.Function[int, int]{}, "function"},
		{fn.Define[int, int]("Upper", fn.Options{}), "function"},
		{fn.Define[int, int]("ok", fn.Options{MaxAttempts: 1001}), "policy.max_attempts"},
		{fn.Define[int, int]("ok", fn.Options{Backoff: fn.Backoff{Factor: 0.5}}), "policy.backoff.factor"},
	} {
		var fe *task.FieldError
		if err := c.f.Validate(); !errors.As(err, &fe) || fe.Field != c.field {
			t.Errorf("got %v, want an error for %s", err, c.field)
		}
	}
	if err := fn.DefineCodec("ok", fn.Codec[int]{}, fn.JSON[int](), fn.Options{}).Validate(); err == nil {
		t.Error("a codec without functions passed")
	}
	if err := fn.DefineCodec("ok", fn.Text(), fn.Codec[string]{ContentType: strings.Repeat("x", 256), Encode: fn.Text().Encode, Decode: fn.Text().Decode}, fn.Options{}).Validate(); err == nil {
		t.Error("a content type of 256 bytes passed")
	}
}
