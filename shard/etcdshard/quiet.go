package etcdshard

import (
	"slices"
	"strings"

	"go.uber.org/zap/zapcore"
)

// noise is what etcd warns of in a healthy life here: its first moments in an empty directory, where two of
// its tasks run ahead of a third, and the revocation of leases that ran out, which is how we make sure of it.
var noise = []string{
	"cannot campaign at term",
	"Failed to detect schema version",
	"failed to update storage version",
	"failed to apply request",
}

// quietCore leaves noise out, below fatal.
type quietCore struct{ zapcore.Core }

func (c quietCore) With(fields []zapcore.Field) zapcore.Core { return quietCore{c.Core.With(fields)} }

func (c quietCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if e.Level <= zapcore.ErrorLevel && slices.ContainsFunc(noise, func(s string) bool { return strings.Contains(e.Message, s) }) {
		return ce
	}
	return c.Core.Check(e, ce)
}
