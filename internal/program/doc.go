// Package program runs a program as the handler of a task: the payload on its standard input, the
// result from its standard output, each line of its standard error handed on as it comes.
//
// A program runs in a process group of its own. It is over when its first process is: what is left of
// its group then is killed. When the context ends, the group gets SIGTERM, and SIGKILL after the grace.
// A process that has left the group and keeps the output open is waited for a second, not longer.
//
// Nothing here knows about tasks or exit codes: see Result.
package program
