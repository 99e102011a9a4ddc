package charts

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	resourcevalue "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// additions are patches that an agent's token could disturb others with: they make objects impossible to
// delete or make them grow.
var additions = map[string]string{
	"finalizer":            `{"metadata":{"finalizers":["example.com/stays"]}}`,
	"annotation":           `{"metadata":{"annotations":{"note":"mine"}}}`,
	"annotation of Stoker": `{"metadata":{"annotations":{"stoker.io/requested-ref":"v2"}}}`,
	"label":                `{"metadata":{"labels":{"note":"mine"}}}`,
}

// target returns a SyncTarget like the one that the lead of a GatewaySync creates.
func target(gs *object, name string) *object {
	o := &object{Object: map[string]any{
		"apiVersion": "stoker.io/v1alpha1", "kind": "SyncTarget", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"format": int64(1), "refName": "refs/heads/main"},
	}}
	o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "stoker.io/v1alpha1", Kind: "GatewaySync", Name: gs.GetName(), UID: gs.GetUID()}})
	return o
}

// C11: The token of an agent cannot flood the API server or prevent the deletion of objects.
func TestSyncTargetPolicy(t *testing.T) {
	t.Parallel()
	p := policed(t)
	gs, err := p.as(t, p.RESTConfig(), "gatewaysyncs").Get(t.Context(), "plant", metav1.GetOptions{})
	require.NoError(t, err)
	targets := p.agent(t, 0, "synctargets")
	patch := func(body string) error {
		_, err := targets.Patch(t.Context(), "plant", types.MergePatchType, []byte(body), metav1.PatchOptions{})
		return err
	}
	t.Run("refused creation", func(t *testing.T) {
		named := func(change func(*object)) *object {
			o := target(gs, "plant")
			change(o)
			return o
		}
		for name, c := range map[string]struct {
			object *object
			words  string
		}{
			"another name":   {target(gs, "invented"), "named after"},
			"no owner":       {named(func(o *object) { o.SetOwnerReferences(nil) }), "named after"},
			"owned by a pod": {named(func(o *object) { o.SetOwnerReferences(report("plant", p.pods[0]).GetOwnerReferences()) }), "named after"},
			"second owner": {named(func(o *object) {
				o.SetOwnerReferences(append(o.GetOwnerReferences(), report("", p.pods[0]).GetOwnerReferences()...))
			}), "named after"},
			"finalizer":             {named(func(o *object) { o.SetFinalizers([]string{"example.com/stays"}) }), "no finalizer"},
			"annotation":            {named(func(o *object) { o.SetAnnotations(map[string]string{"a": "b"}) }), "no finalizer"},
			"label":                 {named(func(o *object) { o.SetLabels(map[string]string{"a": "b"}) }), "no finalizer"},
			"ref of a pull request": {named(func(o *object) { o.Object["spec"].(map[string]any)["refName"] = "refs/pull/1/head" }), "is a branch or a tag"},
			"HEAD":                  {named(func(o *object) { o.Object["spec"].(map[string]any)["refName"] = "HEAD" }), "is a branch or a tag"},
		} {
			t.Run(name, func(t *testing.T) {
				_, err := targets.Create(t.Context(), c.object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				denied(t, err, "stoker-synctargets", c.words)
			})
		}
		t.Run("token without pod", func(t *testing.T) {
			_, err := p.as(t, p.As(t, p.namespace, "gateway", ""), "synctargets").Create(t.Context(), target(gs, "plant"), metav1.CreateOptions{})
			denied(t, err, "stoker-synctargets", "tokens that are bound to these pods")
		})
		t.Run("server-side apply", func(t *testing.T) {
			_, err := targets.Apply(t.Context(), "plant", target(gs, "plant"), metav1.ApplyOptions{FieldManager: "stoker-agent"})
			denied(t, err, "stoker-synctargets", "server-side apply")
		})
	})
	t.Run("lead creates and updates its target", func(t *testing.T) {
		made, err := targets.Create(t.Context(), target(gs, "plant"), metav1.CreateOptions{FieldManager: "stoker-agent"})
		require.NoError(t, err)
		made.Object["spec"].(map[string]any)["lead"] = map[string]any{"holder": "line-0_abc", "durationSeconds": int64(15)}
		_, err = targets.Update(t.Context(), made, metav1.UpdateOptions{FieldManager: "stoker-agent"})
		require.NoError(t, err)
		assert.NoError(t, patch(`{"spec":{"refName":"refs/tags/v2"}}`))
		assert.NoError(t, patch(`{"spec":{"refName":null}}`))
	})
	t.Run("refused change", func(t *testing.T) {
		for name, body := range additions {
			t.Run(name, func(t *testing.T) { denied(t, patch(body), "stoker-synctargets", "no finalizer") })
		}
		t.Run("another owner", func(t *testing.T) {
			denied(t, patch(`{"metadata":{"ownerReferences":[]}}`), "stoker-synctargets", "named after")
		})
		t.Run("ref of a pull request", func(t *testing.T) {
			denied(t, patch(`{"spec":{"refName":"refs/pull/1/head"}}`), "stoker-synctargets", "is a branch or a tag")
		})
		t.Run("server-side apply", func(t *testing.T) {
			_, err := targets.Apply(t.Context(), "plant", target(gs, "plant"), metav1.ApplyOptions{FieldManager: "stoker-agent", Force: true})
			denied(t, err, "stoker-synctargets", "server-side apply")
		})
		t.Run("token without pod", func(t *testing.T) {
			_, err := p.as(t, p.As(t, p.namespace, "gateway", ""), "synctargets").Patch(t.Context(), "plant", types.MergePatchType, []byte(`{"spec":{"paused":true}}`), metav1.PatchOptions{})
			denied(t, err, "stoker-synctargets", "tokens that are bound to these pods")
		})
	})
	t.Run("additions of an administrator stay", func(t *testing.T) {
		root := p.as(t, p.RESTConfig(), "synctargets")
		_, err := root.Patch(t.Context(), "plant", types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"note":"theirs"},"labels":{"a":"b"},"finalizers":["example.com/stays"],"ownerReferences":[]}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		_, err = root.Apply(t.Context(), "plant", parseOne(t, "apiVersion: stoker.io/v1alpha1\nkind: SyncTarget\nmetadata: {name: plant, labels: {c: d}}\n"), metav1.ApplyOptions{FieldManager: "admin"})
		require.NoError(t, err)
		assert.NoError(t, patch(`{"spec":{"paused":true}}`))
		denied(t, patch(`{"metadata":{"annotations":{"note":"mine"}}}`), "stoker-synctargets", "no finalizer")
		assert.NoError(t, patch(mustJSON(t, map[string]any{"metadata": map[string]any{"ownerReferences": target(gs, "plant").GetOwnerReferences()}})))
		_, err = root.Patch(t.Context(), "plant", types.MergePatchType, []byte(`{"metadata":{"finalizers":[]}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	})
	t.Run("report", func(t *testing.T) {
		reports := p.agent(t, 0, "syncreports")
		_, err := reports.Create(t.Context(), report("line-0", p.pods[0]), metav1.CreateOptions{})
		require.NoError(t, err)
		for name, body := range additions {
			t.Run(name, func(t *testing.T) {
				_, err := reports.Patch(t.Context(), "line-0", types.MergePatchType, []byte(body), metav1.PatchOptions{})
				denied(t, err, "stoker-syncreports", "no finalizer")
			})
		}
		t.Run("server-side apply", func(t *testing.T) {
			_, err := reports.Apply(t.Context(), "line-0", report("line-0", p.pods[0]), metav1.ApplyOptions{FieldManager: "stoker-agent", Force: true})
			denied(t, err, "stoker-syncreports", "server-side apply")
		})
	})
	t.Run("quota", func(t *testing.T) {
		quotas := p.core.CoreV1().ResourceQuotas(p.namespace)
		_, err := quotas.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "stoker"},
			Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/synctargets.stoker.io": resourcevalue.MustParse("1")}}}, metav1.CreateOptions{})
		require.NoError(t, err)
		absent := gs.DeepCopy()
		absent.SetName("one-more")
		require.Eventually(t, func() bool {
			_, err = targets.Create(t.Context(), target(absent, "one-more"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err != nil && strings.Contains(err.Error(), "exceeded quota: stoker")
		}, eventually, pause)
		assert.NoError(t, patch(`{"spec":{"paused":false}}`))
		require.NoError(t, quotas.Delete(t.Context(), "stoker", metav1.DeleteOptions{}))
		require.Eventually(t, func() bool {
			_, err = targets.Create(t.Context(), target(absent, "one-more"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err == nil
		}, eventually, pause)
	})
	t.Run("garbage collection", func(t *testing.T) {
		absent := gs.DeepCopy()
		absent.SetName("absent")
		absent.SetUID("00000000-0000-0000-0000-000000000000")
		_, err := targets.Create(t.Context(), target(absent, "absent"), metav1.CreateOptions{})
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			_, err := targets.Get(t.Context(), "absent", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}, eventually, pause)
	})
}
