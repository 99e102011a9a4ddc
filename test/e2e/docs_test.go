//go:build linux

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/gitserver"
)

// documentedNodeCommands runs the commands of the documents that need nodes: those that test/document/ledger.go assigns to this test and that no
// other scenario runs.
func documentedNodeCommands(t *testing.T, w *world) {
	p := w.plantIn(t, w.NamespaceNamed(t, "line"))
	p.gatewaySync(func(gs *v1alpha1.GatewaySync) { gs.Spec.Snapshots = &v1alpha1.SnapshotsSpec{Enabled: true} })
	p.gateways(replicas(2))
	shell := p.reader()
	for _, page := range []string{"README.md", "docs/how-to/installation.md", "docs/how-to/kustomize.md"} {
		for c := range w.lines.Of(page) {
			if page != "README.md" || strings.HasPrefix(c.Text, "helm test ") { // follow runs the others
				shell.Type(t, c.Text) // meanwhile the gateways start
			}
		}
	}

	p.repo.Tag("v2.4.0", p.head())
	p.synced(p.head(), 2)
	second := p.push("second")
	p.synced(second, 2)
	for c := range w.lines.Of("docs/how-to/operations.md") {
		said := shell.Type(t, c.Text)
		if strings.HasSuffix(c.Text, "/proxy/state") {
			assert.Contains(t, said, second)
		}
	}
	w.NamespaceNamed(t, "plant")
	clone := shell.Dir
	git := exec.CommandContext(w.ctx, "git", "clone", "--quiet", p.repo.Dir, clone)
	git.Env = gitserver.Env()
	said, err := git.CombinedOutput()
	require.NoError(t, err, "%s", said)
	var diffs []string
	for c := range w.lines.Of("docs/reference/cli.md") {
		switch {
		case strings.Contains(c.Text, " /manifest/"): // a command of a Job
			assert.Contains(t, p.preflight("complete", strings.Fields(c.Text)[1:], nil), "can run: checked")
		case strings.HasPrefix(c.Text, "stoker diff "):
			diffs = append(diffs, shell.Type(t, c.Text))
		case strings.HasPrefix(c.Text, "stoker snapshots "):
			p.snapshots(shell, c.Text)
		default:
			shell.Type(t, c.Text)
		}
	}
	require.Len(t, diffs, 2)
	assert.NotContains(t, diffs[0], overview, "the gateways must run the commit of the clone")
	assert.Contains(t, diffs[1], overview+"/view.json")

	for c := range w.lines.Of("docs/how-to/rollback.md") {
		p.snapshots(shell, c.Text)
	}
	for c := range w.lines.Of("docs/how-to/audit.md") {
		said := shell.Type(t, strings.Replace(c.Text, "area-4", "line-1", 1))
		assert.Contains(t, said, p.head()[:7])
		if strings.Contains(c.Text, "area-4") {
			assert.Regexp(t, `Synced +line-1-[0-9]+-[0-9]+\n`, said, "the row must name the snapshot")
			continue
		}
		assert.Regexp(t, `line-1 .* Restored`, said)
		var record []struct{ Diff string }
		require.NoError(t, json.Unmarshal([]byte(shell.Type(t, c.Text+" --gateway line-1 -o json")), &record))
		require.NotEmpty(t, record)
		files := "stoker history line --gateway line-1 --diff " + record[0].Diff
		assert.Contains(t, shell.Type(t, files), "modified")
		assert.Regexp(t, `(?m)^(\+\+\+ after/|\S+: before: the agent's cache)`, shell.Type(t, files+" --text"), "the agent runs in the pod")
		assert.Contains(t, shell.Type(t, "stoker diff line --gateway line-1 --drift "+overview+"/view.json"), overview+"/view.json")
	}

	p.preflight("failed", nil, func(u *unstructured.Unstructured) {
		if u.GetKind() == v1alpha1.KindGatewaySync {
			set(u, "v9", "spec", "git", "ref")
		}
	})
	for c := range w.lines.Of("docs/how-to/troubleshooting.md") {
		said := shell.Type(t, c.Text)
		if strings.Contains(c.Text, "component=receiver") {
			assert.Equal(t, 2, strings.Count(said, `"for":"webhook-addr"`), "each pod must have a log: %s", said)
		} else {
			assert.Contains(t, said, "RefNotFound", c.Text)
		}
	}
}

