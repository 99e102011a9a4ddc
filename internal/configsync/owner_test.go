package configsync_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

// statefulSet returns a StatefulSet of no replicas with the given fields of its container.
func statefulSet(container string) string {
	return "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: line}, spec: {serviceName: s, replicas: 0, selector: {matchLabels: {a: b}}, " +
		"template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: c" + container + "}]}}}}\n---\n"
}

// env returns the environment of the container of the StatefulSet, as name=value.
func (w *world) env() (list []string) {
	w.t.Helper()
	s, err := w.core.AppsV1().StatefulSets(w.namespace).Get(w.t.Context(), "line", metav1.GetOptions{})
	require.NoError(w.t, err)
	for _, e := range s.Spec.Template.Spec.Containers[0].Env {
		list = append(list, e.Name+"="+e.Value)
	}
	return list
}

// kubectlApply creates a StatefulSet as client-side kubectl apply does.
func (w *world) kubectlApply(text string) {
	w.t.Helper()
	set := &appsv1.StatefulSet{}
	require.NoError(w.t, yaml.Unmarshal([]byte(text), set))
	last, err := json.Marshal(set)
	require.NoError(w.t, err)
	set.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": string(last)}
	_, err = w.core.AppsV1().StatefulSets(w.namespace).Create(w.t.Context(), set, metav1.CreateOptions{FieldManager: "kubectl-client-side-apply"})
	require.NoError(w.t, err)
}

// G7: after an adoption, git alone says which fields there are.
func TestAdoptionOfKubectlApply(t *testing.T) {
	t.Parallel()
	for name, create := range map[string]func(w *world, text string){
		"client side": (*world).kubectlApply,
		"server side": func(w *world, text string) {
			data, err := yaml.YAMLToJSON([]byte(text[:len(text)-len("---\n")]))
			require.NoError(w.t, err)
			_, err = w.core.AppsV1().StatefulSets(w.namespace).Patch(w.t.Context(), "line", types.ApplyPatchType, data, metav1.PatchOptions{FieldManager: "kubectl"})
			require.NoError(w.t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			two := statefulSet(", env: [{name: A, value: a}, {name: B, value: b}]")
			create(w, two)
			w.commit("k8s/a.yaml", statefulSet(", env: [{name: A, value: a}]"))
			w.create("")
			_, err := w.apply()
			assert.True(t, failure.Is(err, v1alpha1.ReasonNotOwned), "an object with more fields must not count as equal: %v", err)
			assert.ErrorContains(t, err, "containers[0].env")

			w.commit("k8s/a.yaml", two)
			w.must()
			assert.Contains(t, w.must().Plan.String(), "1 unchanged")
			s, err := w.core.AppsV1().StatefulSets(w.namespace).Get(t.Context(), "line", metav1.GetOptions{})
			require.NoError(t, err)
			assert.Equal(t, int64(1), s.Generation, "an adoption must not change the spec")

			w.commit("k8s/a.yaml", statefulSet(", env: [{name: A, value: a}]"))
			w.must()
			assert.Equal(t, []string{"A=a"}, w.env())
			w.commit("k8s/a.yaml", statefulSet(""))
			w.must()
			assert.Empty(t, w.env())
		})
	}
}

// G7: adoptPolicy always removes what git lacks in one change of the spec, so that pods roll once.
func TestAdoptionRemovesFields(t *testing.T) {
	w := newWorld(t)
	w.kubectlApply(statefulSet(", env: [{name: B, value: b}]"))
	w.commit("k8s/a.yaml", statefulSet(", env: [{name: A, value: a}]"))
	w.create("apply: {adoptPolicy: always}")
	assert.Contains(t, w.must().Plan.String(), "configure  StatefulSet.apps "+w.namespace+"/line: spec.template.spec.containers[0].env")
	assert.Equal(t, []string{"A=a"}, w.env())
	s, err := w.core.AppsV1().StatefulSets(w.namespace).Get(t.Context(), "line", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, int64(2), s.Generation)
}

