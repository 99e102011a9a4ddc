package configsync_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/configsync"
	"stoker.io/stoker/internal/configsync/source"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/test/gitserver"
)

// setter writes requests to ConfigSyncs.
func (w *world) setter() *request.Setter {
	return request.NewSetter(w.admin.Dynamic, nil).Of(kube.ConfigSync)
}

// ask requests a ref of the ConfigSync.
func (w *world) ask(r request.Request) request.Answer {
	w.t.Helper()
	r.By = "cli"
	answer, err := w.setter().Ask(w.t.Context(), w.namespace, "plant", r)
	require.NoError(w.t, err)
	return answer
}

// verdict is what stoker wait reads.
func (w *world) verdict() request.Verdict { return request.ReadConfig(w.get(), "") }

// A request of a ConfigSync has the rules of a GatewaySync: package desiredref decides for both.
func TestRequestedRef(t *testing.T) {
	w := newWorld(t)
	first := w.commit("k8s/a.yaml", configMap("a", "1"))
	w.git.Tag("v1", first)
	second := w.commit("k8s/a.yaml", configMap("a", "2"))
	w.create("source: {git: {allowedRefs: [main, 'v*']}}")
	assert.Equal(t, request.Progressing, w.verdict().Phase, "no run has handled the spec yet")
	w.must()
	assert.Equal(t, request.Succeeded, w.verdict().Phase)

	// sequence: each step starts with the state that the last one left
	w.ask(request.Request{Ref: "v1", ID: "job-1"})
	assert.Equal(t, request.Progressing, w.verdict().Phase, "no run has handled the request yet")
	w.must()
	cs := w.get()
	assert.Equal(t, "1", w.data("a")["a"])
	assert.Equal(t, []string{"v1", first, desiredref.Key(cs)}, []string{cs.Status.SourceRef, cs.Status.SourceRevision, cs.Status.ObservedRequest})
	assert.Equal(t, request.Verdict{Phase: request.Succeeded, Ref: "v1", Commit: first, Reason: v1alpha1.ReasonSynced, Message: "1 objects of " + first[:7] + " are applied and healthy"}, w.verdict())
	assert.Equal(t, request.Overtaken, request.ReadConfig(cs, "main").Phase)
	assert.Equal(t, request.Unchanged, w.ask(request.Request{Ref: "v1", ID: "job-1"}).Outcome)

	w.git.Tag("nightly", first)
	w.ask(request.Request{Ref: "nightly"})
	w.fails(v1alpha1.ReasonRefNotAllowed)
	assert.Equal(t, request.Failed, w.verdict().Phase)

	w.ask(request.Request{Ref: "v1", Commit: second})
	w.fails(v1alpha1.ReasonRefMoved)
	w.git.Tag("v1", second)
	_, err := w.apply()
	assert.True(t, failure.Is(err, v1alpha1.ReasonRefMoved), "a rejected request must stay rejected: %v", err)
	assert.Equal(t, "1", w.data("a")["a"])

	w.create("source: {git: {branch: null, revision: refs/heads/main, allowedRefs: [main, 'v*']}}")
	w.must()
	assert.Equal(t, "2", w.data("a")["a"], "a later change of the spec must supersede the request")
	assert.NotEmpty(t, w.get().Status.Request.Lapsed)
	assert.Equal(t, request.Succeeded, w.verdict().Phase)
}

func TestRollbackRequest(t *testing.T) {
	w := newWorld(t)
	first := w.commit("k8s/a.yaml", configMap("a", "1"))
	w.create("")
	_, err := w.setter().Rollback(t.Context(), w.namespace, "plant", "", "", "cli", "")
	require.ErrorContains(t, err, "no commit was applied with all objects healthy yet")
	w.must()
	second := w.commit("k8s/a.yaml", configMap("a", "2"))
	w.must()
	answer, err := w.setter().Rollback(t.Context(), w.namespace, "plant", "", first[:7], "cli", "")
	require.NoError(t, err)
	assert.Equal(t, "to "+first[:7]+" until main moves on from "+second[:7], answer.Message)
	for range 2 {
		w.must()
		assert.Equal(t, "1", w.data("a")["a"])
		assert.Contains(t, w.condition(v1alpha1.ConditionReady).Message, "rolled back: "+second[:7]+" of main is blocked")
	}
	w.commit("k8s/a.yaml", configMap("a", "3"))
	w.must()
	assert.Equal(t, "3", w.data("a")["a"])
	w.git.ForcePush(second)
	w.must()
	assert.Equal(t, "2", w.data("a")["a"], "a lapsed rollback must not return")
}

