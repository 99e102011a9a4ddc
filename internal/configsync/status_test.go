package configsync_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
)

// After every run, kstatus reads the outcome from the status, as Flux and kubectl wait do. The cases follow each other.
func TestStatusAfterEachRun(t *testing.T) {
	w := newWorld(t)
	w.create("")
	type outcome struct {
		name   string
		spec   string
		files  []string
		reason v1alpha1.Reason
		want   status.Status
	}
	// sequence: a status must not keep anything of the run before.
	for _, c := range []outcome{
		{"no path", "", []string{"other/a.yaml", configMap("a", "1")}, v1alpha1.ReasonSourceMissing, status.FailedStatus},
		{"applied", "", []string{"k8s/a.yaml", configMap("a", "1")}, "", status.CurrentStatus},
		{"broken", "", []string{"k8s/b.yaml", "a: ["}, v1alpha1.ReasonManifestInvalid, status.FailedStatus},
		{"repaired", "", []string{"k8s/b.yaml", ""}, "", status.CurrentStatus},
		{"unknown kind", "", []string{"k8s/b.yaml", "{apiVersion: example.com/v1, kind: Unknown, metadata: {name: b}}"}, v1alpha1.ReasonKindUnknown, status.InProgressStatus},
		{"another spec", "apply: {wait: false}", []string{"k8s/b.yaml", ""}, "", status.CurrentStatus},
		{"foreign object", "", []string{"k8s/b.yaml", configMap("kube-root-ca.crt", "1")}, v1alpha1.ReasonNotOwned, status.FailedStatus},
		{"unhealthy", "progressDeadline: 1s", []string{"k8s/b.yaml", "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: c}, spec: {storageClassName: none, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}"}, v1alpha1.ReasonProgressDeadlineExceeded, status.FailedStatus},
		{"mass deletion", "", []string{"k8s/a.yaml", "# nothing", "k8s/b.yaml", ""}, v1alpha1.ReasonMassDeletion, status.FailedStatus},
		{"dry run", "apply: {dryRun: true}", []string{"k8s/a.yaml", configMap("a", "2")}, "", ""},
		{"applied again", "apply: {dryRun: false}", nil, "", status.CurrentStatus},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := *w
			w.t = t
			w.create(c.spec)
			if c.files != nil {
				w.commit(c.files...)
			}
			_, err := w.apply()
			assert.Equal(t, c.reason, failure.Reason(err, ""), "%v", err)
			cs := w.get()
			assert.Equal(t, cs.Generation, cs.Status.ObservedGeneration)
			ready, reconciling, stalled := w.condition(v1alpha1.ConditionReady), w.condition(v1alpha1.ConditionReconciling), w.condition(v1alpha1.ConditionStalled)
			require.NotNil(t, ready)
			assert.False(t, reconciling != nil && stalled != nil, "Reconciling and Stalled must not be set together")
			for _, condition := range cs.Status.Conditions {
				if condition.Type != v1alpha1.ConditionDegraded { // it keeps the generation of the run that applied objects
					assert.Equal(t, cs.Generation, condition.ObservedGeneration, condition.Type)
				}
				assert.NotEmpty(t, condition.Message, condition.Type)
			}
			if c.reason == "" && c.want == status.CurrentStatus {
				assert.Equal(t, metav1.ConditionTrue, ready.Status)
				assert.Nil(t, reconciling)
				assert.Nil(t, stalled)
			} else {
				assert.Equal(t, metav1.ConditionFalse, ready.Status, "Ready must be False until everything is applied")
			}
			if c.want != "" {
				assert.Equal(t, c.want, w.kstatus())
			} else {
				assert.NotEqual(t, status.CurrentStatus, w.kstatus())
			}
			phase := map[status.Status]v1alpha1.OutcomePhase{status.CurrentStatus: v1alpha1.OutcomeSucceeded, status.InProgressStatus: v1alpha1.OutcomeProgressing,
				status.FailedStatus: v1alpha1.OutcomeFailed, "": v1alpha1.OutcomePaused}[c.want]
			if c.reason.Class() == v1alpha1.ClassHeld {
				phase = v1alpha1.OutcomeHeld
			}
			assert.Equal(t, phase, cs.Status.Outcome.Phase)
			assert.Equal(t, []string{ready.Reason, ready.Message}, []string{string(cs.Status.Outcome.Reason), cs.Status.Outcome.Message})
		})
	}
	t.Run("interrupted", func(t *testing.T) {
		w := *w
		w.t = t
		w.commit("k8s/a.yaml", configMap("a", "3"))
		config := w.RESTConfig()
		dead := &atomic.Bool{}
		config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return afterIntent{rt, dead} })
		_, err := w.engine(config).Apply(t.Context(), w.get(), configsync.Options{})
		require.Error(t, err)
		assert.Equal(t, status.InProgressStatus, w.kstatus(), "a killed run must not count as successful")
		assert.Equal(t, request.Progressing, w.verdict().Phase)
		w.must()
		assert.Equal(t, status.CurrentStatus, w.kstatus())
	})
	t.Run("only pruned", func(t *testing.T) {
		w := *w
		w.t = t
		w.commit("k8s/z.yaml", configMap("z", "1"))
		w.must()
		before := w.get().Status
		w.commit("k8s/z.yaml", "", "k8s/a.yaml", configMap("a", "4"))
		_, err := w.engine(w.RESTConfig()).Apply(t.Context(), w.get(), configsync.Options{PruneOnly: true})
		require.NoError(t, err)
		after := w.get().Status
		assert.Less(t, len(after.Inventory), len(before.Inventory))
		after.Inventory = before.Inventory
		assert.Equal(t, before, after, "nothing of the new commit was applied")
		w.must()
	})
}

