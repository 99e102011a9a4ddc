package configsync_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/configsync"
	"stoker.io/stoker/internal/configsync/source"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/gitserver"
)

// waits runs a ConfigSync, and expects that it waits for a dependency with this message.
func (w *world) waits(name, message string) {
	w.t.Helper()
	_, err := w.applyNamed(name)
	assert.Equal(w.t, v1alpha1.ReasonDependencyNotReady, failure.Reason(err, ""), "%v", err)
	assert.ErrorContains(w.t, err, message)
}

func TestDependsOnConfigSync(t *testing.T) {
	w := newWorld(t)
	w.commit("k8s/a.yaml", configMap("a", "1"), "base/b.yaml", configMap("b", "1"))
	w.create("dependsOn: [{name: base}]")

	w.waits("plant", "waiting for ConfigSync base, which does not exist")
	assert.Nil(t, w.data("a"), "nothing may be applied")
	cs := w.get()
	ready := meta.FindStatusCondition(cs.Status.Conditions, v1alpha1.ConditionReady)
	require.NotNil(t, ready)
	assert.Equal(t, string(v1alpha1.ReasonDependencyNotReady), ready.Reason)
	assert.True(t, meta.IsStatusConditionTrue(cs.Status.Conditions, v1alpha1.ConditionReconciling))
	assert.Nil(t, meta.FindStatusCondition(cs.Status.Conditions, v1alpha1.ConditionStalled))

	w.createNamed("base", "source: {git: {path: base}}")
	w.waits("plant", "no run has handled")
	require.NoError(t, w.run("base"))
	require.NoError(t, w.run("plant"))
	assert.Equal(t, map[string]string{"a": "1"}, w.data("a"))

	second := w.commit("k8s/a.yaml", configMap("a", "2"))
	w.waits("plant", "and not "+second[:7])
	assert.Equal(t, map[string]string{"a": "1"}, w.data("a"), "the dependency still runs the previous commit of the ref")
	require.NoError(t, w.run("base"))
	require.NoError(t, w.run("plant"))
	assert.Equal(t, map[string]string{"a": "2"}, w.data("a"))

	w.commit("base/b.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: b}, data: 1}")
	require.Error(t, w.run("base"))
	w.waits("plant", "waiting for ConfigSync base: ")

	// If the dependency has another ref, its commit does not count.
	w.git.Branch("release", second)
	_, err := kube.ConfigSyncs(w.admin.Dynamic, w.namespace).Patch(t.Context(), "base", types.MergePatchType,
		[]byte(`{"spec":{"source":{"git":{"branch":"release"}}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	w.waits("plant", "no run has handled")
	require.NoError(t, w.run("base"))
	require.NoError(t, w.run("plant"))

	// A run that changes nothing, or only prunes, waits for nothing.
	w.annotate(v1alpha1.AnnotationPaused, "")
	_, err = kube.ConfigSyncs(w.admin.Dynamic, w.namespace).Patch(t.Context(), "plant", types.MergePatchType,
		[]byte(`{"spec":{"dependsOn":[{"name":"none"}]}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	for name, o := range map[string]configsync.Options{"dry run": {DryRun: true}, "prune": {PruneOnly: true}} {
		t.Run(name, func(t *testing.T) {
			_, err := w.engine(w.RESTConfig()).Apply(t.Context(), w.get(), o)
			require.NoError(t, err)
		})
	}
}

func TestDependencyCycle(t *testing.T) {
	w := newWorld(t)
	w.commit("k8s/a.yaml", configMap("a", "1"))
	w.create("dependsOn: [{name: one}]")
	w.createNamed("one", "{source: {git: {path: k8s}}, dependsOn: [{name: two}, {name: missing}]}")
	w.createNamed("two", "{source: {git: {path: k8s}}, dependsOn: [{name: plant}]}")
	for name, cycle := range map[string]string{"plant": "plant → one → two → plant", "two": "two → plant → one → two"} {
		t.Run(name, func(t *testing.T) {
			err := w.run(name)
			assert.Equal(t, v1alpha1.ReasonDependencyCycle, failure.Reason(err, ""), "%v", err)
			assert.ErrorContains(t, err, cycle)
		})
	}
	assert.True(t, meta.IsStatusConditionTrue(w.get().Status.Conditions, v1alpha1.ConditionStalled))
	assert.Nil(t, w.data("a"))

	t.Run("cycle of its dependencies", func(*testing.T) {
		w.createNamed("outside", "{source: {git: {path: k8s}}, dependsOn: [{name: two}]}")
		w.waits("outside", "waiting for ConfigSync two: ")
	})
	t.Run("a dependency on itself", func(t *testing.T) {
		w.createNamed("self", "{source: {git: {path: k8s}}, dependsOn: [{name: self}]}")
		assert.ErrorContains(t, w.run("self"), "self → self")
	})
}

func TestDependsOnGatewaySync(t *testing.T) {
	w := newWorld(t)
	commit := w.commit("k8s/a.yaml", configMap("a", "1"))
	w.create("dependsOn: [{kind: GatewaySync, name: line}]")
	w.waits("plant", "waiting for GatewaySync line, which does not exist")
	w.ApplyYAML(t, w.namespace, "{apiVersion: stoker.io/v1alpha1, kind: GatewaySync, metadata: {name: line}, spec: {git: {repo: '"+w.server.URL("plant.git")+"', ref: main}}}")
	w.waits("plant", "waiting for GatewaySync line: ")

	syncs := kube.GatewaySyncs(w.admin.Dynamic, w.namespace)
	outcome := func(commit string) { // writes the status of a GatewaySync that runs the commit
		t.Helper()
		gs, err := syncs.Get(t.Context(), "line")
		require.NoError(t, err)
		gs.Status = v1alpha1.GatewaySyncStatus{ObservedGeneration: gs.Generation, ObservedRequest: desiredref.Key(gs), ConfirmedAt: new(metav1.Now()),
			Outcome: &v1alpha1.Outcome{Phase: v1alpha1.OutcomeSucceeded, Ref: "main", Commit: commit, Message: "no gateways"}}
		_, err = syncs.Update(t.Context(), gs, metav1.UpdateOptions{}, "status")
		require.NoError(t, err)
	}
	outcome(strings.Repeat("b", 40))
	w.waits("plant", "no agent leads")
	renew := func() { // renews the lock of the agent that leads
		w.ApplyYAML(t, w.namespace, `{apiVersion: stoker.io/v1alpha1, kind: SyncTarget, metadata: {name: line}, spec: {format: 1, lead: {holder: line-0_1, renewed: "`+
			time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")+`", durationSeconds: 60}}}`)
	}
	renew()
	w.waits("plant", "it runs bbbbbbb and not "+commit[:7])
	outcome(commit)

	t.Run("no right to get SyncTargets", func(t *testing.T) {
		config := w.as(rule("stoker.io", "configsyncs,gatewaysyncs", "get"), rule("stoker.io", "configsyncs/status", "update"), rule("", "configmaps", "get", "create", "patch"))
		_, err := w.engine(config).Apply(t.Context(), w.get(), configsync.Options{})
		assert.Equal(t, v1alpha1.ReasonApplyForbidden, failure.Reason(err, ""), "%v", err)
		assert.ErrorContains(t, err, "may not get SyncTarget line", "the message must name the right that the caller lacks")
		assert.Nil(t, w.data("a"), "nothing may be applied before a lead confirms the dependency")
	})

	renew()
	require.NoError(t, w.run("plant"))
	assert.Equal(t, map[string]string{"a": "1"}, w.data("a"))
}

// A ConfigSync without a status is not ready for readers that know only observedGeneration, such as kstatus.
func TestNewConfigSyncIsNotReady(t *testing.T) {
	w := newWorld(t)
	w.create("")
	assert.Equal(t, int64(-1), w.get().Status.ObservedGeneration)
}

// stale marks the kinds of a group as the API server marks those of an extension that does not answer.
type stale struct {
	http.RoundTripper
	group string
}

func (s stale) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := s.RoundTripper.RoundTrip(req)
	if err != nil || req.URL.Path != "/apis" {
		return res, err
	}
	defer func() { _ = res.Body.Close() }()
	var list apidiscoveryv2.APIGroupDiscoveryList
	if err := json.NewDecoder(res.Body).Decode(&list); err != nil {
		return nil, err
	}
	for _, group := range list.Items {
		for i := range group.Versions {
			if group.Name == s.group {
				group.Versions[i].Freshness, group.Versions[i].Resources = apidiscoveryv2.DiscoveryFreshnessStale, nil
			}
		}
	}
	text, err := json.Marshal(list)
	changed := *res
	changed.Body, changed.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	return &changed, err
}

// G3: objects whose kind the API server cannot list for a while are not forgotten, neither by a run that prunes nor by a deletion.
func TestGroupWithoutAnswer(t *testing.T) {
	w := newWorld(t)
	w.commit("k8s/a.yaml", configMap("a", "1")+"{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: closed}, spec: {podSelector: {}}}")
	w.create("")
	w.must()
	w.commit("k8s/a.yaml", configMap("a", "2"))
	config := w.RESTConfig()
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return stale{rt, "networking.k8s.io"} })
	policy := "NetworkPolicy.networking.k8s.io " + w.namespace + "/closed"

	_, err := w.engine(config).Apply(t.Context(), w.get(), configsync.Options{})
	assert.True(t, failure.Is(err, v1alpha1.ReasonPruneFailed), "%v", err)
	assert.ErrorContains(t, err, policy+": the API server cannot say whether it serves")
	assert.Equal(t, map[string]string{"a": "2"}, w.data("a"), "the other objects are applied")
	assert.Len(t, w.get().Status.Inventory, 2)

	remove := func(engine *configsync.Engine) (configsync.Remaining, error) {
		clients := w.admin
		engine.StatusClients = &clients
		return engine.Remove(t.Context(), w.get())
	}
	left, err := remove(w.engine(config))
	assert.True(t, failure.Is(err, v1alpha1.ReasonPruneFailed), "%v", err)
	assert.Equal(t, configsync.Remaining{Objects: []string{policy}}, left)
	assert.Len(t, w.get().Status.Inventory, 1)

	left, err = remove(w.engine(w.RESTConfig()))
	require.NoError(t, err)
	assert.Empty(t, left)
	_, err = w.core.NetworkingV1().NetworkPolicies(w.namespace).Get(t.Context(), "closed", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "%v", err)
}

// target writes the SyncTarget line, as any gateway of the namespace can.
func (w *world) target(ref, commit string, generation int64) {
	w.t.Helper()
	w.ApplyYAML(w.t, w.namespace, fmt.Sprintf("{apiVersion: stoker.io/v1alpha1, kind: SyncTarget, metadata: {name: line}, spec: {format: 1, generation: %d, ref: %q, commit: %q}}",
		generation, ref, commit))
}

// C14: a ConfigSync that follows a GatewaySync trusts its SyncTarget only if the GatewaySync and git confirm it.
func TestFollowedGatewaySync(t *testing.T) {
	w := newWorld(t)
	first := w.commit("k8s/a.yaml", configMap("a", "1"))
	w.commit("k8s/a.yaml", configMap("a", "2"))
	w.ApplyYAML(t, w.namespace, "{apiVersion: stoker.io/v1alpha1, kind: GatewaySync, metadata: {name: line}, spec: {git: {repo: '"+w.server.URL("plant.git")+"', ref: main, allowedRefs: [main, 'release/*']}}}")
	gs, err := kube.GatewaySyncs(w.admin.Dynamic, w.namespace).Get(t.Context(), "line")
	require.NoError(t, err)
	main := w.git.Head()
	w.git.Branch("release/old", first)
	w.git.Branch("fork", w.git.Orphan("of a fork", gitserver.Write("k8s/a.yaml", configMap("a", "forged"))))
	fork := w.git.Git("rev-parse", "fork")[:40]
	w.git.Branch("main", main)
	w.create("source: {git: null, gatewaySync: {name: line, path: k8s}}")
	// The request was made when the spec said another ref, so it is not in force; any gateway can still name it.
	_, err = kube.GatewaySyncs(w.admin.Dynamic, w.namespace).Patch(t.Context(), "line", types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"release/old",%q:"release/old@another"}}}`, v1alpha1.AnnotationRequestedRef, v1alpha1.AnnotationRequestedOver), metav1.PatchOptions{})
	require.NoError(t, err)
	for _, c := range []struct {
		name, ref, commit string
		generation        int64
		reason            v1alpha1.Reason
	}{
		{"request superseded by the spec", "release/old", first, gs.Generation, v1alpha1.ReasonWaitingForLead},
		{"no commit", "main", "", gs.Generation, v1alpha1.ReasonWaitingForLead},
		{"another generation", "main", first, gs.Generation + 1, v1alpha1.ReasonWaitingForLead},
		{"ref that was not requested", "fork", fork, gs.Generation, v1alpha1.ReasonWaitingForLead},
		{"commit of a fork", "main", fork, gs.Generation, v1alpha1.ReasonRefNotAllowed},
		{"commit of the gateways", "main", first, gs.Generation, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.target(c.ref, c.commit, c.generation)
			_, err := w.apply()
			assert.Equal(t, c.reason, failure.Reason(err, ""), "%v", err)
			if c.reason != "" {
				assert.Nil(t, w.data("a"))
				return
			}
			assert.Equal(t, map[string]string{"a": "1"}, w.data("a"), "the commit of the gateways must be applied, not the newest")
			assert.Equal(t, first, w.get().Status.SourceRevision)
			assert.Equal(t, "main", w.get().Status.SourceRef)
		})
	}
}

