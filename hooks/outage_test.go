package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/program"
)

const behind = `{observedGeneration: 1, gatewaysReady: 0/1, target: {ref: main, commit: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa},
discoveredGateways: [{name: line-1, podName: line-1-0, syncStatus: Pending, reason: WaitingForGateway, message: "it does\nnot run"}]}`

const there = `{gatewaysReady: 1/1, discoveredGateways: [{name: line-1, podName: line-1-0, syncStatus: Synced, reason: Synced, syncedCommit: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa}]}`

// A wait survives an outage of the API server. On a terminal, the command reports progress whenever it changes and again after the
// outage.
func TestWaitSurvivesAPIServerOutage(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Control(t, kubetest.Private())
	namespace := cluster.Namespace(t)
	cluster.ApplyYAML(t, namespace, `
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: plant}
spec: {git: {repo: "https://git.example.com/plant.git", ref: main}}
`)
	require.NoError(t, lead(t.Context(), cluster, namespace, "plant", behind))
	var out, talk program.Log
	c := newCLI(&out, &talk)
	c.interactive = true
	code := make(chan int, 1)
	go func() {
		code <- c.run(t.Context(), "stoker", []string{"wait", "plant", "--kubeconfig", cluster.Kubeconfig(), "-n", namespace, "--timeout", "5m"})
	}()
	says := func(what string) {
		t.Helper()
		require.Eventually(t, func() bool { return strings.Contains(talk.String(), what) }, time.Minute, 10*time.Millisecond, what)
	}
	says("0 of 1 gateways run main at aaaaaaa; line-1 (pod line-1-0): it does not run\n")
	cluster.Kill(t, kubetest.APIServer)
	says("the API server does not answer, trying again")
	cluster.Start(t, kubetest.APIServer)
	require.Eventually(t, func() bool { return strings.Count(talk.String(), "0 of 1 gateways") == 2 }, time.Minute, 10*time.Millisecond, "the progress must be printed again")
	require.NoError(t, lead(t.Context(), cluster, namespace, "plant", there))
	select {
	case got := <-code:
		assert.Equal(t, exit.Done, got, talk.String())
	case <-time.After(time.Minute):
		require.Fail(t, "the wait did not end", talk.String())
	}
	assert.Equal(t, "line-1 (pod line-1-0) runs main at aaaaaaa\n", out.String())
}

// maxBinary is a ceiling, not a goal. A node pulls the binary for the first Job that runs there. About 21 MiB are unused methods
// of client-go types: text/template, which renders files as the agent does, prevents the linker from removing them. Applying
// ConfigSyncs adds only 1 MiB, because client-go's printers import most of kustomize anyway. The client for registries and the manual
// pages add 1 MiB, and so do the clients of forges, which set the status of commits. Helm's template engine adds 2.5 MiB,
// and Jsonnet 2.8 MiB.
const maxBinary = 68 << 20

func TestReleaseBinarySize(t *testing.T) {
	t.Parallel()
	program.Small(t, "hooks", maxBinary)
}