// G7: what a person adds is drift, and what a controller adds is not.
func TestAddedFields(t *testing.T) {
	w := newWorld(t)
	w.commit("k8s/a.yaml", configMap("a", "1")+statefulSet(""))
	w.create("apply: {driftPolicy: report}")
	w.must()
	patch := func(name, body, manager string) {
		t.Helper()
		_, err := w.core.CoreV1().ConfigMaps(w.namespace).Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{FieldManager: manager})
		require.NoError(t, err)
	}
	patch("a", `{"data":{"controller":"x"}}`, "a-controller")
	_, err := w.core.AppsV1().StatefulSets(w.namespace).Patch(t.Context(), "line", types.StrategicMergePatchType,
		[]byte(`{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"now"}}}}}`), metav1.PatchOptions{FieldManager: "kubectl-rollout"})
	require.NoError(t, err)
	assert.Contains(t, w.must().Plan.String(), "2 unchanged")

	patch("a", `{"data":{"person":"x"}}`, "kubectl-edit")
	_, err = w.core.AppsV1().StatefulSets(w.namespace).Patch(t.Context(), "line", types.StrategicMergePatchType,
		[]byte(`{"spec":{"template":{"spec":{"containers":[{"name":"c","readinessProbe":{"exec":{"command":["true"]}}}]}}}}`), metav1.PatchOptions{FieldManager: "kubectl-patch"})
	require.NoError(t, err)
	text := w.must().Plan.String()
	assert.Contains(t, text, "drifted    ConfigMap "+w.namespace+"/a: data.person\n")
	assert.Contains(t, text, "drifted    StatefulSet.apps "+w.namespace+"/line: spec.template.spec.containers[0].readinessProbe\n")
	assert.Equal(t, map[string]string{"a": "1", "controller": "x", "person": "x"}, w.data("a"))
	assert.Contains(t, w.condition(v1alpha1.ConditionReady).Message, "2 of them were changed in the cluster")

	w.create("apply: {driftPolicy: repair}")
	assert.Contains(t, w.must().Plan.String(), "2 to repair")
	assert.Equal(t, map[string]string{"a": "1", "controller": "x"}, w.data("a"))
	assert.Contains(t, w.must().Plan.String(), "2 unchanged")
	s, err := w.core.AppsV1().StatefulSets(w.namespace).Get(t.Context(), "line", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Nil(t, s.Spec.Template.Spec.Containers[0].ReadinessProbe)
	assert.Equal(t, "now", s.Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"], "a restart must stay")
}

// With driftPolicy report, a Secret whose rendered manifest changed without a new commit is applied.
func TestNewSecretIsNotDrift(t *testing.T) {
	t.Parallel()
	paused := func(patch string) func(*world) {
		return func(w *world) {
			w.annotate(v1alpha1.AnnotationPaused, "true")
			w.patch(patch)
			w.fails(v1alpha1.ReasonPaused)
			w.annotate(v1alpha1.AnnotationPaused, "false")
		}
	}
	for name, c := range map[string]struct {
		spec   string
		change func(*world)
	}{
		"another path before a pause":    {"source: {git: {path: north}}", paused(`{"spec":{"source":{"git":{"path":"south"}}}}`)},
		"another overlay before a pause": {"source: {git: {path: north}}", paused(`{"spec":{"source":{"git":{"overlays":["south"]}}}}`)},
		"another file before a pause":    {"{source: {git: {path: other}}, targets: [{type: Secret, name: s, fromFiles: [{path: north.txt, key: k}]}]}", paused(`{"spec":{"targets":[{"type":"Secret","name":"s","fromFiles":[{"path":"south.txt","key":"k"}]}]}}`)},
		"another value of a variable":    {"{source: {git: {path: '{{.Vars.site}}'}}, render: {varsFrom: [{configMapRef: {name: vars}}]}}", func(w *world) { w.edit("vars", `{"data":{"site":"south"}}`) }},
		"another overlay before a refusal": {"source: {git: {path: north}}", func(w *world) {
			w.patch(`{"spec":{"source":{"git":{"overlays":["south"]}}}}`)
			config := w.RESTConfig()
			config.Wrap(func(rt http.RoundTripper) http.RoundTripper {
				return refuses{rt, func(req *http.Request) bool { return strings.HasSuffix(req.URL.Path, "/secrets/s") }}
			})
			_, err := w.engine(config).Apply(w.t.Context(), w.get(), configsync.Options{})
			require.Error(w.t, err)
		}},
		"another overlay before a failed recreation": {"source: {git: {path: north}}", func(w *world) {
			w.patch(`{"spec":{"source":{"git":{"overlays":["south"]}}}}`)
			w.edit("b", `{"metadata":{"finalizers":["example.com/stays"]}}`)
			ctx, cancel := context.WithCancelCause(w.t.Context())
			config := w.RESTConfig()
			config.Wrap(func(rt http.RoundTripper) http.RoundTripper {
				return refuses{rt, func(*http.Request) bool {
					m, err := w.core.CoreV1().ConfigMaps(w.namespace).Get(w.t.Context(), "b", metav1.GetOptions{})
					if err == nil && m.DeletionTimestamp != nil {
						cancel(failure.New(v1alpha1.ReasonUnhealthy, "the finalizer keeps it")) // as after deletionTimeout
					}
					return false
				}}
			})
			_, err := w.engine(config).Apply(ctx, w.get(), configsync.Options{})
			assert.True(w.t, failure.Is(err, v1alpha1.ReasonUnhealthy), "%v", err)
			w.edit("b", `{"metadata":{"finalizers":null}}`)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			const secret = "{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {k: %s}}"
			const fixed = "{apiVersion: v1, kind: ConfigMap, metadata: {name: b, annotations: {stoker.io/recreate: enabled}}, immutable: true, data: {k: %s}}"
			w.commit("north/a.yaml", fmt.Sprintf(secret, "old"), "south/a.yaml", fmt.Sprintf(secret, "new"),
				"north/b.yaml", fmt.Sprintf(fixed, "old"), "south/b.yaml", fmt.Sprintf(fixed, "new"),
				"north.txt", "old", "south.txt", "new", "other/o.yaml", configMap("o", "1"))
			w.ApplyYAML(t, w.namespace, "{apiVersion: v1, kind: ConfigMap, metadata: {name: vars}, data: {site: north}}")
			w.create(c.spec)
			w.patch(`{"spec":{"apply":{"driftPolicy":"report"}}}`)
			w.must()
			_, err := w.core.CoreV1().Secrets(w.namespace).Patch(t.Context(), "s", types.MergePatchType, []byte(`{"data":{"k":"ZWRpdGVk"}}`), metav1.PatchOptions{})
			require.NoError(t, err)
			c.change(w)
			w.must()
			s, err := w.core.CoreV1().Secrets(w.namespace).Get(t.Context(), "s", metav1.GetOptions{})
			require.NoError(t, err)
			assert.Equal(t, "new", string(s.Data["k"]))
		})
	}
}

// With driftPolicy report, a Secret that a user changed stays so after a run that did not succeed, until git has another commit.
func TestSecretDriftOutlastsFailures(t *testing.T) {
	t.Parallel()
	failsFor := func(w *world, reason v1alpha1.Reason, refused func(*http.Request) bool) {
		w.t.Helper()
		config := w.RESTConfig()
		config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return refuses{rt, refused} })
		_, err := w.engine(config).Apply(w.t.Context(), w.get(), configsync.Options{})
		assert.True(w.t, failure.Is(err, reason), "%v", err)
	}
	failsToPrune := func(w *world) {
		failsFor(w, v1alpha1.ReasonPruneFailed, func(req *http.Request) bool { return req.Method == http.MethodDelete })
	}
	refusesB := func(w *world) {
		w.edit("b", `{"data":{"a":"edited"}}`)
		failsFor(w, v1alpha1.ReasonImmutableField, func(req *http.Request) bool {
			return req.Method == http.MethodPatch && strings.HasSuffix(req.URL.Path, "/configmaps/b")
		})
	}
	succeeds := func(w *world) { w.must() }
	pause := func(w *world) {
		w.annotate(v1alpha1.AnnotationPaused, "true")
		w.fails(v1alpha1.ReasonPaused)
		w.annotate(v1alpha1.AnnotationPaused, "false")
	}
	for name, c := range map[string]struct {
		field       string
		apply, fail func(*world) // before and after the user changes the Secret
	}{
		"pause, text":                      {"stringData: {k: %s}", succeeds, pause},
		"pause, base64":                    {"data: {k: %s}", succeeds, pause},
		"refusal of another object":        {"stringData: {k: %s}", succeeds, refusesB},
		"PruneFailed with the same commit": {"stringData: {k: %s}", failsToPrune, failsToPrune},
		"refusal after PruneFailed":        {"stringData: {k: %s}", failsToPrune, refusesB},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			commit := func(value string) {
				if strings.HasPrefix(c.field, "data") {
					value = base64.StdEncoding.EncodeToString([]byte(value))
				}
				w.commit("k8s/a.yaml", configMap("b", value)+"{apiVersion: v1, kind: Secret, metadata: {name: s}, "+fmt.Sprintf(c.field, value)+"}")
			}
			has := func(want string) {
				t.Helper()
				s, err := w.core.CoreV1().Secrets(w.namespace).Get(t.Context(), "s", metav1.GetOptions{})
				require.NoError(t, err)
				assert.Equal(t, want, string(s.Data["k"]))
			}
			w.commit("k8s/c.yaml", configMap("c", "1"))
			commit("old")
			w.create("{prune: none, apply: {driftPolicy: report}}")
			w.must()
			w.commit("k8s/c.yaml", "")
			w.must()
			w.patch(`{"spec":{"prune":"owned"}}`)
			c.apply(w)
			_, err := w.core.CoreV1().Secrets(w.namespace).Patch(t.Context(), "s", types.MergePatchType, []byte(`{"data":{"k":"ZWRpdGVk"}}`), metav1.PatchOptions{})
			require.NoError(t, err)
			c.fail(w)
			w.must()
			has("edited")
			commit("new")
			w.must()
			has("new")
			pause(w)
			assert.Zero(t, w.must().Plan.Drifted())
		})
	}
}

