//go:build linux

// Package e2e tests Stoker on a real Kubernetes cluster with nodes. Stoker keeps gateways at a git commit
// while pods, git, the injector and the API server fail and recover. Helm installs a release of this checkout from a registry, kubelets
// run the pods, and git serves the repository over HTTPS with a password. Only the gateways are simulated.
//
// The tests run only if STOKER_E2E is set, as make e2e does.
package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"stoker.io/stoker/test/cluster/build"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/gitserver"
)

const (
	// atMost bounds the whole run. Unfinished scenarios then fail with all diagnostics.
	atMost = 40 * time.Minute
	// liveness bounds one step: ten times its duration on a busy machine with two cores.
	liveness = 10 * time.Minute

	nodes           = 2
	release         = "stoker-system" // namespace of the release
	gitUser         = "git"
	imageTag        = "e2e"
	gatewayImageRef = "registry.local/gateway:" + imageTag
)

// world is the cluster with Stoker installed, and the git server.
type world struct {
	*kubetest.Cluster
	client        kubernetes.Interface
	dynamic       dynamic.Interface
	git           *gitserver.Server
	gitRoot       string
	ctx           context.Context
	began         time.Time
	module        string
	cache         *build.Cache
	kubectlPath   string
	helmPath      string
	stokerPath    string
	version       string             // of the chart, and of the release that the run installs
	registry      string             // registry and path of the images and the chart of Stoker
	lines         *document.Commands // commands of the documents for scenarios to run
	page          []document.Command // commands of docs/how-to/air-gap.md for Helm
	password      string             // of the repositories
	gatewayToken  string
	webhookToken  string // authenticates senders to the receiver
	watcher       *watcher
	argo          *argoCD
	uninstalled   bool
	volumesAtOnce sync.Mutex
}

// spell is a period of time.
type spell struct{ from, until time.Time }

func newWorld(t *testing.T, lines *document.Commands) *world {
	// Cleanups also use this context. The first interrupt ends the tests and cleans up; a second one ends
	// the process.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	ctx, cancel := context.WithTimeout(ctx, atMost)
	ctx, abort := context.WithCancelCause(ctx)
	t.Cleanup(func() { cancel(); stop() })
	w := &world{ctx: ctx, began: time.Now(), lines: lines, page: slices.Collect(lines.Of("docs/how-to/air-gap.md")), password: randomSecret(), gatewayToken: "e2e:" + randomSecret(), webhookToken: randomSecret()}
	w.say("a cluster with %d nodes", nodes)
	w.Cluster = kubetest.Full(t, nodes)
	w.client = w.Client(t)
	var err error
	w.dynamic, err = dynamic.NewForConfig(w.RESTConfig())
	require.NoError(t, err)
	go w.watchNodes(abort)
	w.prepare(t)
	w.startGit(t)
	w.startArgoCD(t)
	w.install(t)
	t.Cleanup(func() {
		if !w.uninstalled {
			w.checkInstall(t)
		}
	})
	w.watcher = startWatcher(t, w)
	return w
}

// watchNodes ends all waits when a node has had a problem for a minute, such as too little disk, memory or process IDs. Its pods are then
// evicted and new ones do not start, so every scenario would time out.
func (w *world) watchNodes(abort context.CancelCauseFunc) {
	since := map[string]time.Time{}
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-time.After(10 * time.Second):
		}
		found, err := w.client.CoreV1().Nodes().List(w.ctx, metav1.ListOptions{})
		if err != nil {
			continue // the API server is stopped
		}
		for i := range found.Items {
			for _, c := range found.Items[i].Status.Conditions {
				which := found.Items[i].Name + ": " + string(c.Type)
				if c.Type == corev1.NodeReady || c.Status != corev1.ConditionTrue {
					delete(since, which)
				} else if began, known := since[which]; !known {
					since[which] = time.Now()
					w.say("node %s: %s", which, c.Message)
				} else if time.Since(began) > time.Minute {
					abort(fmt.Errorf("this machine cannot run pods: node %s: %s", which, c.Message))
					return
				}
			}
		}
	}
}

