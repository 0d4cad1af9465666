// Package term writes for people: tables, a progress bar, durations, and text from outside made
// harmless.
//
// Names, errors and results come from users of the platform and can hold anything. What goes to a
// terminal passes Escape first, so that no task can move the cursor, clear the screen or forge a line.
// JSON output needs none of this: its encoder escapes.
package term
