package configsync_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/reconcile"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/lease"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/program"
)

// soon bounds the waits for what the program does.
const soon = 90 * time.Second

// installed gives the program the rights of kustomize/components/configsync, and returns the namespace of its ServiceAccount. The program may
// act in the test's namespace.
func (w *world) installed() (system string) {
	w.t.Helper()
	system = w.Namespace(w.t)
	text := strings.NewReplacer("namespace: stoker-system", "namespace: "+system, "namespace: ignition", "namespace: "+w.namespace,
		// Each test has an installation of its own.
		"kind: ClusterRole\nmetadata:\n  name: stoker-configsync", "kind: ClusterRole\nmetadata:\n  name: "+system,
		"kind: ClusterRoleBinding\nmetadata:\n  name: stoker-configsync", "kind: ClusterRoleBinding\nmetadata:\n  name: "+system,
		"kind: ClusterRole\n  name: stoker-configsync", "kind: ClusterRole\n  name: "+system,
	).Replace(kubetest.Shipped(w.t, "../../kustomize/components/configsync", "ServiceAccount/*", "*Role*/*"))
	w.ApplyYAML(w.t, "", text)
	w.WaitAllowed(w.t, system, "stoker-configsync", authorizationv1.ResourceAttributes{Namespace: w.namespace, Verb: "impersonate", Resource: "serviceaccounts", Name: "stoker-config"})
	w.WaitAllowed(w.t, system, "stoker-configsync", authorizationv1.ResourceAttributes{Namespace: system, Verb: "update", Group: "coordination.k8s.io", Resource: "leases", Name: "stoker-configsync"})
	return system
}

// account creates an account of a namespace with rights.
func (w *world) account(namespace, name string, rules ...rbacv1.PolicyRule) {
	w.t.Helper()
	meta := metav1.ObjectMeta{Name: name, Namespace: namespace}
	_, err := w.core.CoreV1().ServiceAccounts(namespace).Create(w.t.Context(), &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
	require.NoError(w.t, err)
	_, err = w.core.RbacV1().Roles(namespace).Create(w.t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
	require.NoError(w.t, err)
	_, err = w.core.RbacV1().RoleBindings(namespace).Create(w.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: name}},
	}, metav1.CreateOptions{})
	require.NoError(w.t, err)
	w.WaitAllowed(w.t, namespace, name, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: rules[0].Verbs[0], Group: rules[0].APIGroups[0], Resource: rules[0].Resources[0]})
}

var configMaps = rule("", "configmaps", "get", "create", "patch", "delete")

// replica is a running replica of the program.
type replica struct {
	log    program.Log
	stop   func()
	runs   atomic.Int32
	pruned atomic.Int32
	lost   atomic.Bool // the replica led, and does nothing any more
}

// runsAgain waits for a run that begins after the call.
func (w *world) runsAgain(p *replica) {
	w.t.Helper()
	// sequence: the first run to end may have begun before the call.
	for range 2 {
		before := p.runs.Load()
		w.annotate(v1alpha1.AnnotationForceSync, fmt.Sprint("after ", before))
		require.Eventually(w.t, func() bool { return p.runs.Load() > before }, soon, 50*time.Millisecond)
	}
}

// program starts a replica. wrap changes its way to the API server; nil changes nothing.
func (w *world) program(system string, wrap func(http.RoundTripper) http.RoundTripper) *replica {
	w.t.Helper()
	config := w.As(w.t, system, "stoker-configsync", "")
	if wrap != nil {
		config.Wrap(wrap)
	}
	p, r := &replica{}, (*reconcile.Reconciler)(nil)
	clients := w.clients(config)
	accounts, err := clients.Accounts()
	require.NoError(w.t, err)
	seen, err := kube.Watch(clients.Dynamic, kube.ConfigSyncs, []string{w.namespace}, nil, func(namespace, name string) { r.Changed(namespace, name) }, nil)
	require.NoError(w.t, err)
	gateways, err := kube.Watch(clients.Dynamic, kube.GatewaySyncs, []string{w.namespace}, nil, func(namespace, name string) { r.GatewaySyncChanged(namespace, name) }, nil)
	require.NoError(w.t, err)
	r = reconcile.New(reconcile.Config{ProgramClients: clients, AccountClients: accounts, ConfigSync: seen.Get, ConfigSyncs: seen.List, GatewaySync: gateways.Get, Log: daemon.Log(&p.log, "text", "info"),
		OnRun: func(v1alpha1.Class, time.Duration) { p.runs.Add(1) }, OnPrune: func(deleted, _ int) { p.pruned.Add(int32(deleted)) }})
	l := lease.Lease{Client: clients.Core, Namespace: system, Name: "stoker-configsync", Holder: lease.Identity("test")}
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() { assert.NoError(w.t, seen.Run(ctx)) })
	ended.Go(func() { assert.NoError(w.t, gateways.Run(ctx)) })
	ended.Go(func() {
		assert.NoError(w.t, l.Elect(ctx, func(ctx context.Context) error { r.Run(ctx); p.lost.Store(true); return nil }))
	})
	p.stop = sync.OnceFunc(func() { cancel(); ended.Wait() })
	w.t.Cleanup(func() {
		p.stop()
		if w.t.Failed() {
			w.t.Log(p.log.String())
		}
	})
	return p
}