// watched is a transport that calls see before each request.
type watched struct {
	http.RoundTripper
	see func(*http.Request)
}

func (m watched) RoundTrip(req *http.Request) (*http.Response, error) {
	m.see(req)
	return m.RoundTripper.RoundTrip(req)
}

// watched returns a configuration whose clients call see before each request.
func (w *world) watched(see func(*http.Request)) *rest.Config {
	config := w.RESTConfig()
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return watched{rt, see} })
	return config
}

// meanwhile returns a configuration whose clients call do before the first request that fits.
func (w *world) meanwhile(fits func(*http.Request) bool, do func()) *rest.Config {
	var once sync.Once
	return w.watched(func(req *http.Request) {
		if fits(req) {
			once.Do(do)
		}
	})
}

// A new object needs a dry run and an apply, and no read. An object that exists is read first.
func TestRequestsForNewObjects(t *testing.T) {
	w := newWorld(t)
	w.commit("k8s/a.yaml", configMap("a", "1"), "k8s/b.yaml", configMap("b", "1"), "k8s/c.yaml", configMap("c", "1"))
	w.ApplyYAML(t, w.namespace, "{apiVersion: v1, kind: ConfigMap, metadata: {name: c}, data: {a: theirs}}")
	w.create("apply: {adoptPolicy: always}")
	var mu sync.Mutex
	counts := map[string]int{}
	config := w.watched(func(req *http.Request) {
		if _, name, ok := strings.Cut(req.URL.Path, "/configmaps/"); ok {
			mu.Lock()
			counts[req.Method+" "+name]++
			mu.Unlock()
		}
	})
	_, err := w.engine(config).Apply(t.Context(), w.get(), configsync.Options{})
	require.NoError(t, err)
	for _, name := range []string{"a", "b"} {
		assert.Zero(t, counts["GET "+name], name)
		assert.Equal(t, 2, counts["PATCH "+name], name)
	}
	assert.Positive(t, counts["GET c"], "an object that exists must be read")
	assert.Equal(t, map[string]string{"a": "1"}, w.data("c"))
}