// A prune and a dry run apply no commit, and send no Event about one.
func TestEventsWithoutApply(t *testing.T) {
	t.Parallel()
	t.Run("confirmed prune", func(t *testing.T) {
		w := newWorld(t)
		text := ""
		for i := range 7 {
			text += configMap(fmt.Sprint("c", i), "1")
		}
		w.commit("k8s/a.yaml", text)
		w.create("")
		w.must()
		commit := w.commit("k8s/a.yaml", configMap("c0", "1"))
		w.fails(v1alpha1.ReasonMassDeletion)
		_, err := w.engine(w.RESTConfig()).Apply(t.Context(), w.get(), configsync.Options{PruneOnly: true, Confirm: commit})
		require.NoError(t, err)
		assert.Contains(t, w.reasons(), "Normal Pruned: deleted 6 objects")
		assert.NotContains(t, w.reasons(), "SyncCompleted: nothing was changed")
	})
	for name, rollback := range map[string]bool{"dry run": false, "dry run of a rollback": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.commit("k8s/a.yaml", configMap("a", "1"))
			w.create("")
			w.must()
			w.commit("k8s/a.yaml", configMap("a", "2")+configMap("b", "1"))
			if rollback {
				w.must()
				_, err := w.setter().Rollback(t.Context(), w.namespace, "plant", "", w.get().Status.History[1].Commit, "cli", "")
				require.NoError(t, err)
			}
			w.create("apply: {dryRun: true}")
			r := w.must()
			assert.True(t, r.Plan.Changes())
			assert.Equal(t, string(v1alpha1.ReasonDryRun), w.condition(v1alpha1.ConditionReady).Reason)
			assert.NotContains(t, w.reasons(), "SyncCompleted: nothing was changed")
			assert.NotContains(t, w.reasons(), "RollbackCompleted")
		})
	}
}