// reaches waits until the condition Ready has a status and a reason, for the generation of the spec.
func (w *world) reaches(is metav1.ConditionStatus, reason v1alpha1.Reason) *metav1.Condition {
	w.t.Helper()
	var c *metav1.Condition
	require.Eventually(w.t, func() bool {
		c = w.condition(v1alpha1.ConditionReady)
		return c != nil && c.Status == is && c.Reason == string(reason) && w.get().Status.ObservedGeneration == w.get().Generation
	}, soon, 100*time.Millisecond, "%s/%s: %+v", is, reason, w.get().Status.Conditions)
	return c
}

// has waits until the key a of a ConfigMap has a value, or, if the value is "", until the ConfigMap is gone.
func (w *world) has(name, value string) {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return w.data(name)["a"] == value && (value != "" || w.data(name) == nil) }, soon, 100*time.Millisecond, "%s: %v", name, w.data(name))
}

// patch changes the ConfigSync.
func (w *world) patch(text string) {
	w.t.Helper()
	_, err := kube.ConfigSyncs(w.admin.Dynamic, w.namespace).Patch(w.t.Context(), "plant", types.MergePatchType, []byte(text), metav1.PatchOptions{})
	require.NoError(w.t, err)
}

// edit changes a ConfigMap as a user does.
func (w *world) edit(name, patch string) {
	w.t.Helper()
	_, err := w.core.CoreV1().ConfigMaps(w.namespace).Patch(w.t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(w.t, err)
}

// reasons returns the reasons and the notes of the Events.
func (w *world) reasons() string {
	w.t.Helper()
	var b strings.Builder
	for _, e := range w.events() {
		b.WriteString(e.Type + " " + e.Reason + ": " + e.Message + "\n")
	}
	return b.String()
}

func TestProgramFollowsGit(t *testing.T) {
	w := newWorld(t)
	system := w.installed()
	w.account(w.namespace, "stoker-config", configMaps, rule("", "secrets", "get"))
	w.commit("k8s/a.yaml", configMap("a", "1")+configMap("b", "1"))
	_, err := w.core.CoreV1().Secrets(w.namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "values"}, StringData: map[string]string{"x": "planted-value"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	w.create("{refreshInterval: 5s, render: {template: true, varsFrom: [{secretRef: {name: values}}]}}")
	p := w.program(system, nil)
	w.reaches(metav1.ConditionTrue, v1alpha1.ReasonSynced)
	assert.Equal(t, []string{"a", "b"}, w.ours())
	assert.Equal(t, status.CurrentStatus, w.kstatus())

	second := w.commit("k8s/a.yaml", configMap("a", "2"))
	w.has("a", "2")
	w.has("b", "")
	w.reaches(metav1.ConditionTrue, v1alpha1.ReasonSynced)
	assert.Equal(t, int32(1), p.pruned.Load(), "deleted objects must be counted once")
	assert.Equal(t, second, w.get().Status.LastGood.Commit)

	w.patch(`{"spec":{"refreshInterval":"24h"}}`)
	w.reaches(metav1.ConditionTrue, v1alpha1.ReasonSynced)
	w.commit("k8s/b.yaml", configMap("c", "3"))
	w.annotate(v1alpha1.AnnotationForceSync, "now")
	w.has("c", "3") // an annotation is a reason to run at once
	w.annotate(v1alpha1.AnnotationPaused, "true")
	w.reaches(metav1.ConditionTrue, v1alpha1.ReasonPaused)
	w.commit("k8s/b.yaml", configMap("c", "4"), "second/d.yaml", configMap("d", "1"), "third/e.yaml", configMap("e", "1"))
	w.annotate(v1alpha1.AnnotationForceSync, "again")
	w.annotate(v1alpha1.AnnotationPaused, "false")
	w.has("c", "4")
	w.reaches(metav1.ConditionTrue, v1alpha1.ReasonSynced)
	w.tracked()
	version := w.get().ResourceVersion
	// setup: the program has seen its own writes when it has seen, and run, what was created after them.
	for _, name := range []string{"second", "third"} {
		w.createNamed(name, "{source: {git: {path: "+name+"}}, refreshInterval: 24h}")
		require.Eventually(t, func() bool { return request.ReadConfig(w.getNamed(name), "").Phase == request.Succeeded }, soon, 50*time.Millisecond)
	}
	assert.Equal(t, version, w.get().ResourceVersion, "the program's own writes must not start a run")
	assert.NotContains(t, p.log.String()+w.reasons(), "planted-value")
	assert.Contains(t, w.reasons(), "Normal SyncCompleted: 2 objects of")
}

// G2: a ConfigSync acts as an account of its own namespace that the program may impersonate, and has no other rights.
func TestProgramStaysWithinRights(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ spec, commit, says string }{
		"another account":           {"{serviceAccountName: other}", configMap("a", "1"), "may not act as ServiceAccount other of namespace NS"},
		"missing account":           {"{serviceAccountName: absent}", configMap("a", "1"), "may not act as ServiceAccount absent of namespace NS"},
		"another namespace":         {"", configMap("a", "1") + "{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: ELSEWHERE}}", "forbidden"},
		"Secret of another account": {"{source: {git: {authMethod: https, authSecretRef: {name: hidden}}}}", configMap("a", "1"), "may not get Secret hidden"},
		"variables of a Secret":     {"{render: {template: true, varsFrom: [{secretRef: {name: hidden}}]}}", configMap("a", "{{.Vars.x}}"), "may not get Secret hidden"},
		"rights for itself": {"", "{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: x}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}," +
			" subjects: [{kind: ServiceAccount, name: stoker-config, namespace: NS}]}", "forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			system := w.installed()
			w.account(w.namespace, "stoker-config", configMaps)
			w.account(w.namespace, "other", configMaps)
			elsewhere := w.Namespace(t)
			w.account(elsewhere, "stoker-config", configMaps)
			_, err := w.core.CoreV1().Secrets(w.namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "hidden"}, StringData: map[string]string{"token": "planted-value", "x": "planted-value"}}, metav1.CreateOptions{})
			require.NoError(t, err)
			w.commit("k8s/a.yaml", strings.ReplaceAll(c.commit, "ELSEWHERE", elsewhere))
			w.create(c.spec)
			p := w.program(system, nil)
			ready := w.reaches(metav1.ConditionFalse, v1alpha1.ReasonApplyForbidden)
			assert.Contains(t, ready.Message, strings.ReplaceAll(c.says, "NS", w.namespace))
			assert.Empty(t, w.ours(), "no object was applied")
			_, err = w.core.CoreV1().ConfigMaps(elsewhere).Get(t.Context(), "x", metav1.GetOptions{})
			assert.Error(t, err)
			assert.NotContains(t, p.log.String()+w.reasons(), "planted-value")
		})
	}
}

