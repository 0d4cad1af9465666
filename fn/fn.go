// Package fn defines functions: a name, the types of input and result with their encoding, and the
// policies. A function is defined once, in a package that both sides import; client submits tasks for
// it, executor registers its handler, and the compiler checks that they agree.
//
//	var Render = fn.Define[Form, Report]("render", fn.Options{Timeout: time.Minute})
//
// Input and result are JSON by default; Raw is for functions that take and return plain bytes, and
// DefineCodec for any other encoding. The platform itself never looks into a payload.
//
// Definitions do nothing: no network, no registry. A wrong one is reported when it is first used, by
// Validate, which client.Submit and the executor's registration call.
package fn

import (
	"fmt"

	"github.com/headrace/headrace/task"
)

// Options are the policies of a function: its version, the timeout, attempts, back-off and so on. Zero
// fields mean the defaults that task.Policy names. Executors declare them; the newest Version wins.
type Options = task.Policy

// Backoff is the pause between attempts, a field of Options.
type Backoff = task.Backoff

// A Function is a named handler that a tenant registers, as both sides see it. The zero value is none:
// its Validate fails. A Function is immutable and can be used by many goroutines at once.
type Function[In, Out any] struct {
	name   string
	policy Options
	in     Codec[In]
	out    Codec[Out]
}

// Define returns the function of that name with JSON input and result. Names are 1-63 characters of
// a-z, 0-9, '.', '_' and '-', the first a letter or digit.
func Define[In, Out any](name string, opts Options) Function[In, Out] {
	return DefineCodec(name, JSON[In](), JSON[Out](), opts)
}

// Raw returns the function of that name whose input and result are bytes, passed as they are, with the
// content type application/octet-stream.
func Raw(name string, opts Options) Function[[]byte, []byte] {
	return DefineCodec(name, Bytes(), Bytes(), opts)
}

// DefineCodec returns the function of that name with encodings of your choice, such as Text, Proto or
// your own.
func DefineCodec[In, Out any](name string, in Codec[In], out Codec[Out], opts Options) Function[In, Out] {
	return Function[In, Out]{name: name, policy: opts, in: in, out: out}
}

// Name returns the function's name.
func (f Function[In, Out]) Name() string { return f.name }

// Policy returns the options as they were given, zero fields included.
func (f Function[In, Out]) Policy() task.Policy { return f.policy }

// Validate says what is wrong with the definition; its error wraps a *task.FieldError for the name and
// the policies.
func (f Function[In, Out]) Validate() error {
	if err := task.Name("function", f.name); err != nil {
		return err
	}
	if err := f.policy.Validate(); err != nil {
		return fmt.Errorf("function %s: %w", f.name, err)
	}
	for _, c := range []struct {
		field, contentType string
		ok                 bool
	}{
		{"input", f.in.ContentType, f.in.Encode != nil && f.in.Decode != nil},
		{"result", f.out.ContentType, f.out.Encode != nil && f.out.Decode != nil},
	} {
		if !c.ok {
			return fmt.Errorf("function %s: the codec of its %s lacks Encode or Decode", f.name, c.field)
		}
		if len(c.contentType) > task.MaxContentTypeLen {
			return fmt.Errorf("function %s: the content type of its %s has %d bytes, at most %d are possible",
				f.name, c.field, len(c.contentType), task.MaxContentTypeLen)
		}
	}
	return nil
}

// EncodeInput returns the payload for in and its content type.
func (f Function[In, Out]) EncodeInput(in In) (payload []byte, contentType string, err error) {
	payload, err = f.in.Encode(in)
	if err != nil {
		return nil, "", fmt.Errorf("encode input of %s: %w", f.name, err)
	}
	return payload, f.in.ContentType, nil
}

// DecodeInput reads a payload. An error means that it will never succeed: a handler can't be called.
func (f Function[In, Out]) DecodeInput(payload []byte) (In, error) {
	in, err := f.in.Decode(payload)
	if err != nil {
		return in, fmt.Errorf("decode input of %s (%d bytes): %w", f.name, len(payload), err)
	}
	return in, nil
}

// EncodeOutput returns the stored form of a handler's result and its content type.
func (f Function[In, Out]) EncodeOutput(out Out) (result []byte, contentType string, err error) {
	result, err = f.out.Encode(out)
	if err != nil {
		return nil, "", fmt.Errorf("encode result of %s: %w", f.name, err)
	}
	return result, f.out.ContentType, nil
}

// DecodeOutput reads a stored result.
func (f Function[In, Out]) DecodeOutput(result []byte) (Out, error) {
	out, err := f.out.Decode(result)
	if err != nil {
		return out, fmt.Errorf("decode result of %s (%d bytes): %w", f.name, len(result), err)
	}
	return out, nil
}
