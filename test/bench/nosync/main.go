// Command nosync runs a program for which nothing is ever made durable: fsync, fdatasync, sync and syncfs return at once
// and do nothing. The bench measures with it what durability costs the agent, which has no switch for it.
//
//	nosync PROGRAM ARGUMENT…
//
// A seccomp filter answers these calls; the program and all that it starts run with it. Everything else is as ever.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "nosync:", run(os.Args[1:]))
	os.Exit(1)
}