// C14: if the GatewaySync or its commit moves while a run is under way, all objects are still of one commit that the gateways ran, and
// the next run follows.
func TestFollowedCommitMoves(t *testing.T) {
	t.Parallel()
	path := func(method, part string) func(*http.Request) bool {
		return func(req *http.Request) bool { return req.Method == method && strings.Contains(req.URL.Path, part) }
	}
	for name, c := range map[string]struct {
		at     func(*http.Request) bool
		spec   bool // what moves is the spec, not the commit
		reason v1alpha1.Reason
	}{
		"before the first dry run":        {path(http.MethodPatch, "/configmaps/"), false, ""},
		"before the intent":               {path(http.MethodPut, "/configsyncs/"), false, ""},
		"between the spec and its commit": {path(http.MethodGet, "/synctargets/"), true, v1alpha1.ReasonWaitingForLead},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			first := w.commit("k8s/a.yaml", configMap("a", "1"), "k8s/b.yaml", configMap("b", "1"))
			second := w.commit("k8s/a.yaml", configMap("a", "2"), "k8s/b.yaml", configMap("b", "2"))
			w.ApplyYAML(t, w.namespace, "{apiVersion: stoker.io/v1alpha1, kind: GatewaySync, metadata: {name: line}, spec: {git: {repo: '"+w.server.URL("plant.git")+"', ref: main}}}")
			syncs := kube.GatewaySyncs(w.admin.Dynamic, w.namespace)
			gs, err := syncs.Get(t.Context(), "line")
			require.NoError(t, err)
			w.target("main", first, gs.Generation)
			w.create("source: {git: null, gatewaySync: {name: line, path: k8s}}")
			move := func() {
				if !c.spec {
					w.target("main", second, gs.Generation)
					return
				}
				gs, err = syncs.Patch(t.Context(), "line", types.MergePatchType, []byte(`{"spec":{"polling":{"interval":"7m"}}}`), metav1.PatchOptions{})
				assert.NoError(t, err)
				w.target("main", second, gs.Generation)
			}
			_, err = w.engine(w.meanwhile(c.at, move)).Apply(t.Context(), w.get(), configsync.Options{})
			assert.Equal(t, c.reason, failure.Reason(err, ""), "%v", err)
			if c.reason == "" {
				assert.Equal(t, first, w.get().Status.SourceRevision)
				assert.Equal(t, []map[string]string{{"a": "1"}, {"a": "1"}}, []map[string]string{w.data("a"), w.data("b")})
			} else {
				assert.Nil(t, w.data("a"))
			}
			w.must()
			assert.Equal(t, second, w.get().Status.SourceRevision)
			assert.Equal(t, []map[string]string{{"a": "2"}, {"a": "2"}}, []map[string]string{w.data("a"), w.data("b")})
		})
	}
}

