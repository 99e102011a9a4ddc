//go:build linux

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1/gatewaypod"
)

// startRegistry starts an empty registry on loopback, from which the nodes pull the images of Stoker and Helm the chart.
func (w *world) startRegistry(t *testing.T) {
	program := filepath.Join(t.TempDir(), "registry")
	w.run(t, filepath.Join(w.module, "internal", "release"), "go", "build", "-ldflags=-s -w", "-o", program, "github.com/google/go-containerregistry/cmd/registry")
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.ctx))
	cmd := exec.CommandContext(ctx, program, "-port", "0")
	said, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { cancel(); _ = cmd.Wait() })
	lines := bufio.NewScanner(said)
	for port := regexp.MustCompile(`serving on port (\d+)`); w.registry == "" && lines.Scan(); {
		if m := port.FindStringSubmatch(lines.Text()); m != nil {
			w.registry = "127.0.0.1:" + m[1] + "/stoker"
		}
	}
	require.NotEmpty(t, w.registry, "the registry ended: %v", lines.Err())
	go func() {
		for lines.Scan() { // its log of requests
		}
	}()
}

// release makes a release of this checkout, and pushes its bundle with the command line of its archive, which it returns.
func (w *world) release(t *testing.T, version string) (stoker string) {
	dist := t.TempDir()
	platform := "linux/" + runtime.GOARCH
	w.run(t, filepath.Join(w.module, "internal", "release"), "go", "run", ".", "artifacts", "--version", version, "--platforms", platform, "--out", dist)
	w.run(t, dist, "tar", "-xzf", fmt.Sprintf("stoker_%s_linux_%s.tar.gz", version, runtime.GOARCH), "stoker")
	stoker = filepath.Join(dist, "stoker")
	w.run(t, dist, stoker, "bundle", "push", fmt.Sprintf("stoker-%s-bundle.tar", version), w.registry, "--plain-http")
	return stoker
}

// airGap runs the command of docs/how-to/air-gap.md that begins so, for a version and with the registry of the run.
func (w *world) airGap(t *testing.T, begin, version string, more ...string) {
	t.Helper()
	for _, c := range w.page {
		if !strings.HasPrefix(c.Text, begin) {
			continue
		}
		args := strings.Fields(strings.NewReplacer("registry.example.com/stoker", w.registry, "0.1.0", version, "0.2.0", version).Replace(c.Text))[1:]
		if strings.Contains(c.Text, "oci://") {
			args = append(args, "--plain-http")
		}
		w.helm(t, append(args, more...)...)
		return
	}
	t.Fatalf("docs/how-to/air-gap.md has no command %s…", begin)
}

// anUpgradeAndTheWayBack installs the next release and the first one again, both from the registry. Gateways follow git all the time, whichever
// version their agents have.
func anUpgradeAndTheWayBack(t *testing.T, w *world) {
	if _, err := w.client.CoreV1().Namespaces().Get(w.ctx, vanishes, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		w.NamespaceNamed(t, vanishes) // the chart has objects there, and another scenario deletes it
	}
	p := w.plant(t)
	p.gatewaySync()
	set := p.gateways(replicas(1))
	p.synced(p.head(), 1)
	first := p.agentImage()

	next := w.version + "-next.1"
	w.release(t, next)
	w.airGap(t, "helm upgrade ", next, "--wait", "--timeout", liveness.String())
	w.airGap(t, "helm test ", next, "--timeout", liveness.String())
	p.synced(p.push("agent of the version before"), 1)
	assert.Equal(t, first, p.agentImage(), "an upgrade restarts no gateway")
	parts := w.run(t, w.module, w.stokerPath, "version", "--check", "--kubeconfig", w.Kubeconfig(), "--namespace", p.namespace)
	assert.Regexp(t, `(?m)^injector +`+regexp.QuoteMeta(next)+` +`+release, parts)
	assert.Regexp(t, `(?m)^1 agent +`+regexp.QuoteMeta(w.version)+" ", parts)
	p.restart(set.Name)
	p.synced(p.push("agent of the next version"), 1)
	second := p.agentImage()
	assert.NotEqual(t, first, second)

	w.helm(t, "rollback", "stoker", "--namespace", release, "--wait", "--timeout", liveness.String())
	p.synced(p.push("newer agent, older release"), 1)
	p.restart(set.Name)
	p.synced(p.push("as before"), 1)
	assert.Equal(t, first, p.agentImage())
}

// agentImage returns the image of the agent of the plant's gateway, which the chart names by digest.
func (p *plant) agentImage() string {
	p.t.Helper()
	pods := p.pods()
	require.Len(p.t, pods, 1)
	for _, c := range pods[0].Spec.InitContainers {
		if c.Name == gatewaypod.AgentContainer {
			assert.Regexp(p.t, "^"+regexp.QuoteMeta(p.registry)+"/agent@sha256:[0-9a-f]{64}$", c.Image)
			return c.Image
		}
	}
	p.t.Fatalf("pod %s has no agent", pods[0].Name)
	return ""
}

// restart does what kubectl rollout restart does, and waits for the new pod. A pod of the injector that ends still answers on connections that the
// API server has, so restart waits for its end.
func (p *plant) restart(set string) {
	p.t.Helper()
	p.eventually(p.t, "the older injectors have ended", func() string {
		pods, err := p.client.CoreV1().Pods(release).List(p.ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=injector"})
		require.NoError(p.t, err)
		for i := range pods.Items {
			if pods.Items[i].DeletionTimestamp != nil {
				return pods.Items[i].Name + " ends"
			}
		}
		return ""
	})
	before := p.pods()[0].UID
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{
		"annotations": map[string]string{"kubectl.kubernetes.io/restartedAt": string(before)}}}}})
	require.NoError(p.t, err)
	_, err = p.client.AppsV1().StatefulSets(p.namespace).Patch(p.ctx, set, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	require.NoError(p.t, err)
	p.eventually(p.t, "the gateway has a new pod", func() string {
		pods := p.pods()
		if len(pods) == 1 && pods[0].UID != before && isReady(&pods[0]) {
			return ""
		}
		return "the old pod is there"
	})
}
