//go:build linux

package keeper_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"stoker.io/stoker/test/cluster/keeper"
)

// holdVariable makes the test binary start the cluster of a keeper.Config and wait to be killed.
const holdVariable = "STOKER_TEST_HOLD"

// TestMain lets the test binary also serve as the keeper program.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		mine, err := keeper.Run(ctx, os.Args[1], os.Stdin, os.Stdout)
		stop()
		if mine {
			exit(err)
		}
	}
	if raw := os.Getenv(holdVariable); raw != "" {
		exit(hold(raw))
	}
	os.Exit(m.Run())
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