// G7: a user who removes or forges Stoker's annotations does not stop a run. An object is spared from pruning only if nothing shows that a
// run applied it.
func TestLostMarkIsRepaired(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(m *corev1.ConfigMap){
		"replaced":       func(m *corev1.ConfigMap) { m.Annotations, m.Data = nil, map[string]string{"b": "2"} },
		"mark removed":   func(m *corev1.ConfigMap) { delete(m.Annotations, v1alpha1.AnnotationConfigSync) },
		"another's mark": func(m *corev1.ConfigMap) { m.Annotations[v1alpha1.AnnotationConfigSync] = m.Namespace + "/other" },
		"prune disabled": func(m *corev1.ConfigMap) { m.Annotations[v1alpha1.AnnotationConfigPrune] = "disabled" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.commit("k8s/a.yaml", configMap("a", "1")+configMap("b", "1"))
			w.create("")
			w.createNamed("other", "")
			w.must()
			edit := func() {
				maps := w.core.CoreV1().ConfigMaps(w.namespace)
				m, err := maps.Get(t.Context(), "a", metav1.GetOptions{})
				require.NoError(t, err)
				change(m)
				_, err = maps.Update(t.Context(), m, metav1.UpdateOptions{FieldManager: "kubectl-replace"})
				require.NoError(t, err)
			}
			edit()
			w.create("{apply: {driftPolicy: report}}")
			w.commit("k8s/b.yaml", configMap("c", "1"))
			w.must()
			assert.NotNil(t, w.data("c"), "the other objects must be applied")
			w.create("{apply: {driftPolicy: repair}}")
			w.must()
			assert.Equal(t, map[string]string{"a": "1"}, w.data("a"))
			assert.ElementsMatch(t, []string{"a", "b", "c"}, w.ours())
			assert.Contains(t, w.must().Plan.String(), "3 unchanged")
			edit()
			w.commit("k8s/a.yaml", configMap("b", "1"))
			w.must()
			if name == "replaced" {
				assert.NotNil(t, w.data("a"), "nothing shows that a run applied it")
			} else {
				assert.Nil(t, w.data("a"), "an object that git no longer has must be pruned")
			}
			w.tracked()
		})
	}
}

