//go:build !linux

package program

import "syscall"

// Child returns attributes for a child process that has a process group of its own. Only Linux can also
// have it killed when this process dies.
func Child() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