// snapshots types a command about snapshots. A command that restores or exports one gets the newest of a gateway. A restore must bring back
// the commit from before its last sync, and an export must contain the gateway's view.
func (p *plant) snapshots(shell *document.Shell, command string) {
	p.t.Helper()
	gs := p.synced(p.head(), 2)
	newest := map[string]string{}
	for _, g := range gs.Status.DiscoveredGateways {
		require.NotNil(p.t, g.LastSnapshot, g.Name)
		newest[g.Name] = g.LastSnapshot.ID
	}
	if strings.Contains(command, " snapshots export ") {
		shell.Type(p.t, strings.NewReplacer("area-4-0", "line-1", "area-4-20261124-133359", newest["line-1"], "projects/line", "projects/site-a").Replace(command))
		assert.FileExists(p.t, filepath.Join(shell.Dir, "files", overview, "view.json"))
		return
	}
	before, _, restores := strings.Cut(command, " --restore ")
	if !restores {
		said := shell.Type(p.t, command)
		for gateway, id := range newest {
			assert.Contains(p.t, said, id, gateway)
		}
		return
	}
	p.mu.Lock()
	p.restores = true
	p.mu.Unlock()
	shell.Type(p.t, before+" --restore "+newest["line-1"])
	row := func() v1alpha1.DiscoveredGateway {
		rows := p.get().Status.DiscoveredGateways
		return rows[slices.IndexFunc(rows, func(g v1alpha1.DiscoveredGateway) bool { return g.Name == "line-1" })]
	}
	p.eventually(p.t, "line-1 is back", func() string {
		if g := row(); g.Reason != v1alpha1.ReasonRestored {
			return string(g.Reason) + " " + g.Message
		}
		return ""
	})
	p.loads("line-1", row().SyncedCommit)
	assert.NotEqual(p.t, p.head(), row().SyncedCommit)
	p.synced(p.push("after the restore"), 2)
	p.mu.Lock()
	p.restores = false
	p.mu.Unlock()
}

// reader returns the shell of a user with all rights. Its working directory, called plant, will be a clone
// of the plant's repository; the kubectl namespace is that of the plant.
func (p *plant) reader() *document.Shell {
	p.t.Helper()
	raw, err := os.ReadFile(p.Kubeconfig())
	require.NoError(p.t, err)
	kubeconfig := filepath.Join(p.t.TempDir(), "kubeconfig")
	require.NoError(p.t, os.WriteFile(kubeconfig, raw, 0o600))
	p.run(p.t, p.module, p.kubectlPath, "--kubeconfig="+kubeconfig, "config", "set-context", "--current", "--namespace", p.namespace)
	folder := filepath.Join(p.t.TempDir(), "plant")
	require.NoError(p.t, os.Mkdir(folder, 0o700))
	return document.NewShell(p.t, folder, map[string]string{"kubectl": p.kubectlPath, "helm": p.helmPath, "stoker": p.stokerPath}, "KUBECONFIG="+kubeconfig)
}

// preflight runs the preflight Job of the Argo CD example on its own until it has a condition, and returns
// its output. args, unless nil, replaces the arguments, and changed changes the objects.
func (p *plant) preflight(condition string, args []string, changed change) string {
	p.t.Helper()
	d := &deployment{plant: p}
	changes := []change{d.adaptToCluster}
	if changed != nil {
		changes = append(changes, changed)
	}
	p.kubectl(p.t, "delete", "job", "stoker-preflight", "--namespace", p.namespace, "--ignore-not-found", "--wait")
	for _, file := range []string{"rights.yaml", "preflight.yaml", "hooks.yaml"} {
		for _, u := range d.read(filepath.Join("plain", file), d.withEmbedded(changes)...) {
			if u.GetKind() == "Job" && u.GetName() != "stoker-preflight" {
				continue
			}
			if u.GetKind() == "Job" && args != nil {
				list(ensureMap(u.Object, "spec", "template", "spec"), "containers")[0]["args"] = words(args)
			}
			raw, err := yaml.Marshal(u.Object)
			require.NoError(p.t, err)
			p.ApplyYAML(p.t, p.namespace, string(raw))
		}
	}
	p.kubectl(p.t, "wait", "--for=condition="+condition, "--timeout="+liveness.String(), "job/stoker-preflight", "--namespace", p.namespace)
	return p.kubectl(p.t, "logs", "job/stoker-preflight", "--namespace", p.namespace)
}

func words(list []string) (out []any) {
	for _, w := range list {
		out = append(out, w)
	}
	return out
}

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

// airGap runs the command of docs/how-to/air-gap.md that starts with begin, for a version and with the registry of the run.
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