// cut is the connection of a replica to the API server. From the first apply on, the replica cannot renew its Lease, and further applies
// hang until the replica stops.
type cut struct {
	http.RoundTripper
	once    *sync.Once
	lost    chan struct{} // closed when the Lease cannot be renewed
	applied chan struct{} // an apply arrived
	mu      *sync.Mutex
	late    *[]string // writes after the first apply
}

func (c cut) RoundTrip(req *http.Request) (*http.Response, error) {
	lost := false
	select {
	case <-c.lost:
		lost = true
	default:
	}
	switch write := req.Method != http.MethodGet; {
	case lost && strings.Contains(req.URL.Path, "/leases"):
		return nil, errKilled
	case write && strings.Contains(req.URL.Path, "/configmaps/") && req.URL.Query().Get("dryRun") == "":
		first := false
		c.once.Do(func() { first = true; close(c.lost) })
		if first {
			res, err := c.RoundTripper.RoundTrip(req)
			close(c.applied)
			return res, err
		}
		<-req.Context().Done() // a further apply
		return nil, req.Context().Err()
	case write && lost && !strings.Contains(req.URL.Path, "selfsubjectreviews"):
		c.mu.Lock()
		*c.late = append(*c.late, req.Method+" "+req.URL.Path)
		c.mu.Unlock()
	}
	return c.RoundTripper.RoundTrip(req)
}

