// Package failpoint lets a test break the process at a named place: before or after a commit, amid
// a batch, before a push. Without the build tag failpoint, Hit is empty and costs nothing.
//
// With it, HEADRACE_FAILPOINT holds actions, separated by commas:
//
//	loop.commit.before=kill@3     SIGKILL to ourselves at the third hit: no handler runs, nothing is flushed
//	loop.commit.after=panic       a panic at the first hit
//	task.poison=panic@*           a panic at every hit
//	push.send.before=sleep:250ms  a pause at every hit (sleep@n: at the n-th only)
//
// The places are documented where they are: grep for failpoint.Hit.
package failpoint
