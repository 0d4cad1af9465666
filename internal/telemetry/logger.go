package telemetry

import (
	"fmt"
	"io"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// LogConfig says what a logger writes. The zero value is info and above as text.
type LogConfig struct {
	Level  string // debug, info, warn or error; "" is info
	Format string // text (for people) or json (for machines); "" is text
}

// NewLogger returns a logger that writes to w, which need not be safe for concurrent use. Its error
// names the field of cfg that is wrong and what it may be.
func NewLogger(w io.Writer, cfg LogConfig) (*zap.Logger, error) {
	level := zapcore.InfoLevel
	if cfg.Level != "" {
		if err := level.UnmarshalText([]byte(cfg.Level)); err != nil {
			return nil, fmt.Errorf("log level %q: want debug, info, warn or error", cfg.Level)
		}
	}
	enc := zap.NewProductionEncoderConfig()
	enc.TimeKey, enc.MessageKey, enc.LevelKey, enc.NameKey = "time", "msg", "level", "part"
	enc.EncodeTime = func(t time.Time, e zapcore.PrimitiveArrayEncoder) {
		e.AppendString(t.UTC().Format("2006-01-02T15:04:05.000000Z07:00"))
	}
	enc.EncodeDuration = zapcore.StringDurationEncoder
	var encoder zapcore.Encoder
	switch cfg.Format {
	case "", "text":
		enc.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(enc)
	case "json":
		encoder = zapcore.NewJSONEncoder(enc)
	default:
		return nil, fmt.Errorf("log format %q: want text or json", cfg.Format)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), level)), nil
}
