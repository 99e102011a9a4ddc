// Command nosync runs a program without durability: fsync, fdatasync, sync and syncfs return at once and do nothing.
// The bench uses it to measure the cost of durability, because the agent has no switch for it.
//
//	nosync PROGRAM ARGUMENT…
//
// A seccomp filter answers these calls of the program and its children. All other calls are unaffected.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "nosync:", run(os.Args[1:]))
	os.Exit(1)
}