// A failure that repeats sends one Event, even if each run writes its intent.
func TestEventOfRepeatedFailure(t *testing.T) {
	w := newWorld(t)
	w.commit("k8s/a.yaml", configMap("a", "1")+configMap("b", "1"))
	w.create("")
	w.must()
	w.commit("k8s/a.yaml", configMap("a", "1"))
	config := w.RESTConfig()
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		return refuses{rt, func(req *http.Request) bool { return req.Method == http.MethodDelete }}
	})
	for range 2 {
		_, err := w.engine(config).Apply(t.Context(), w.get(), configsync.Options{})
		assert.True(t, failure.Is(err, v1alpha1.ReasonPruneFailed), "%v", err)
		w.edit("a", `{"data":{"a":"edited"}}`) // for the next run, which fails like the first one
	}
	assert.Equal(t, 1, strings.Count(w.reasons(), "Warning SyncFailed"), w.reasons())
	assert.Equal(t, 1, strings.Count(w.reasons(), "DriftRepaired"), w.reasons())
}

// C13: conditions of other writers fill the status, and the next run still writes its own. Those that change during a run stay changed.
func TestStatusFullOfForeignConditions(t *testing.T) {
	w := newWorld(t)
	w.commit("k8s/a.yaml", configMap("a", "1"))
	w.create("")
	write := func(change func(*[]metav1.Condition)) {
		t.Helper()
		cs := w.get()
		change(&cs.Status.Conditions)
		_, err := kube.ConfigSyncs(w.admin.Dynamic, w.namespace).Update(t.Context(), cs, metav1.UpdateOptions{}, "status")
		require.NoError(t, err)
	}
	foreign := func(name string, value metav1.ConditionStatus) metav1.Condition {
		return metav1.Condition{Type: name, Status: value, Reason: "ByBob", LastTransitionTime: metav1.Now()}
	}
	write(func(list *[]metav1.Condition) {
		for i := range 16 {
			*list = append(*list, foreign(fmt.Sprint("Foreign", i), metav1.ConditionTrue))
		}
	})
	w.must()
	assert.Equal(t, metav1.ConditionTrue, w.condition(v1alpha1.ConditionReady).Status)
	assert.NotNil(t, w.condition("Foreign0"))

	for _, c := range []string{"a run that changes nothing", "a run that applies"} {
		t.Run(c, func(t *testing.T) {
			if c == "a run that applies" {
				w.commit("k8s/a.yaml", configMap("a", "2"))
			}
			added := "Foreign-" + strings.ReplaceAll(c, " ", "-")
			before := w.get()
			change := sync.OnceFunc(func() {
				write(func(list *[]metav1.Condition) {
					*list = slices.DeleteFunc(*list, func(c metav1.Condition) bool { return strings.HasPrefix(c.Type, "Foreign") && c.Type > "Foreign1" })
					meta.SetStatusCondition(list, foreign("Foreign0", metav1.ConditionFalse))
					meta.SetStatusCondition(list, foreign(added, metav1.ConditionTrue))
				})
			})
			config := w.RESTConfig()
			config.Wrap(func(rt http.RoundTripper) http.RoundTripper {
				return refuses{rt, func(req *http.Request) bool {
					if c == "a run that changes nothing" || req.Method == http.MethodPatch && !req.URL.Query().Has("dryRun") {
						change()
					}
					return false
				}}
			})
			_, err := w.engine(config).Apply(t.Context(), before, configsync.Options{})
			require.NoError(t, err)
			assert.NotNil(t, w.condition(added))
			assert.Equal(t, metav1.ConditionFalse, w.condition("Foreign0").Status)
			assert.Nil(t, w.condition("Foreign2"), "its writer removed it")
			assert.Equal(t, metav1.ConditionTrue, w.condition(v1alpha1.ConditionReady).Status)
			w.must()
			at := w.get().ResourceVersion
			w.must()
			assert.Equal(t, at, w.get().ResourceVersion, "a run that changes nothing must not write")
		})
	}
}