// say prints a line of progress.
func (w *world) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "[%4ds] %s\n", int(time.Since(w.began).Seconds()), fmt.Sprintf(format, args...))
}

// prepare builds programs and images.
func (w *world) prepare(t *testing.T) {
	cache, err := build.Open(build.Cache{Progress: os.Stderr})
	require.NoError(t, err)
	w.cache, w.module = cache, cache.SourceDir
	bin, err := cache.Kubernetes(w.ctx, os.Getenv(build.VersionVariable))
	require.NoError(t, err)
	w.kubectlPath = filepath.Join(bin, "kubectl")
	w.say("helm")
	w.helmPath = filepath.Join(t.TempDir(), "helm")
	w.run(t, filepath.Join(w.module, "test", "charts"), "go", "build", "-ldflags=-s -w", "-o", w.helmPath, "helm.sh/helm/v3/cmd/helm")
	w.say("a release: images, chart and command line, from the bundle to a registry")
	chart, err := os.ReadFile(filepath.Join(w.module, "charts", "stoker", "Chart.yaml"))
	require.NoError(t, err)
	w.version = regexp.MustCompile(`(?m)^appVersion: (.+)$`).FindStringSubmatch(string(chart))[1]
	w.startRegistry(t)
	w.stokerPath = w.release(t, w.version)
	w.say("the image of the gateway")
	w.ProgramImage(t, "./test/gateway", gatewayImage(t, w.gatewayToken))
}

// startGit serves repositories at an address that pods can reach.
func (w *world) startGit(t *testing.T) {
	w.gitRoot = t.TempDir()
	var err error
	w.git, err = gitserver.Start(w.gitRoot, gitserver.Options{Host: w.HostAddress(t), TLS: true, Auth: gitserver.Basic(gitUser, w.password)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.git.Close()) })
}

// install runs the commands of docs/how-to/air-gap.md. Agents get the address of a proxy that does not exist, to check
// that they use it neither for this git server nor for the API server.
func (w *world) install(t *testing.T) {
	for _, namespace := range []string{paired, vanishes, stays} {
		w.NamespaceNamed(t, namespace)
	}
	w.say("helm install")
	w.airGap(t, "helm install ", w.version, "--set", "webhookReceiver.enabled=true", "--set", "configSync.enabled=true", "--set", fmt.Sprintf("configSync.namespaces={%s,%s,%s}", paired, vanishes, stays),
		"--set", "agentEnv.HTTPS_PROXY=http://127.0.0.1:9", "--set", "agentEnv.NO_PROXY="+w.HostAddress(t), "--wait", "--timeout", liveness.String())
	w.checkRenewal(t)
	w.say("helm test")
	w.airGap(t, "helm test ", w.version, "--timeout", liveness.String())
}

// checkRenewal waits for the Job that issued the certificate of the webhook, and checks its log. Five minutes after its end it is removed.
func (w *world) checkRenewal(t *testing.T) {
	for job := range strings.Lines(w.kubectl(t, "get", "jobs", "--namespace", release, "--selector", "app.kubernetes.io/component=certificate", "--output", "name")) {
		job = strings.TrimSpace(job)
		w.kubectl(t, "wait", "--for=condition=complete", "--timeout="+liveness.String(), job, "--namespace", release)
		w.checkSaid(t, w.kubectl(t, "logs", job, "--namespace", release))
	}
}

// checkInstall checks the logs of the injector and the receiver.
func (w *world) checkInstall(t *testing.T) {
	said := func(component string) string {
		return w.kubectl(t, "logs", "--namespace", release, "--selector", "app.kubernetes.io/component="+component, "--tail=-1")
	}
	injector := said("injector")
	if os.Getenv(envE2E) != "some" { // one scenario may have no gateway
		assert.Contains(t, injector, "review", "the injector must answer the API server")
	}
	w.checkSaid(t, injector)
	w.checkSaid(t, said("receiver"))
}

// checkSaid checks that logs of Stoker contain no secret and no refused request.
func (w *world) checkSaid(t *testing.T, said string, without ...spell) {
	t.Helper()
	for line := range strings.Lines(said) {
		for _, secret := range []string{w.password, strings.TrimPrefix(w.gatewayToken, "e2e:"), w.webhookToken} {
			assert.NotContains(t, line, secret, "the log must not contain a secret")
		}
		// Only ServiceAccounts count: Kubernetes itself handles a kubelet that is refused for a moment.
		forbidden := strings.Contains(line, "system:serviceaccount:") && strings.Contains(line, " cannot ")
		assert.False(t, forbidden && !during(line, without), "a request exceeded the permissions: %s", line)
	}
}

// during reports whether a log line was written in one of the spells.
func during(line string, spells []spell) bool {
	var entry struct{ Time time.Time }
	if json.Unmarshal([]byte(line), &entry) != nil {
		return false
	}
	return slices.ContainsFunc(spells, func(s spell) bool { return !entry.Time.Before(s.from) && entry.Time.Before(s.until) })
}

func (w *world) helm(t *testing.T, args ...string) string {
	t.Helper()
	return w.run(t, w.module, w.helmPath, append(args, "--kubeconfig", w.Kubeconfig())...)
}

func (w *world) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return w.run(t, w.module, w.kubectlPath, append([]string{"--kubeconfig=" + w.Kubeconfig()}, args...)...)
}

// run runs a program and returns its standard output.
func (w *world) run(t *testing.T, dir, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(w.ctx, program, args...)
	cmd.Dir, cmd.WaitDelay = dir, 5*time.Second
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		w.dump(t, release)
		t.Fatalf("%s %s: %v\n%s%s", filepath.Base(program), strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String()
}

// eventually polls until missing returns "", for at most liveness. Otherwise missing says what the
// condition still lacks.
func (w *world) eventually(t *testing.T, what string, missing func() string) {
	t.Helper()
	began := time.Now()
	for deadline := began.Add(liveness); ; time.Sleep(100 * time.Millisecond) {
		last := missing()
		if last == "" {
			w.say("%s: %s (%s)", short(t), what, time.Since(began).Round(100*time.Millisecond))
			return
		}
		if w.ctx.Err() != nil {
			t.Fatalf("%s: the wait was canceled: %v", what, context.Cause(w.ctx))
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after %s: %s", what, time.Since(began).Round(time.Second), last)
		}
	}
}

func short(t *testing.T) string {
	parts := strings.Split(t.Name(), "/")
	return strings.ReplaceAll(parts[len(parts)-1], "_", " ")
}

// dump logs diagnostics of a namespace after a failure.
func (w *world) dump(t *testing.T, namespace string) {
	t.Helper()
	if errors.Is(context.Cause(w.ctx), context.Canceled) {
		return // the run was interrupted
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), time.Minute)
	defer cancel()
	cmd := func(args ...string) {
		out, err := exec.CommandContext(ctx, w.kubectlPath, append([]string{"--kubeconfig=" + w.Kubeconfig(), "-n", namespace}, args...)...).CombinedOutput()
		t.Logf("kubectl -n %s %s (%v):\n%s", namespace, strings.Join(args, " "), err, out)
	}
	cmd("get", "pods", "-o", "wide")
	if namespace != release {
		cmd("get", "gatewaysyncs.stoker.io,synctargets.stoker.io,syncreports.stoker.io", "-o", "yaml")
	}
	cmd("get", "events", "--sort-by=.lastTimestamp")
	pods, err := w.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Logf("pods: %v", err)
		return
	}
	for _, p := range pods.Items {
		cmd("logs", p.Name, "--all-containers", "--prefix", "--tail=80")
	}
	if namespace != release {
		if pods, err = w.client.CoreV1().Pods(release).List(ctx, metav1.ListOptions{}); err == nil {
			for _, p := range pods.Items {
				out, _ := exec.CommandContext(ctx, w.kubectlPath, "--kubeconfig="+w.Kubeconfig(), "-n", release, "logs", p.Name, "--tail=60").CombinedOutput()
				t.Logf("%s:\n%s", p.Name, out)
			}
		}
	}
}

func TestMain(m *testing.M) { kubetest.Main(m) }