// A ConfigSync that follows a GatewaySync has no ref of its own.
func TestRequestOfFollower(t *testing.T) {
	w := newWorld(t)
	commit := w.commit("k8s/a.yaml", configMap("a", "1"))
	w.ApplyYAML(t, w.namespace, "{apiVersion: stoker.io/v1alpha1, kind: GatewaySync, metadata: {name: line}, spec: {git: {repo: '"+w.server.URL("plant.git")+"', ref: main}}}")
	gs, err := kube.GatewaySyncs(w.admin.Dynamic, w.namespace).Get(t.Context(), "line")
	require.NoError(t, err)
	w.target("main", commit, gs.Generation)
	w.create("source: {git: null, gatewaySync: {name: line, path: k8s}}")
	_, err = w.setter().Ask(t.Context(), w.namespace, "plant", request.Request{Ref: "v1", By: "cli"})
	require.ErrorContains(t, err, "request the ref of the GatewaySync")
	_, err = w.setter().Rollback(t.Context(), w.namespace, "plant", "", "", "cli", "")
	require.ErrorContains(t, err, "request the ref of the GatewaySync")
	assert.Empty(t, w.get().Annotations)
	w.ask(request.Request{Force: true})
	w.must()
	assert.Equal(t, request.Succeeded, w.verdict().Phase)
	w.annotate(v1alpha1.AnnotationRequestedRef, "v1")
	w.fails(v1alpha1.ReasonRefNotAllowed)
}

// broken never becomes healthy.
const broken = "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: line}, spec: {serviceName: s, selector: {matchLabels: {a: b}}, " +
	"template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: c}]}}}}\n---\n"

func TestRollbackOnFailure(t *testing.T) {
	w := newWorld(t)
	first := w.commit("k8s/a.yaml", configMap("a", "1"))
	w.create("{progressDeadline: 1s, rollbackOnFailure: LastGood}")
	w.must()

	// sequence: each step starts with the state that the last one left
	refused := w.commit("k8s/a.yaml", configMap("a", "2")+"{apiVersion: v1, kind: ConfigMap, metadata: {name: b}, data: {a: [1]}}\n")
	_, err := w.apply()
	require.Error(t, err)
	assert.Equal(t, "1", w.data("a")["a"])
	assert.NotContains(t, w.get().Annotations, v1alpha1.AnnotationRequestedRef, "a run that changed nothing must not request a rollback")

	second := w.commit("k8s/a.yaml", configMap("a", "2")+broken)
	w.fails(v1alpha1.ReasonProgressDeadlineExceeded)
	cs := w.get()
	assert.Equal(t, []string{first, second}, []string{cs.Annotations[v1alpha1.AnnotationRequestedRef], cs.Annotations[v1alpha1.AnnotationRequestedUnless]})
	assert.NotEqual(t, refused, second)
	for range 2 { // no loop
		w.must()
		assert.Equal(t, "1", w.data("a")["a"])
		assert.Contains(t, w.condition(v1alpha1.ConditionReady).Message, "rolled back: "+second[:7]+" of main is blocked")
		assert.Equal(t, cs.Annotations, w.get().Annotations)
	}
	w.git.Git("branch", "other", "main")
	w.git.Git("update-ref", "-d", "refs/heads/main")
	w.must()
	assert.Equal(t, "1", w.data("a")["a"], "while the ref is missing, the rollback must stay")
	w.git.Git("update-ref", "refs/heads/main", second)
	_, err = w.core.AppsV1().StatefulSets(w.namespace).Get(t.Context(), "line", metav1.GetOptions{})
	require.Error(t, err)
	assert.Contains(t, w.reasons(), fmt.Sprintf("Warning RollbackRequested: %s failed: requested a rollback to %s until main moves on from %s", second[:7], first[:7], second[:7]))
	assert.Contains(t, w.reasons(), "Normal RollbackCompleted: rolled back")

	third := w.commit("k8s/a.yaml", configMap("a", "3"))
	w.must()
	assert.Equal(t, "3", w.data("a")["a"], "the rollback must end when the ref moves on")
	assert.Equal(t, third, w.get().Status.LastGood.Commit)

	w.commit("k8s/a.yaml", configMap("a", "4")+broken)
	w.create("{progressDeadline: 1s, rollbackOnFailure: None}")
	w.fails(v1alpha1.ReasonProgressDeadlineExceeded)
	assert.Equal(t, cs.Annotations, w.get().Annotations)
	assert.Equal(t, "4", w.data("a")["a"])
}