// An owner that does not exist owns nothing, and objects move between two ConfigSyncs without being pruned.
func TestObjectsChangeTheirOwner(t *testing.T) {
	w := newWorld(t)
	uid := func() types.UID {
		t.Helper()
		m, err := w.core.CoreV1().ConfigMaps(w.namespace).Get(t.Context(), "a", metav1.GetOptions{})
		require.NoError(t, err)
		return m.UID
	}
	syncs := kube.ConfigSyncs(w.admin.Dynamic, w.namespace)
	w.commit("k8s/a.yaml", configMap("a", "1"))
	w.create("")
	w.must()
	created := uid()

	w.createNamed("second", "")
	_, err := w.applyNamed("second")
	assert.True(t, failure.Is(err, v1alpha1.ReasonNotOwned), "%v", err)
	require.NoError(t, syncs.Delete(t.Context(), "plant", metav1.DeleteOptions{}))
	require.NoError(t, w.run("second"), "an owner that does not exist owns nothing")
	assert.Equal(t, created, uid())

	kept := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, annotations: {stoker.io/prune: disabled}}\ndata: {a: \"1\"}\n---\n"
	w.commit("k8s/a.yaml", kept+configMap("b", "1"))
	require.NoError(t, w.run("second"))
	w.commit("k8s/a.yaml", configMap("b", "1"), "third/a.yaml", configMap("a", "1"))
	w.createNamed("third", "source: {git: {path: third}}")
	_, err = w.applyNamed("third")
	assert.True(t, failure.Is(err, v1alpha1.ReasonNotOwned), "%v", err)
	require.NoError(t, w.run("second"))
	require.NoError(t, w.run("third"))
	require.NoError(t, w.run("second"))
	assert.Equal(t, created, uid(), "the object must not be deleted")
	assert.Len(t, w.getNamed("second").Status.Inventory, 1)
	assert.Len(t, w.getNamed("third").Status.Inventory, 1)
	m, err := w.core.CoreV1().ConfigMaps(w.namespace).Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	assert.NotContains(t, m.Annotations, v1alpha1.AnnotationConfigPrune)
}