// G5: a replica that loses its Lease in the middle of an apply writes nothing more, not even the status; the next one completes the run.
func TestProgramLosesItsLease(t *testing.T) {
	w := newWorld(t)
	system := w.installed()
	w.account(w.namespace, "stoker-config", configMaps)
	w.commit("k8s/a.yaml", configMap("a", "1")+configMap("b", "1")+configMap("c", "1"))
	w.create("")
	first := cut{once: &sync.Once{}, lost: make(chan struct{}), applied: make(chan struct{}), mu: &sync.Mutex{}, late: &[]string{}}
	p := w.program(system, func(rt http.RoundTripper) http.RoundTripper { first.RoundTripper = rt; return first })
	select {
	case <-first.applied:
	case <-time.After(soon):
		require.Fail(t, "no object was applied")
	}
	w.tracked()
	w.program(system, nil)
	w.reaches(metav1.ConditionTrue, v1alpha1.ReasonSynced)
	assert.Equal(t, []string{"a", "b", "c"}, w.ours())
	assert.True(t, p.lost.Load(), "a replica must stop before another one gets the Lease")
	first.mu.Lock()
	defer first.mu.Unlock()
	assert.Empty(t, *first.late)
}

// G5: a commit that never becomes healthy does not keep the next one waiting.
func TestProgramReplacesUnhealthyCommit(t *testing.T) {
	w := newWorld(t)
	system := w.installed()
	w.account(w.namespace, "stoker-config", configMaps, rule("apps", "deployments", "get", "create", "patch", "delete"))
	const deployment = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {selector: {matchLabels: {a: b}}," +
		" template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: none}]}}}}"
	w.commit("k8s/a.yaml", configMap("a", "1")+deployment)
	w.create("{progressDeadline: 1h}")
	w.program(system, nil)
	ready := w.reaches(metav1.ConditionFalse, v1alpha1.ReasonProgressing)
	require.Eventually(t, func() bool {
		ready = w.condition(v1alpha1.ConditionReady)
		return strings.Contains(ready.Message, "waiting for 1 of 2 objects to become healthy: Deployment.apps")
	}, soon, 100*time.Millisecond)
	assert.Equal(t, metav1.ConditionFalse, w.condition(v1alpha1.ConditionDegraded).Status)
	assert.Equal(t, status.InProgressStatus, w.kstatus())
	w.commit("k8s/a.yaml", configMap("a", "2"))
	w.has("a", "2")
	w.reaches(metav1.ConditionTrue, v1alpha1.ReasonSynced)
	assert.NotContains(t, w.reasons(), "SyncFailed")

	w.commit("k8s/a.yaml", configMap("a", "3")+deployment)
	w.patch(`{"spec":{"progressDeadline":"1s"}}`)
	w.reaches(metav1.ConditionFalse, v1alpha1.ReasonProgressDeadlineExceeded)
	assert.Equal(t, status.FailedStatus, w.kstatus())
}

// C3: what users change in the cluster is repaired at the next refresh, or reported.
func TestProgramDrift(t *testing.T) {
	w := newWorld(t)
	system := w.installed()
	w.account(w.namespace, "stoker-config", configMaps, rule("", "secrets", "get", "create", "patch"))
	edit := func() {
		t.Helper()
		w.edit("a", `{"data":{"a":"edited"}}`)
		_, err := w.core.CoreV1().Secrets(w.namespace).Patch(t.Context(), "s", types.MergePatchType, []byte(`{"data":{"k":"ZWRpdGVk"}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	secret := func() string {
		s, err := w.core.CoreV1().Secrets(w.namespace).Get(t.Context(), "s", metav1.GetOptions{})
		require.NoError(t, err)
		return string(s.Data["k"])
	}
	const planted = "{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {k: planted-value}}\n---\n"
	w.commit("k8s/a.yaml", configMap("a", "1")+configMap("b", "1")+planted)
	w.create("{refreshInterval: 5s}")
	p := w.program(system, nil)
	w.reaches(metav1.ConditionTrue, v1alpha1.ReasonSynced)
	edit()
	w.has("a", "1")
	require.Eventually(t, func() bool { return secret() == "planted-value" && strings.Contains(w.reasons(), "DriftRepaired") }, soon, 100*time.Millisecond)
	assert.Contains(t, w.reasons(), "Normal DriftRepaired: restored 1 objects that were changed in the cluster: ConfigMap "+w.namespace+"/a (data.a)")

	w.patch(`{"spec":{"apply":{"driftPolicy":"report"}}}`)
	w.reaches(metav1.ConditionTrue, v1alpha1.ReasonSynced)
	edit()
	require.Eventually(t, func() bool { return w.get().Status.Targets[1].State == v1alpha1.ConfigDrifted }, soon, 100*time.Millisecond)
	w.reaches(metav1.ConditionTrue, v1alpha1.ReasonSynced)
	st := w.get().Status
	assert.Equal(t, "3/3", st.TargetsReady)
	assert.Equal(t, v1alpha1.ConfigDrifted, st.Targets[0].State)
	assert.Equal(t, "changed in the cluster: data.a", st.Targets[0].Message)
	assert.Equal(t, v1alpha1.ConfigDrifted, st.Targets[1].State)
	assert.Equal(t, "changed in the cluster: data.k", st.Targets[1].Message)
	assert.Contains(t, w.reaches(metav1.ConditionTrue, v1alpha1.ReasonSynced).Message, "; 2 of them were changed in the cluster and stay so")
	st, events := w.get().Status, w.reasons()
	w.runsAgain(p)
	assert.Equal(t, st, w.get().Status)
	assert.Equal(t, events, w.reasons(), "the drift must be reported once")
	assert.Equal(t, "edited", w.data("a")["a"])
	assert.Equal(t, "edited", secret())
	w.commit("k8s/a.yaml", configMap("a", "2")+configMap("b", "1")+planted)
	w.has("a", "2")
	require.Eventually(t, func() bool { return w.get().Status.Targets[0].State != v1alpha1.ConfigDrifted }, soon, 100*time.Millisecond, "after a new commit, the object must count as applied")
	assert.Equal(t, "planted-value", secret())
	assert.NotContains(t, w.reasons(), "planted-value")
}

// Although its interval is a day, a ConfigSync runs soon after a change of what it waits for or follows.
func TestProgramRunsAfterDependencies(t *testing.T) {
	w := newWorld(t)
	system := w.installed()
	w.account(w.namespace, "stoker-config", configMaps, rule("stoker.io", "configsyncs,gatewaysyncs,synctargets", "get"))
	first := w.commit("k8s/a.yaml", configMap("a", "1"), "base/b.yaml", "broken")
	w.create("{refreshInterval: 24h, dependsOn: [{name: base}]}")
	w.createNamed("base", "{source: {git: {path: base}}, refreshInterval: 24h}")
	w.ApplyYAML(t, w.namespace, "{apiVersion: stoker.io/v1alpha1, kind: GatewaySync, metadata: {name: line}, spec: {git: {repo: '"+w.server.URL("plant.git")+"', ref: main}}}")
	w.ApplyYAML(t, w.namespace, "{apiVersion: stoker.io/v1alpha1, kind: ConfigSync, metadata: {name: follower}, spec: {refreshInterval: 24h, source: {gatewaySync: {name: line, path: follow}}}}")
	p := w.program(system, nil)
	w.reaches(metav1.ConditionFalse, v1alpha1.ReasonDependencyNotReady)

	w.commit("base/b.yaml", configMap("b", "1"), "follow/f.yaml", configMap("f", "1"))
	dynamic := w.admin.Dynamic
	_, err := kube.ConfigSyncs(dynamic, w.namespace).Patch(t.Context(), "base", types.MergePatchType, []byte(`{"metadata":{"annotations":{"stoker.io/force-sync":"now"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	w.has("b", "1")
	w.has("a", "1")
	w.reaches(metav1.ConditionTrue, v1alpha1.ReasonSynced)

	second := w.git.Head()
	require.NotEqual(t, first, second)
	publish := func(commit string) {
		t.Helper()
		gs, err := kube.GatewaySyncs(dynamic, w.namespace).Get(t.Context(), "line")
		require.NoError(t, err)
		w.target("main", commit, gs.Generation)
		gs.Status.Target = &v1alpha1.TargetStatus{Ref: "main", Commit: commit}
		_, err = kube.GatewaySyncs(dynamic, w.namespace).Update(t.Context(), gs, metav1.UpdateOptions{}, "status")
		require.NoError(t, err)
	}
	publish(second)
	w.has("f", "1")
	publish(w.commit("follow/f.yaml", configMap("f", "2")))
	w.has("f", "2")
	assert.Contains(t, p.log.String(), `msg="ConfigSync waits"`)
	assert.NotContains(t, w.reasons(), "waiting for ConfigSync base", "a wait must not be reported as a failure")
}
