// Command pause is the first process of every pod: it holds the pod's namespaces, reaps orphans, and exits on SIGTERM
// or SIGINT.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		for reaped := 1; reaped > 0; {
			reaped, _ = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		}
	}
}