// A rollback goes to a commit that was good from the present path. Another path forgets it when a run applies something from there.
func TestRollbackAfterChangedSource(t *testing.T) {
	t.Parallel()
	const other = `{"spec":{"source":{"git":{"path":"other"}}}}`
	for name, c := range map[string]struct {
		change  func(*world)
		forgets bool
	}{
		"another path":     {func(w *world) { w.patch(other) }, true},
		"another deadline": {func(w *world) { w.patch(`{"spec":{"progressDeadline":"2s"}}`) }, false},
		"missing ConfigMap": {func(w *world) {
			w.patch(`{"spec":{"render":{"varsFrom":[{"configMapRef":{"name":"absent"}}]}}}`)
			w.fails(v1alpha1.ReasonSourceMissing)
			w.patch(`{"spec":{"render":{"varsFrom":null}}}`)
		}, false},
		"mistyped path": {func(w *world) {
			w.patch(`{"spec":{"source":{"git":{"path":"absent"}}}}`)
			w.fails(v1alpha1.ReasonSourceMissing)
			w.patch(`{"spec":{"source":{"git":{"path":"k8s"}}}}`)
		}, false},
		"another path, refused while the ConfigSync is degraded": {func(w *world) {
			w.patch(`{"spec":{"rollbackOnFailure":"None"}}`)
			w.commit("k8s/a.yaml", configMap("a", "1")+broken)
			w.fails(v1alpha1.ReasonProgressDeadlineExceeded)
			w.patch(`{"spec":{"rollbackOnFailure":"LastGood"}}`)
			w.patch(other)
			w.commit("other/b.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: b}, data: {a: [1]}}")
			w.fails(v1alpha1.ReasonApplyRefused)
			assert.Empty(w.t, w.get().Annotations)
			w.commit("other/b.yaml", "")
		}, true},
		"another path without a change": {func(w *world) {
			w.patch(other)
			w.must()
			assert.Equal(w.t, "other", w.get().Status.SourcePath)
			w.patch(`{"spec":{"source":{"git":{"path":"k8s"}}}}`)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.commit("k8s/a.yaml", configMap("a", "1"), "other/a.yaml", configMap("a", "1"))
			w.create("{progressDeadline: 1s, rollbackOnFailure: LastGood}")
			first := w.must().Commit()
			c.change(w)
			w.commit("k8s/a.yaml", configMap("a", "2")+broken, "other/a.yaml", configMap("a", "2")+broken)
			w.fails(v1alpha1.ReasonProgressDeadlineExceeded)
			if !c.forgets {
				assert.Equal(t, first, w.get().Annotations[v1alpha1.AnnotationRequestedRef])
				return
			}
			assert.Empty(t, w.get().Annotations)
			assert.Nil(t, w.get().Status.LastGood)
			good := w.commit("k8s/a.yaml", configMap("a", "3"), "other/a.yaml", configMap("a", "3"))
			w.must()
			w.commit("k8s/a.yaml", configMap("a", "4")+broken, "other/a.yaml", configMap("a", "4")+broken)
			w.fails(v1alpha1.ReasonProgressDeadlineExceeded)
			assert.Equal(t, good, w.get().Annotations[v1alpha1.AnnotationRequestedRef])
		})
	}
}

// A run that changes nothing of a partly applied commit still reports it, and requests the rollback that the run before could not request.
func TestRollbackAfterLostRequest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ dryRun, killed bool }{
		"refused in the dry run": {dryRun: true},
		"refused at the apply":   {},
		"no status was written":  {killed: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			first := w.commit("k8s/a.yaml", configMap("a", "1"))
			w.create("rollbackOnFailure: LastGood")
			w.must()
			second := w.commit("k8s/a.yaml", configMap("a", "2"), "k8s/b.yaml", "{apiVersion: v1, kind: Service, metadata: {name: b}, spec: {clusterIP: None, ports: [{port: 1}]}}")
			run := func(refused func(*http.Request) bool) {
				config := w.RESTConfig()
				config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return refuses{rt, refused} })
				_, err := w.engine(config).Apply(t.Context(), w.get(), configsync.Options{})
				assert.True(t, failure.Is(err, v1alpha1.ReasonApplyRefused), "%v", err)
				assert.NotEqual(t, metav1.ConditionFalse, w.condition(v1alpha1.ConditionDegraded).Status)
				assert.Equal(t, "2", w.data("a")["a"])
			}
			patches := func(req *http.Request, name string) bool {
				return req.Method == http.MethodPatch && strings.HasSuffix(req.URL.Path, name)
			}
			dead := &atomic.Bool{}
			run(func(req *http.Request) bool {
				refused := patches(req, "/services/b") && !req.URL.Query().Has("dryRun") || patches(req, "/configsyncs/plant")
				if c.killed && refused {
					dead.Store(true)
				}
				return refused || dead.Load()
			})
			assert.Empty(t, w.get().Annotations)
			run(func(req *http.Request) bool {
				return patches(req, "/services/b") && req.URL.Query().Has("dryRun") == c.dryRun
			})
			cs := w.get()
			assert.Equal(t, []string{first, second}, []string{cs.Annotations[v1alpha1.AnnotationRequestedRef], cs.Annotations[v1alpha1.AnnotationRequestedUnless]})
			w.must()
			assert.Equal(t, "1", w.data("a")["a"])
			assert.Equal(t, metav1.ConditionFalse, w.condition(v1alpha1.ConditionDegraded).Status)
		})
	}
}