// F10: if a GatewaySync delivers only signed commits, a ConfigSync that follows it applies no unsigned one.
func TestFollowedGatewaySyncVerifies(t *testing.T) {
	w := newWorld(t)
	commit := w.commit("k8s/a.yaml", configMap("a", "1"))
	w.ApplyYAML(t, w.namespace, "{apiVersion: v1, kind: ConfigMap, metadata: {name: keys}, data: {keys: 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHsq9RkJ7fTS0fsHr1LhWTPuyvpEfG5jUqNo8gS8wXfC dev'}}")
	w.ApplyYAML(t, w.namespace, "{apiVersion: stoker.io/v1alpha1, kind: GatewaySync, metadata: {name: line}, spec: {git: {repo: '"+w.server.URL("plant.git")+
		"', ref: main, verify: {keysConfigMapRef: {name: keys, key: keys}}}}}")
	gs, err := kube.GatewaySyncs(w.admin.Dynamic, w.namespace).Get(t.Context(), "line")
	require.NoError(t, err)
	w.target("main", commit, gs.Generation)
	w.create("source: {git: null, gatewaySync: {name: line, path: k8s}}")
	w.fails(v1alpha1.ReasonSignatureInvalid)
	assert.Nil(t, w.data("a"))
	condition := w.condition(v1alpha1.ConditionReady)
	require.NotNil(t, condition)
	assert.Equal(t, metav1.ConditionFalse, condition.Status)
}

