package api

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	headracev1 "github.com/headrace/headrace/proto/headrace/v1"
	"github.com/headrace/headrace/store"
)

// ListLogs returns what handlers logged, of ended tries from the row, of the running one from its owner.
func (s *Tasks) ListLogs(ctx context.Context, req *headracev1.ListLogsRequest) (*headracev1.ListLogsResponse, error) {
	id, err := s.resolve(ctx, req.Tenant, req.Task)
	if err != nil {
		return nil, err
	}
	t, v, err := s.read(ctx, req.Tenant, id)
	if err != nil {
		return nil, err
	}
	res := &headracev1.ListLogsResponse{}
	for _, y := range t.Tries {
		res.Truncated = res.Truncated || y.LogTruncated
		for _, text := range y.LogLines {
			res.Lines = append(res.Lines, logLine(y, text))
		}
	}
	if v != nil {
		res.Lines = append(res.Lines, v.LogLines...)
	}
	return res, nil
}

// logLine reads what core.LogText wrote: time, level, message. Of a line that somebody else wrote, the
// text is the message.
func logLine(y store.Try, text string) *headracev1.LogLine {
	at, rest, _ := strings.Cut(text, " ")
	level, message, ok := strings.Cut(rest, " ")
	when, err := time.Parse(time.RFC3339Nano, at)
	if err != nil || !ok {
		return &headracev1.LogLine{Attempt: uint32(y.Attempt), LogTime: stamp(y.EndedAt), Level: "info", Message: text}
	}
	return &headracev1.LogLine{Attempt: uint32(y.Attempt), LogTime: timestamppb.New(when), Level: level, Message: message}
}
