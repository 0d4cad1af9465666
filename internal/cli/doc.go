// Package cli is the command line: flags, environment, output and exit codes. What the commands do is
// done elsewhere, by the packages client, executor, dispatcher, internal/demo and internal/loadgen.
//
// Scripts rely on this:
//
//   - with -o json stdout holds one JSON object, a list one per line; without, text for people
//   - errors go to stderr as `headrace: …`, one line, control characters escaped
//   - exit code 0: done; 1: it did not work, or a task that was waited for did not succeed; 2: wrong usage
//   - progress is drawn on stderr and only if that is a terminal
//   - SIGTERM and SIGINT end a command in order (servers and workers drain), a second one ends it at once
//
// Text from outside (names, errors, results) goes to people through package term, which escapes what a
// terminal would act on; results and payloads are data and written as they are only where a command says so.
package cli