// The credentials of a GatewaySync must be valid in each run, also if its ref is a commit that an earlier run fetched.
func TestFollowedCommitIsFetchedAgain(t *testing.T) {
	w := newWorld(t)
	commit := w.commit("k8s/a.yaml", configMap("a", "1"))
	w.ApplyYAML(t, w.namespace, "{apiVersion: stoker.io/v1alpha1, kind: GatewaySync, metadata: {name: line}, spec: {git: {repo: '"+w.server.URL("plant.git")+"', ref: "+commit+"}}}")
	gs, err := kube.GatewaySyncs(w.admin.Dynamic, w.namespace).Get(t.Context(), "line")
	require.NoError(t, err)
	w.target(commit, commit, gs.Generation)
	w.create("source: {git: null, gatewaySync: {name: line, path: k8s}}")
	cache, err := source.NewCache(1<<20, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cache.Close()) })
	engine := w.engine(w.RESTConfig())
	engine.Cache = cache
	_, err = engine.Apply(t.Context(), w.get(), configsync.Options{})
	require.NoError(t, err)
	w.server.SetAuth(gitserver.Token("another"))
	_, err = engine.Apply(t.Context(), w.get(), configsync.Options{})
	assert.True(t, failure.Is(err, v1alpha1.ReasonAuthFailed), "%v", err)
}
