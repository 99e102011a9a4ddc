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

func TestWatchedStatus(t *testing.T) {
	t.Parallel()
	var args []string
	lines := document.Open(t)
	for _, page := range []string{"docs/how-to/ui.md", "docs/reference/cli.md"} { // setup: both show the same command
		for c := range lines.Of(page) {
			args = strings.Fields(c.Text)
			require.Equal(t, []string{"stoker", "status", "line", "--watch"}, args)
		}
	}
	cluster := kubetest.Control(t)
	namespace := cluster.Namespace(t)
	cluster.ApplyYAML(t, namespace, `
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: line}
spec: {git: {repo: "https://git.example.com/plant.git", ref: main}}
`)
	require.NoError(t, lead(t.Context(), cluster, namespace, "line", broken))
	var out, talk program.Log
	ctx, stop := context.WithCancel(t.Context())
	code := make(chan int, 1)
	go func() {
		code <- newCLI(&out, &talk).run(ctx, "stoker", append(args[1:], "--kubeconfig", cluster.Kubeconfig(), "-n", namespace))
	}()
	says := func(what string) {
		t.Helper()
		require.Eventually(t, func() bool { return strings.Contains(out.String(), what) }, time.Minute, 10*time.Millisecond, "%s\n%s\n%s", what, &out, &talk)
	}
	says(" line Failed, 0 of 1 gateways run main at aaaaaaa: ")
	says(" line-1 (pod line-1-0) Error/TemplateFailed: no such field\n")
	require.NoError(t, lead(t.Context(), cluster, namespace, "line", repaired))
	says(" line Succeeded, 1 of 1 gateways run main at aaaaaaa")
	says(" line-1 (pod line-1-0) Synced at aaaaaaa\n")
	assert.Equal(t, 4, strings.Count(out.String(), "\n"), "each change must print one line: %s", &out)
	stop()
	select {
	case got := <-code:
		assert.Equal(t, exit.Done, got, talk.String())
	case <-time.After(time.Minute):
		require.Fail(t, "the command did not end")
	}

	var none program.Log
	assert.Equal(t, exit.Failed, newCLI(&out, &none).run(t.Context(), "stoker", []string{"status", "other", "--watch", "--kubeconfig", cluster.Kubeconfig(), "-n", namespace}))
	assert.Contains(t, none.String(), "there is no GatewaySync other")
	assert.Equal(t, exit.Usage, newCLI(&out, &none).run(t.Context(), "stoker", []string{"status", "line", "--watch", "-o", "json"}))
}
