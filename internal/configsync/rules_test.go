package configsync_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/internal/kube"
)

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
