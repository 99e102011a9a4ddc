package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/request"
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
	assert.Equal(t, 4, strings.Count(out.String(), "\n"), "a line for each change: %s", &out)
	stop()
	select {
	case got := <-code:
		assert.Equal(t, exitDone, got, talk.String())
	case <-time.After(time.Minute):
		require.Fail(t, "the command does not end")
	}

	var none program.Log
	assert.Equal(t, exitFailed, newCLI(&out, &none).run(t.Context(), "stoker", []string{"status", "other", "--watch", "--kubeconfig", cluster.Kubeconfig(), "-n", namespace}))
	assert.Contains(t, none.String(), "there is no GatewaySync other")
	assert.Equal(t, exitUsage, newCLI(&out, &none).run(t.Context(), "stoker", []string{"status", "line", "--watch", "-o", "json"}))
}

func TestWatchedStatusOnATerminal(t *testing.T) {
	gs := &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: "line"}}
	for i := range 50 { // setup: the last two are behind
		g := v1alpha1.DiscoveredGateway{Name: fmt.Sprintf("area-%02d", i), SyncStatus: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced}
		if i > 47 {
			g.SyncStatus, g.Reason, g.Message = v1alpha1.GatewayHeld, v1alpha1.ReasonDesignerSessionActive, "ann edits "+strings.Repeat("view ", 40)
		}
		gs.Status.DiscoveredGateways = append(gs.Status.DiscoveredGateways, g)
	}
	draw := func(env map[string]string) string {
		var out program.Log
		c := newCLI(&out, &out)
		c.env = func(name string) string { return env[name] }
		l := &live{cli: c, name: "line", screen: true, colors: c.colors()}
		l.draw(gs, request.Verdict{Phase: request.Held})
		l.draw(gs, request.Verdict{Phase: request.Held})
		return out.String()
	}
	plain := draw(map[string]string{"NO_COLOR": "1"})
	assert.Equal(t, 1, strings.Count(plain, "\x1b[H\x1b[J"), "an unchanged status is not drawn again at once")
	lines := strings.Split(strings.TrimPrefix(plain, "\x1b[H\x1b[J"), "\n")
	assert.Len(t, lines, 24, "it fits on the screen")
	assert.NotContains(t, strings.TrimPrefix(plain, "\x1b[H\x1b[J"), "\x1b")
	for _, line := range lines { // sequence: one screen
		assert.LessOrEqual(t, len([]rune(line)), 80)
	}
	assert.Less(t, strings.Index(plain, "area-48"), strings.Index(plain, "area-00"), "gateways that are behind come first")
	assert.Contains(t, plain, "more lines: stoker status line shows all")
	assert.NotContains(t, draw(map[string]string{"TERM": "dumb"}), "\x1b[33m")
	bright := draw(nil)
	assert.Contains(t, bright, "area-49   \x1b[33mHeld\x1b[0m     DesignerSessionActive")
	assert.Contains(t, bright, "area-00   \x1b[32mSynced\x1b[0m")
}
