package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/program"
)

// The runs themselves are tested in internal/configsync.
func TestConfigRunCommands(t *testing.T) {
	t.Parallel()
	lines := document.Open(t)
	cluster := kubetest.Control(t)
	for c := range lines.Of("docs/reference/cli.md") {
		t.Run(c.Text, func(t *testing.T) {
			var out, talk program.Log
			ctx, stop := context.WithCancel(t.Context())
			code := make(chan int, 1)
			args := append(strings.Fields(c.Text)[1:], "--health-addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0", "--kubeconfig", cluster.Kubeconfig(), "-n", cluster.Namespace(t))
			go func() { code <- newCLI(&out, &talk).run(ctx, "stoker", args) }()
			require.Eventually(t, func() bool { return strings.Contains(talk.String(), "this replica applies ConfigSyncs") }, time.Minute, 10*time.Millisecond, "%s", &talk)
			stop()
			select {
			case got := <-code:
				assert.Equal(t, exit.Done, got, talk.String())
			case <-time.After(time.Minute):
				require.Fail(t, "the command did not end", talk.String())
			}
		})
	}
}

func TestConfigRunUsage(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]string{
		"plant":                  "too many arguments",
		"--watch-namespace=Line": `--watch-namespace: "Line" is not a valid namespace name`,
		"--log-level=loud":       "--log-level",
	} {
		t.Run(arg, func(t *testing.T) {
			t.Parallel()
			var out, talk program.Log
			assert.Equal(t, exit.Usage, newCLI(&out, &talk).run(t.Context(), "stoker", []string{"config", "run", arg}))
			assert.Contains(t, talk.String(), want)
		})
	}
}
