package cli

import (
	"bytes"
	"encoding/json"
	"time"
)

// writeJSON writes v as one line.
func (a *app) writeJSON(v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b) // ends the line; buffered, so that a line is one write
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := a.Out.Write(b.Bytes())
	return err
}

// jsonTime is RFC 3339 in UTC with microseconds; the zero time is null.
type jsonTime time.Time

func (t jsonTime) MarshalJSON() ([]byte, error) {
	if time.Time(t).IsZero() {
		return []byte("null"), nil
	}
	return []byte(time.Time(t).UTC().Format(`"2006-01-02T15:04:05.000000Z"`)), nil
}

// clock shows a time to people: the local time of the day, with the date if it is another day.
func clock(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	t, now = t.Local(), now.Local()
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return t.Format("15:04:05.000")
	}
	return t.Format("2006-01-02 15:04:05")
}
