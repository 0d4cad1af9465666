package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"
	"unicode/utf8"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/task"
)

// maxBatchLine bounds a line of a batch file in bytes: the largest payload, with every byte escaped.
const maxBatchLine = 6*task.MaxPayloadConfig + 1<<20

// A batchLine is one task in a batch file. Payload is text; PayloadBase64 is for bytes that are none.
type batchLine struct {
	Payload       *string           `json:"payload"`
	PayloadBase64 []byte            `json:"payload_base64"`
	ContentType   *string           `json:"content_type"`
	ID            string            `json:"id"`
	Delay         string            `json:"delay"`
	At            string            `json:"at"`
	Priority      *uint8            `json:"priority"`
	Band          string            `json:"band"`
	StartTTL      string            `json:"start_ttl"`
	Deadline      string            `json:"deadline"`
	MaxAttempts   *int              `json:"max_attempts"`
	Timeout       string            `json:"timeout"`
	Labels        map[string]string `json:"labels"`
}

// A batchReader reads tasks from newline-delimited JSON, one at a time.
type batchReader struct {
	in       *bufio.Reader
	defaults client.Task // what a line does not say
	line     int         // number of the line that was read last, from 1
	offset   int64       // bytes read
}

func newBatchReader(r io.Reader, defaults client.Task) *batchReader {
	return &batchReader{in: bufio.NewReaderSize(r, 64<<10), defaults: defaults}
}

// next returns the next task; io.EOF after the last one. Empty lines are skipped. Other errors name the line.
func (b *batchReader) next() (client.Task, error) {
	for {
		raw, err := b.readLine()
		if err != nil {
			return client.Task{}, err
		}
		if raw = bytes.TrimSpace(raw); len(raw) == 0 {
			continue
		}
		t, err := b.parse(raw)
		if err != nil {
			return client.Task{}, fmt.Errorf("line %d: %v", b.line, err) // the file is wrong, not the usage
		}
		return t, nil
	}
}

func (b *batchReader) readLine() ([]byte, error) {
	var line []byte
	for {
		part, err := b.in.ReadSlice('\n')
		line = append(line, part...)
		b.offset += int64(len(part))
		switch {
		case len(line) > maxBatchLine:
			return nil, fmt.Errorf("line %d: more than %d MiB", b.line+1, maxBatchLine>>20)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err == io.EOF && len(line) > 0, err == nil:
			b.line++
			return line, nil
		default:
			return nil, err
		}
	}
}

func (b *batchReader) parse(raw []byte) (client.Task, error) {
	if !utf8.Valid(raw) { // encoding/json would replace what is wrong, silently
		return client.Task{}, errors.New("not UTF-8; bytes go into payload_base64")
	}
	var l batchLine
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields() // a misspelt field would be a task that runs at the wrong time
	if err := dec.Decode(&l); err != nil {
		return client.Task{}, fmt.Errorf("want a JSON object: %w", err)
	}
	if dec.InputOffset() != int64(len(raw)) {
		return client.Task{}, errors.New("want one JSON object a line")
	}
	t := b.defaults
	switch {
	case l.Payload != nil && l.PayloadBase64 != nil:
		return t, errors.New("payload and payload_base64 exclude each other")
	case l.Payload != nil:
		t.Payload = []byte(*l.Payload)
	default:
		t.Payload = l.PayloadBase64
	}
	if l.ContentType != nil {
		t.ContentType = *l.ContentType
	}
	t.ID = l.ID
	if err := l.due(&t); err != nil {
		return t, err
	}
	var err error
	if l.Priority != nil {
		t.Priority = l.Priority
	}
	if l.Band != "" {
		t.Band = client.Band(l.Band)
	}
	if l.StartTTL != "" {
		if t.StartTTL, err = parseDuration(l.StartTTL); err != nil {
			return t, fmt.Errorf("start_ttl: %w", err)
		}
	}
	if l.Timeout != "" {
		if t.Timeout, err = parseDuration(l.Timeout); err != nil {
			return t, fmt.Errorf("timeout: %w", err)
		}
	}
	if l.Deadline != "" {
		if t.Deadline, err = parseTime(l.Deadline); err != nil {
			return t, fmt.Errorf("deadline: %w", err)
		}
	}
	if l.MaxAttempts != nil {
		t.MaxAttempts = *l.MaxAttempts
	}
	if len(l.Labels) > 0 {
		labels := maps.Clone(t.Labels)
		if labels == nil {
			labels = map[string]string{}
		}
		maps.Copy(labels, l.Labels)
		t.Labels = labels
	}
	return t, checkTask(t)
}

// due sets when t is due, if the line says so.
func (l *batchLine) due(t *client.Task) (err error) {
	switch {
	case l.Delay != "" && l.At != "":
		return errors.New("delay and at exclude each other")
	case l.Delay != "":
		t.At = time.Time{}
		if t.Delay, err = parseDuration(l.Delay); err != nil {
			return fmt.Errorf("delay: %w", err)
		}
	case l.At != "":
		t.Delay = 0
		if t.At, err = parseTime(l.At); err != nil {
			return fmt.Errorf("at: %w", err)
		}
	}
	return nil
}