// G2: fields that a controller sets belong to it: a run neither changes nor reports them. What git no longer sets goes.
func TestFieldsOfOthers(t *testing.T) {
	w := newWorld(t)
	set := func(more string) string {
		return "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: line" + more + "}, spec: {serviceName: s, selector: {matchLabels: {a: b}}, " +
			"template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: c}]}}}}"
	}
	w.commit("k8s/a.yaml", set(", annotations: {of.git/one: '1', of.git/two: '2'}"))
	w.create("apply: {wait: false}")
	w.must()
	sets := w.core.AppsV1().StatefulSets(w.namespace)
	_, err := sets.UpdateScale(t.Context(), "line", &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "line", Namespace: w.namespace}, Spec: autoscalingv1.ScaleSpec{Replicas: 3}}, metav1.UpdateOptions{FieldManager: "autoscaler"})
	require.NoError(t, err)
	_, err = sets.Patch(t.Context(), "line", types.MergePatchType, []byte(`{"metadata":{"annotations":{"of.a.controller":"x"}},"spec":{"minReadySeconds":7}}`), metav1.PatchOptions{FieldManager: "a-controller"})
	require.NoError(t, err)
	assert.Contains(t, w.must().Plan.String(), "1 unchanged")

	w.commit("k8s/a.yaml", set(", annotations: {of.git/one: '1'}"))
	assert.Contains(t, w.must().Plan.String(), "metadata.annotations.of.git/two")
	live, err := sets.Get(t.Context(), "line", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, int32(3), *live.Spec.Replicas)
	assert.Equal(t, int32(7), live.Spec.MinReadySeconds)
	assert.Equal(t, "x", live.Annotations["of.a.controller"])
	assert.Equal(t, "1", live.Annotations["of.git/one"])
	assert.NotContains(t, live.Annotations, "of.git/two")
}

