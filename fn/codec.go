package fn

import (
	"encoding/json"
	"errors"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
)

// A Codec turns values of T into bytes and back. Encode must give the same bytes for the same value
// each time: a task that is submitted again under its own id is compared by its payload.
type Codec[T any] struct {
	ContentType string // MIME type, at most 255 bytes; informative, Decode goes by the bytes alone
	Encode      func(T) ([]byte, error)
	Decode      func([]byte) (T, error) // may keep the bytes; must not change them
}

// JSON encodes as package encoding/json does, content type application/json. Zero bytes decode to the
// zero value of T: a function without input can be called without a payload.
func JSON[T any]() Codec[T] {
	return Codec[T]{
		ContentType: "application/json",
		Encode:      func(v T) ([]byte, error) { return json.Marshal(v) },
		Decode: func(b []byte) (v T, err error) {
			if len(b) > 0 {
				err = json.Unmarshal(b, &v)
			}
			return v, err
		},
	}
}

// Bytes passes bytes as they are, content type application/octet-stream. Nil and empty are the same:
// the platform stores a length and bytes, no null.
func Bytes() Codec[[]byte] {
	same := func(b []byte) ([]byte, error) { return b, nil }
	return Codec[[]byte]{ContentType: "application/octet-stream", Encode: same, Decode: same}
}

// errNotUTF8 is what Text refuses.
var errNotUTF8 = errors.New("not UTF-8")

// Text passes strings as they are, without quotes, content type text/plain; charset=utf-8. What is not
// valid UTF-8 is refused on both sides.
func Text() Codec[string] {
	return Codec[string]{
		ContentType: "text/plain; charset=utf-8",
		Encode: func(s string) ([]byte, error) {
			if !utf8.ValidString(s) {
				return nil, errNotUTF8
			}
			return []byte(s), nil
		},
		Decode: func(b []byte) (string, error) {
			if !utf8.Valid(b) {
				return "", errNotUTF8
			}
			return string(b), nil
		},
	}
}

// Proto encodes protocol buffers in their binary form, content type application/protobuf. M is a
// pointer to a generated message.
func Proto[M proto.Message]() Codec[M] {
	return Codec[M]{
		ContentType: "application/protobuf",
		Encode:      func(m M) ([]byte, error) { return proto.MarshalOptions{Deterministic: true}.Marshal(m) },
		Decode: func(b []byte) (M, error) {
			var none M
			m := none.ProtoReflect().New().Interface().(M)
			return m, proto.Unmarshal(b, m)
		},
	}
}
