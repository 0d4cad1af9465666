package member

import (
	"sync"
	"time"

	"go.uber.org/zap"
)

// logEvery is how often the same cause may be logged: a registry that is down for an hour is one fact.
const logEvery = 10 * time.Second

// limitedLog logs each cause at most once in logEvery and counts what it left out.
type limitedLog struct {
	*zap.Logger
	mu   sync.Mutex // guards following
	last map[string]*cause
}

type cause struct {
	at      time.Time
	omitted int
}

func newLimitedLog(l *zap.Logger) *limitedLog {
	return &limitedLog{Logger: l, last: map[string]*cause{}}
}

// warn logs under a cause; causes are constants, so the map stays small.
func (l *limitedLog) warn(why, msg string, fields ...zap.Field) {
	l.mu.Lock()
	c := l.last[why]
	if c == nil {
		c = &cause{}
		l.last[why] = c
	}
	now := time.Now()
	if !c.at.IsZero() && now.Sub(c.at) < logEvery {
		c.omitted++
		l.mu.Unlock()
		return
	}
	omitted := c.omitted
	c.at, c.omitted = now, 0
	l.mu.Unlock()
	l.Warn(msg, append(fields, zap.Int("omitted", omitted))...)
}