// A run of a paused ConfigSync changes no object, and the status says that it is paused.
func TestApplyOfPausedConfigSync(t *testing.T) {
	w := newWorld(t)
	w.commit("k8s/a.yaml", configMap("a", "1"))
	w.create("")
	w.must()
	w.annotate(v1alpha1.AnnotationPaused, "true")
	w.commit("k8s/a.yaml", configMap("a", "2"))
	_, err := w.engine(w.RESTConfig()).Apply(t.Context(), w.get(), configsync.Options{})
	assert.True(t, failure.Is(err, v1alpha1.ReasonPaused), "%v", err)
	assert.Equal(t, request.Paused, w.verdict().Phase)
	assert.Equal(t, map[string]string{"a": "1"}, w.data("a"))
}

// afterIntent is a client that dies after its first PUT, with which a run writes its intent.
type afterIntent struct {
	http.RoundTripper
	dead *atomic.Bool
}

func (a afterIntent) RoundTrip(req *http.Request) (*http.Response, error) {
	if a.dead.Load() {
		return nil, errKilled
	}
	if req.Method == http.MethodPut {
		defer a.dead.Store(true)
	}
	return a.RoundTripper.RoundTrip(req)
}

// While a ConfigSync is paused, it is ready only for the ref that was applied.
func TestRequestWhilePaused(t *testing.T) {
	w := newWorld(t)
	w.git.Tag("v1", w.commit("k8s/a.yaml", configMap("a", "1")))
	w.create("source: {git: {allowedRefs: ['v*']}}")
	w.must()
	w.annotate(v1alpha1.AnnotationPaused, "true")
	require.NoError(t, w.engine(w.RESTConfig()).Pause(t.Context(), w.get()))
	assert.Equal(t, metav1.ConditionTrue, w.condition(v1alpha1.ConditionReady).Status)
	w.ask(request.Request{Ref: "v1"})
	require.NoError(t, w.engine(w.RESTConfig()).Pause(t.Context(), w.get()))
	assert.Equal(t, metav1.ConditionFalse, w.condition(v1alpha1.ConditionReady).Status)
}

// refuses is an API server that refuses some requests.
type refuses struct {
	http.RoundTripper
	refused func(*http.Request) bool
}

func (s refuses) RoundTrip(req *http.Request) (*http.Response, error) {
	if !s.refused(req) {
		return s.RoundTripper.RoundTrip(req)
	}
	answer := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`
	return &http.Response{StatusCode: http.StatusUnprocessableEntity, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(answer)), Request: req}, nil
}

// hasTargets reports whether a request writes a status with targets.
func hasTargets(req *http.Request) bool {
	return req.Method == http.MethodPut && strings.Contains(bodyOf(req), `"targets":[`)
}

// bodyOf returns a copy of the body of a request, "" if it has none.
func bodyOf(req *http.Request) string {
	if req.GetBody == nil {
		return ""
	}
	body, err := req.GetBody()
	if err != nil {
		return ""
	}
	text, _ := io.ReadAll(body)
	return string(text)
}

// If the API server refuses the rows of the status, the run still writes the condition Ready.
func TestStatusThatIsRefused(t *testing.T) {
	w := newWorld(t)
	file := "k8s/" + strings.Repeat(strings.Repeat("d", 99)+"/", 11) + "a.yaml"
	w.commit(file, configMap("a", "1"))
	w.create("")
	w.must()
	require.Len(t, w.get().Status.Targets, 1)
	assert.Len(t, w.get().Status.Targets[0].File, 1024)

	w.commit(file, "{apiVersion: example.com/v1, kind: Unknown, metadata: {name: b}}")
	config := w.RESTConfig()
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return refuses{rt, hasTargets} })
	_, err := w.engine(config).Apply(t.Context(), w.get(), configsync.Options{})
	require.Error(t, err)
	assert.Equal(t, metav1.ConditionFalse, w.condition(v1alpha1.ConditionReady).Status)
	assert.Empty(t, w.get().Status.Targets)
}