// An object that could not be pruned does not roll the next commit back.
func TestRollbackAfterFailedPrune(t *testing.T) {
	w := newWorld(t)
	w.commit("k8s/a.yaml", configMap("a", "1"), "k8s/b.yaml", configMap("b", "1"))
	w.create("rollbackOnFailure: LastGood")
	w.must()
	w.commit("k8s/a.yaml", configMap("a", "2"), "k8s/b.yaml", "")
	config := w.RESTConfig()
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		return refuses{rt, func(req *http.Request) bool { return req.Method == http.MethodDelete }}
	})
	for _, reason := range []v1alpha1.Reason{v1alpha1.ReasonPruneFailed, v1alpha1.ReasonApplyRefused} {
		_, err := w.engine(config).Apply(t.Context(), w.get(), configsync.Options{})
		assert.True(t, failure.Is(err, reason), "%v", err)
		assert.Equal(t, metav1.ConditionTrue, w.condition(v1alpha1.ConditionDegraded).Status)
		assert.Empty(t, w.get().Annotations)
		w.commit("k8s/c.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: c}, data: {a: [1]}}")
	}
}

// The program has the right to request a rollback, and carries it out.
func TestProgramRollsBack(t *testing.T) {
	w := newWorld(t)
	system := w.installed()
	w.account(w.namespace, "stoker-config", configMaps, rule("apps", "statefulsets", "get", "create", "patch", "delete"))
	w.commit("k8s/a.yaml", configMap("a", "1"))
	w.create("{refreshInterval: 5s, progressDeadline: 1s, rollbackOnFailure: LastGood}")
	w.program(system, nil)
	w.reaches(metav1.ConditionTrue, v1alpha1.ReasonSynced)
	second := w.commit("k8s/a.yaml", configMap("a", "2")+broken)
	require.Eventually(t, func() bool {
		v := w.verdict()
		return v.Phase == request.Succeeded && desiredref.InputsOf(w.get()).Unless() == second
	}, soon, 100*time.Millisecond)
	assert.Equal(t, "1", w.data("a")["a"])
	w.commit("k8s/a.yaml", configMap("a", "3"))
	w.has("a", "3")
}

// While a run waits for healthy objects, its commit can be rolled back.
func TestRollbackWhileRunWaits(t *testing.T) {
	w := newWorld(t)
	good := w.commit("k8s/a.yaml", configMap("a", "1"))
	w.create("progressDeadline: 5m")
	w.must()
	bad := w.commit("k8s/b.yaml", "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: line}, spec: {serviceName: s, selector: {matchLabels: {a: b}}, "+
		"template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: c}]}}}}")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := w.engine(w.RESTConfig()).Apply(ctx, w.get(), configsync.Options{})
		done <- err
	}()
	require.Eventually(t, func() bool { return w.get().Status.SourceRevision == bad }, soon, 50*time.Millisecond)
	require.Equal(t, &v1alpha1.Rollback{Commit: good, Unless: bad, Over: good + "@main"}, w.get().Status.Rollback)
	answer, err := w.setter().Rollback(t.Context(), w.namespace, "plant", "", "", "cli", "")
	require.NoError(t, err)
	assert.Equal(t, request.Set, answer.Outcome)
	cancel()
	require.Error(t, <-done)
	w.must()
	assert.Equal(t, good, w.get().Status.SourceRevision)
}

// If the spec names a commit ID, a run uses cached objects without a request to git, but only with the credentials that fetched them.
func TestKeptObjectsNeedCredentials(t *testing.T) {
	w := newWorld(t)
	w.server.SetAuth(gitserver.Basic("git", "S3CR3T-right"))
	commit := w.commit("k8s/a.yaml", configMap("a", "1"))
	w.ApplyYAML(t, w.namespace, "{apiVersion: v1, kind: Secret, metadata: {name: git}, stringData: {username: git, password: S3CR3T-right}}")
	w.create("source: {git: {branch: null, revision: " + commit + ", authMethod: https, authSecretRef: {name: git}}}")
	cache, err := source.NewCache(1<<20, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cache.Close()) })
	engine := w.engine(w.RESTConfig())
	engine.Cache = cache
	run := func() error {
		_, err := engine.Apply(t.Context(), w.get(), configsync.Options{})
		return err
	}
	require.NoError(t, run())
	w.server.Forget()
	require.NoError(t, run())
	assert.Zero(t, w.server.Stats().UploadPacks, "the cached commit must be used")
	w.ApplyYAML(t, w.namespace, "{apiVersion: v1, kind: Secret, metadata: {name: git}, stringData: {username: git, password: S3CR3T-wrong}}")
	assert.True(t, failure.Is(run(), v1alpha1.ReasonAuthFailed))
}
