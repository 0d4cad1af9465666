package telemetry

import (
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"
)

// MaxText bounds one text from outside in a log line, in bytes before escaping.
const MaxText = 256

// Text is a field with text that somebody outside chose: escaped and cut.
func Text(key, s string) zap.Field { return zap.String(key, Escape(s)) }

// Escape returns s on one line: control and other unprintable characters are written as Go escapes,
// and what is longer than MaxText bytes is cut with a mark.
func Escape(s string) string {
	mark := ""
	if len(s) > MaxText {
		cut := MaxText
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		mark = "…(" + strconv.Itoa(len(s)) + " bytes)"
		s = s[:cut]
	}
	for _, r := range s {
		if !strconv.IsPrint(r) || r == utf8.RuneError {
			q := strconv.Quote(s)
			return q[1:len(q)-1] + mark
		}
	}
	return s + mark
}

// The fields, named by the words of docs/GLOSSARY.md.

// Tenant names a tenant.
func Tenant(name string) zap.Field { return Text("tenant", name) }

// Function names a function.
func Function(name string) zap.Field { return Text("function", name) }

// Task names a task by its id.
func Task(id fmt.Stringer) zap.Field { return zap.Stringer("task", id) }

// Partition names a partition.
func Partition(p uint32) zap.Field { return zap.Uint32("partition", p) }

// Epoch is the epoch of a partition's owner.
func Epoch(e uint64) zap.Field { return zap.Uint64("epoch", e) }

// Executor names an executor as it calls itself.
func Executor(name string) zap.Field { return Text("executor", name) }

// Session names one executor stream of this process.
func Session(id uint64) zap.Field { return zap.Uint64("session", id) }

// Node names a node by its id.
func Node(id string) zap.Field { return Text("node", id) }

// Database names a database.
func Database(name string) zap.Field { return Text("database", name) }

// Took is how long something lasted.
func Took(d time.Duration) zap.Field { return zap.Duration("took", d) }

// Err is an error's text, escaped and cut: it may quote what a user sent.
func Err(err error) zap.Field {
	if err == nil {
		return zap.Skip()
	}
	return Text("err", err.Error())
}
