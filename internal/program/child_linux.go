package program

import "syscall"

// Child returns attributes for a child process that has a process group of its own and is killed when
// this process dies, however it dies. (The kernel looks at the thread that started the child; the Go
// runtime keeps its threads.)
func Child() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
