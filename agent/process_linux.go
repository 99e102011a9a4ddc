package main

import "golang.org/x/sys/unix"

// hideProcess keeps other programs of the same user from reading this process and, through /proc, its files. In a pod whose containers
// share processes, the gateway is such a program, and the token of the agent is such a file.
func hideProcess() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }
