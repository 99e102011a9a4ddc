package fleet

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/fleet/plant"
	"stoker.io/stoker/test/fleet/receivertest"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/program"
)

// ways implements the four ways to request a version, each with the rights and tools that it has in a
// cluster.
type ways struct {
	*plant.Plant
	t        *testing.T
	receiver *receivertest.Receiver
	titles   map[string]string // commit ID → title

	promoted []string       // the ref of each promotion
	spec     map[string]any // spec of the GatewaySync in Argo CD's repository
	plain    bool           // Argo CD uses client-side apply

	mu   sync.Mutex
	said []string // log of the actions, printed after a failure
}

// The refs of the repository. Both branches move, the tags do not.
var (
	branches = []string{"main", "release"}
	tags     = []string{"v1", "v2", "v3"}
)

func newWays(t *testing.T, p *plant.Plant) *ways {
	t.Helper()
	w := &ways{Plant: p, t: t, titles: map[string]string{p.First: "first"}}
	for _, tag := range tags {
		w.Tag(tag, w.push("main"))
	}
	w.Branch("release", p.First)
	w.receiver = receivertest.Start(t, p)
	raw, err := json.Marshal(p.GatewaySync().Spec)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &w.spec))
	return w
}

func (w *ways) did(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, time.Now().Format("05.000 ")+fmt.Sprintf(format, args...))
}

// push simulates a developer who pushes to a branch.
func (w *ways) push(branch string) string {
	title := "n" + strconv.Itoa(len(w.titles))
	w.Checkout(branch)
	commit := w.Push(title)
	w.titles[commit] = title
	w.did("push %s to %s: %s", title, branch, commit[:7])
	return commit
}

// apply simulates Argo CD. It applies the manifest even if nothing has changed, like self-heal.
// Client-side apply merges changes since the last apply, which an annotation records. Server-side apply
// owns its fields.
func (w *ways) apply(ref string) error {
	w.spec["git"].(map[string]any)["ref"] = ref
	w.did("argo cd applies %s", ref)
	manifest := map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": "GatewaySync", "spec": w.spec,
		"metadata": map[string]any{"name": w.Name, "namespace": w.Namespace}}
	applied, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	kind, options := types.ApplyPatchType, metav1.PatchOptions{FieldManager: "argocd-controller", Force: new(true)}
	if w.plain {
		kind, options = types.MergePatchType, metav1.PatchOptions{FieldManager: "argocd-controller"}
		manifest["metadata"] = map[string]any{"annotations": map[string]any{"kubectl.kubernetes.io/last-applied-configuration": string(applied)}}
		if applied, err = json.Marshal(manifest); err != nil {
			return err
		}
	}
	_, err = kube.GatewaySyncs(w.Kube.Dynamic, w.Namespace).Patch(w.t.Context(), w.Name, kind, applied, options)
	return err
}

// fresh is the age of a new promotion.
const fresh = -1

// promote simulates Kargo, which sends promotions to the receiver. A promotion is new, or the last one
// repeated after a restart of the controller, or an old one sent again. age is the number of newer
// promotions; ref is the ref of a new one.
func (w *ways) promote(ref string, age int) error {
	if age == fresh || len(w.promoted) == 0 {
		w.promoted = append(w.promoted, ref)
		age = 0
	}
	newest := len(w.promoted)
	n := max(newest-age, 1)
	ref = w.promoted[n-1]
	id := fmt.Sprintf("test.01hv%022d.f%d", n, n)
	answer, err := w.receiver.Request(w.t.Context(), "kargo", id, ref)
	if err != nil {
		return err
	}
	w.did("kargo promotes %s as %d of %d: %s", ref, n, newest, answer.Result)
	if want := map[bool]int{true: http.StatusConflict, false: http.StatusAccepted}[n < newest]; answer.Code != want {
		return fmt.Errorf("promotion %d of %d: %d instead of %d: %s", n, newest, answer.Code, want, answer.Message)
	}
	return nil
}

// annotate simulates a user with kubectl who sets a single annotation.
func (w *ways) annotate(name, value string) error {
	w.did("kubectl annotate %s=%s", name, value)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{name: value}}})
	if err != nil {
		return err
	}
	_, err = kube.GatewaySyncs(w.Kube.Dynamic, w.Namespace).Patch(w.t.Context(), w.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "kubectl-annotate"})
	return err
}

// race runs random actions of all four at the same time.
func (w *ways) race(seed uint64, actions int) {
	w.t.Helper()
	all := slices.Concat(branches, tags)
	four := []func(r *rand.Rand) error{
		func(r *rand.Rand) error { return w.apply(all[r.IntN(len(all))]) },
		func(r *rand.Rand) error { return w.promote(tags[r.IntN(len(tags))], max(r.IntN(9)-6, fresh)) },
		func(r *rand.Rand) error { w.push(branches[r.IntN(len(branches))]); return nil },
		func(r *rand.Rand) error {
			if r.IntN(3) == 0 {
				return w.annotate(v1alpha1.AnnotationRequestedAt, time.Now().UTC().Format(time.RFC3339Nano))
			}
			return w.annotate(v1alpha1.AnnotationRequestedRef, all[r.IntN(len(all))])
		},
	}
	var running sync.WaitGroup
	errs := make([]error, len(four))
	for i, act := range four {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		running.Go(func() {
			for range actions {
				time.Sleep(time.Duration(r.IntN(150)) * time.Millisecond)
				if errs[i] = act(r); errs[i] != nil {
					return
				}
			}
		})
	}
	running.Wait()
	for _, err := range errs {
		require.NoError(w.t, err)
	}
}

// settles waits until the fleet runs what the object requests, and returns it.
func (w *ways) settles() desiredref.Desired {
	w.t.Helper()
	var want desiredref.Desired
	w.Eventually("the fleet runs the desired ref", func() bool {
		gs := w.GatewaySync()
		d, err := desiredref.Of(gs, "")
		if err != nil || gs.Status.Target == nil {
			return false
		}
		want = d
		commit := w.Repo.Git("rev-parse", d.Ref+"^{commit}")
		if gs.Status.Target.Ref != d.Ref || !w.Ready(commit) || gs.Status.LastHandledRequest != d.RequestedAt {
			return false
		}
		for _, g := range w.Gateways() {
			if g.Title() != w.titles[commit] {
				return false
			}
		}
		return true
	})
	return want
}

// seedVariable is the environment variable that repeats a race with the given seed.
const seedVariable = "STOKER_RACE_SEED"

// The four ways race against each other, and each status must follow the rules. When they stop, the fleet
// converges to the last state of the object. The next change of the spec wins without clearing any
// annotation.
func TestFourWaysRace(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	if given := os.Getenv(seedVariable); given != "" {
		var err error
		seed, err = strconv.ParseUint(given, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("repeat this run with %s=%d", seedVariable, seed)
	p := plant.New(t, 3, receivertest.SetSecret)
	w := newWays(t, p)
	judge := newWitness(w)
	seen := p.Watch(judge.see)
	p.Start()
	p.Converges(w.titles[w.Head()], w.Head())
	defer func() {
		if t.Failed() {
			for _, line := range w.said {
				t.Log(line)
			}
		}
	}()
	for round := range uint64(3) {
		w.plain = round%2 == 1
		w.race(seed+round, 8)
		d := w.settles()
		w.did("round %d ends with %s (override: %t)", round, d.Ref, d.Override)
	}

	// A → B → A: A request made while the spec named A stays invalid after the spec named B.
	require.NoError(t, w.apply("main"))
	w.settles()
	require.NoError(t, w.promote("v1", fresh))
	require.NoError(t, w.annotate(v1alpha1.AnnotationRequestedRef, "v2"))
	require.Equal(t, "v2", w.settles().Ref, "the last request over the current spec must apply")
	require.NoError(t, w.apply("release"))
	require.Equal(t, "release", w.settles().Ref, "a change of the spec must supersede the request")
	require.NoError(t, w.apply("main"))
	require.Equal(t, "main", w.settles().Ref, "a lapsed request must not return")
	assert.Equal(t, "v2", p.GatewaySync().Annotations[v1alpha1.AnnotationRequestedRef], "the lapsed annotation must stay")
	p.Eventually("a reader has compared an unchanged fleet", func() bool { return judge.exact() > 0 })
	judge.verdict(seen())
}

// The environment of a gateway and the scripts that need it are of one commit, when the gateway goes forward and when it goes back.
func TestExamplePaired(t *testing.T) {
	t.Parallel()
	e := &example{t: t, folder: filepath.Join("..", "..", "examples", "config", "paired"), templates: map[string]*appsv1.StatefulSet{}, before: map[*plant.Gateway]map[string]string{}}
	text, err := os.ReadFile(filepath.Join(e.folder, "gatewaysync.yaml"))
	require.NoError(t, err)
	gs := &v1alpha1.GatewaySync{}
	require.NoError(t, yaml.UnmarshalStrict(text, gs))
	e.Plant = plant.FromFolder(t, gs, filepath.Join(e.folder, "repository"))
	e.Cluster.ApplyYAML(t, e.Namespace, "{apiVersion: v1, kind: Secret, metadata: {name: git-credentials}, stringData: {token: a secret of this test}}")
	for _, file := range []string{"account.yaml", "configsync.yaml"} {
		text, err := os.ReadFile(filepath.Join(e.folder, file))
		require.NoError(t, err)
		// No kubelet runs the pods here, so the StatefulSet does not become healthy.
		e.Cluster.ApplyYAML(t, e.Namespace, strings.Replace(string(text), "      path: kubernetes\n", "      path: kubernetes\n  apply: {wait: false}\n", 1))
	}
	e.WaitAllowed("stoker-config", authorizationv1.ResourceAttributes{Namespace: e.Namespace, Group: "apps", Resource: "statefulsets", Verb: "patch"})
	job := document.NewShell(t, t.TempDir(), map[string]string{"stoker": program.Build(t, "hooks"), "kubectl": kubectl(t)}, "KUBECONFIG="+e.Kubeconfig("stoker-config", ""))

	said, code := job.Try(t, "stoker config apply line")
	assert.NotZero(t, code, "without gateways, there is no commit to apply")
	assert.Contains(t, said, "has no commit")
	job.Type(t, "stoker config render line --ref main -o yaml --show-secrets | kubectl apply -f -")
	first := e.environment("8")
	g := e.replica("line", 0)
	e.Start()
	e.Eventually("the gateway runs the first commit", func() bool { return e.Ready(e.First) })
	assert.Contains(t, job.Type(t, "stoker config apply line"), "3 to configure", "equal objects must be adopted")
	assert.Contains(t, job.Type(t, "stoker config apply line"), "3 unchanged")

	script := "projects/line/ignition/script-python/shift/code.py"
	second := e.Commit("longer shifts", gitserver.Write("kubernetes/line.env", "SHIFT_HOURS=12\nTZ=Europe/Berlin\n"), gitserver.Write(script, "# twelve hours\n"))
	setter := request.NewSetter(e.Kube.Dynamic, nil)
	_, err = setter.Ask(t.Context(), e.Namespace, e.Name, request.Request{By: "cli"}) // without waiting for a poll
	require.NoError(t, err)
	e.Eventually("the gateway runs the second commit", func() bool { return e.Ready(second) })
	e.Commit("not yet on gateways", gitserver.Write("README.md", "x\n"), gitserver.Write("kubernetes/line.env", "SHIFT_HOURS=99\n"))
	job.Type(t, "stoker config apply line")
	assert.NotEqual(t, first, e.environment("12"), "the pods must be recreated")
	assert.Equal(t, "# twelve hours\n", e.files(g)[script])

	_, err = setter.Ask(t.Context(), e.Namespace, e.Name, request.Request{By: "cli", Ref: e.First})
	require.NoError(t, err)
	e.Eventually("the gateway runs again", func() bool { return e.Ready(e.First) })
	job.Type(t, "stoker config apply line")
	assert.Equal(t, first, e.environment("8"))
	assert.Contains(t, e.files(g)[script], "SHIFT_HOURS")
	assert.Empty(t, g.Simulator.Data.LoadErrors())
}

// environment returns the name of the ConfigMap that the StatefulSet takes its environment from, which is the only one, and has these hours.
func (e *example) environment(hours string) string {
	e.t.Helper()
	set, err := e.Kube.Core.AppsV1().StatefulSets(e.Namespace).Get(e.t.Context(), "line", metav1.GetOptions{})
	require.NoError(e.t, err)
	e.templates["line"] = set
	name := set.Spec.Template.Spec.Containers[0].EnvFrom[0].ConfigMapRef.Name
	list, err := e.Kube.Core.CoreV1().ConfigMaps(e.Namespace).List(e.t.Context(), metav1.ListOptions{})
	require.NoError(e.t, err)
	found := map[string]string{}
	for _, m := range list.Items {
		if strings.HasPrefix(m.Name, "line-env-") {
			found[m.Name] = m.Data["SHIFT_HOURS"]
		}
	}
	assert.Equal(e.t, []string{name}, slices.Collect(maps.Keys(found)))
	assert.Equal(e.t, hours, found[name])
	return name
}