// envE2E is the environment variable that enables the tests with pods: "all" for all scenarios, "some" for those that make e2e E2E= selects,
// without the checks of the whole run, and "logs" to end each scenario with the diagnostics of a failure.
const envE2E = "STOKER_E2E"

func TestFleetOnCluster(t *testing.T) {
	if os.Getenv(envE2E) == "" {
		t.Skip("it needs root and takes minutes: make e2e runs it")
	}
	lines := document.Open(t)
	w := newWorld(t, lines)
	t.Run("side by side", func(t *testing.T) {
		for _, s := range withArgoCD {
			t.Run(s.outcome, func(t *testing.T) {
				w.argo.goesFirst(t)
				t.Parallel()
				s.play(t, w)
			})
		}
		for _, s := range laterWithArgoCD {
			t.Run(s.outcome, func(t *testing.T) {
				t.Parallel()
				s.play(t, w)
			})
		}
		slots := make(chan struct{}, atOnce)
		for _, s := range sideBySide {
			t.Run(s.outcome, func(t *testing.T) {
				t.Parallel()
				slots <- struct{}{}
				defer func() { <-slots }()
				s.play(t, w)
			})
		}
	})
	for _, s := range alone {
		t.Run(s.outcome, func(t *testing.T) { s.play(t, w) })
	}
}

type scenario struct {
	outcome string
	play    func(*testing.T, *world)
}

// atOnce is the number of scenarios that run at a time, besides those with Argo CD. The latter mostly
// wait and take minutes.
const atOnce = 5

// withArgoCD lists scenarios with deployments that a real Argo CD syncs.
var withArgoCD = []scenario{
	{"Argo CD self-heals the spec and does not revert requests", selfHealKeepsRequests},
	{"Argo CD applies waves, and a sync ends when the gateways run its revision", applicationSyncsInWaves},
	{"Argo CD passes the revision on: every commit is a sync", everyCommitIsSynced},
	{"Argo CD and a broken commit: it is rolled back, and the next commit is synced", brokenCommitIsRolledBack},
}

// laterWithArgoCD lists shorter scenarios. Their gateways start after those of withArgoCD.
var laterWithArgoCD = []scenario{
	{"Argo CD and gateways that cannot start: the commit that fixes them is synced once the sync is terminated", aCommitFixesGatewaysThatCannotStart},
	{"Argo CD hands a chart the revision: gateways that cannot start are fixed alone", aChartsGatewaysAreFixedAlone},
	{"Argo CD and a branch in the spec: the synced commit is requested", theCommitOfASyncIsAskedFor},
	{"Argo CD and a ConfigSync: a wave waits until its objects are applied", aWaveWaitsForAConfigSync},
	{"Argo CD and stages: a sync waits for an approval", stagesHoldASync},
}

// sideBySide lists scenarios that do not disturb the cluster or the injector. Each has its own namespace.
var sideBySide = []scenario{
	{"three gateways start at the commit and follow a push", threeGatewaysFollowAPush},
	{"commands of the documents that need nodes work", documentedNodeCommands},
	{"a gateway that seeds its volume itself is synced when it runs", anUnseededGatewayIsSynced},
	{"gateways that started before their GatewaySync existed are repaired", gatewaysOlderThanGatewaySync},
	{"a deleted GatewaySync does not change the gateways", deletedGatewaySyncLeavesGateways},
	{"two releases of the official chart are two gateways", twoReleasesAreTwoGateways},
	{"a redundant pair is synced, its backup on standby", aPairIsSynced},
	{"a pod that requires its agent is refused without a GatewaySync; a corrected Secret is used", podThatRequiresAgent},
	{"a ConfigSync and its gateway take environment and scripts from one commit", environmentAndScriptFromOneCommit},
	{"a ConfigSync that deletes its objects does not hold its namespace", aNamespaceGoesWithItsConfigSync},
}

// alone lists scenarios that stop shared components, the uninstall last.
var alone = []scenario{
	{"an upgrade to the next release, and the way back", anUpgradeAndTheWayBack},
	{"after an uninstall, deleting a ConfigSync leaves its objects", anUninstallLeavesWhatIsNotDeleted},
}