// G2: an object that a user deletes comes back, one with stoker.io/wait: disabled is not waited for, and objects outlive the ConfigSync.
func TestObjectsComeAndStay(t *testing.T) {
	w := newWorld(t)
	w.commit("k8s/a.yaml", configMap("a", "1")+"{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: line, annotations: {stoker.io/wait: disabled}}, spec: {serviceName: s, "+
		"selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: c}]}}}}")
	w.create("")
	w.must()
	assert.Equal(t, "2/2", w.get().Status.TargetsReady)
	require.NoError(t, w.core.CoreV1().ConfigMaps(w.namespace).Delete(t.Context(), "a", metav1.DeleteOptions{}))
	assert.Contains(t, w.must().Plan.String(), "1 to create, 1 unchanged")
	assert.Equal(t, map[string]string{"a": "1"}, w.data("a"))
	w.tracked()

	require.NoError(t, w.admin.Dynamic.Resource(kube.ConfigSync.Resource()).Namespace(w.namespace).Delete(t.Context(), "plant", metav1.DeleteOptions{}))
	assert.Equal(t, map[string]string{"a": "1"}, w.data("a"))
	w.create("")
	assert.Contains(t, w.must().Plan.String(), "2 unchanged", "a new ConfigSync of the same name must own the objects again")
	w.tracked()
}

// A run does not delete an object that another ConfigSync took over since the run read it.
func TestTakenOverBeforeDeletion(t *testing.T) {
	for name, c := range map[string]struct {
		before, after string
		reason        v1alpha1.Reason
	}{
		"pruned":    {configMap("x", "1"), "", v1alpha1.ReasonPruneFailed},
		"recreated": {sealed("x", "1", recreate), sealed("x", "2", recreate), v1alpha1.ReasonNotOwned},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.commit("k8s/a.yaml", configMap("a", "1"), "k8s/x.yaml", c.before)
			w.create("")
			w.must()
			w.commit("k8s/x.yaml", c.after)
			config := w.RESTConfig()
			config.Wrap(func(rt http.RoundTripper) http.RoundTripper {
				return refuses{rt, func(req *http.Request) bool {
					if req.Method == http.MethodDelete && !strings.Contains(bodyOf(req), "dryRun") {
						patch := []byte(`{"metadata":{"annotations":{"` + v1alpha1.AnnotationConfigSync + `":"` + w.namespace + `/other"}}}`)
						_, err := w.core.CoreV1().ConfigMaps(w.namespace).Patch(req.Context(), "x", types.MergePatchType, patch, metav1.PatchOptions{})
						assert.NoError(t, err)
					}
					return false
				}}
			})
			_, err := w.engine(config).Apply(t.Context(), w.get(), configsync.Options{})
			assert.True(t, failure.Is(err, c.reason), "%v", err)
			assert.Equal(t, "1", w.data("x")["a"])
		})
	}
}
