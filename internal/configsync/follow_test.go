package configsync_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync"
	"stoker.io/stoker/internal/configsync/source"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/gitserver"
)

// target writes the SyncTarget line, as any gateway of the namespace can.
func (w *world) target(ref, commit string, generation int64) {
	w.t.Helper()
	w.ApplyYAML(w.t, w.namespace, fmt.Sprintf("{apiVersion: stoker.io/v1alpha1, kind: SyncTarget, metadata: {name: line}, spec: {format: 1, generation: %d, ref: %q, commit: %q}}",
		generation, ref, commit))
}

// C14: a ConfigSync that follows a GatewaySync believes its SyncTarget only as far as the GatewaySync and git bear it out.
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

// meanwhile returns a configuration whose clients do something before the first request that fits.
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
	assert.Positive(t, counts["GET c"], "it exists")
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

// F10: a GatewaySync that delivers only signed commits does not lend an unsigned one.
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
	_, err = w.apply()
	assert.True(t, failure.Is(err, v1alpha1.ReasonSignatureInvalid), "%v", err)
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
