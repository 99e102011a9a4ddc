package configsync_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// remove deletes the ConfigSync.
func (w *world) remove() {
	w.t.Helper()
	require.NoError(w.t, kube.ConfigSyncs(w.admin.Dynamic, w.namespace).Delete(w.t.Context(), "plant", metav1.DeleteOptions{}))
}

// gone waits until the ConfigSync is gone.
func (w *world) gone() {
	w.t.Helper()
	syncs := kube.ConfigSyncs(w.admin.Dynamic, w.namespace)
	require.Eventually(w.t, func() bool {
		_, err := syncs.Get(w.t.Context(), "plant")
		return apierrors.IsNotFound(err)
	}, soon, 100*time.Millisecond)
}

// G6: a ConfigSync that is deleted takes its objects along only if it says so, and nothing else.
func TestProgramDeletes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec, patch string
		stays       bool
	}{
		"Orphan":                        {"", "", true},
		"Delete":                        {"{deletionPolicy: Delete, prune: none}", "", false},
		"changed from Orphan to Delete": {"", `{"spec":{"deletionPolicy":"Delete"}}`, false},
		"changed from Delete to Orphan": {"{deletionPolicy: Delete}", `{"spec":{"deletionPolicy":"Orphan"}}`, true},
		"Delete while paused":           {"{deletionPolicy: Delete}", `{"spec":{"paused":true}}`, false},
		"Delete with a missing source":  {"{deletionPolicy: Delete}", `{"spec":{"source":{"git":{"branch":"gone"}}}}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			system := w.installed()
			w.account(w.namespace, "stoker-config", configMaps, rule("", "persistentvolumeclaims", "get", "create", "patch", "delete"))
			var list strings.Builder
			for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
				list.WriteString(configMap(name, "1"))
			}
			w.commit("k8s/a.yaml", list.String()+`{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, annotations: {stoker.io/wait: disabled}}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: kept, annotations: {stoker.io/prune: disabled}}}
`)
			w.create(c.spec)
			w.program(system, nil)
			w.reaches(metav1.ConditionTrue, v1alpha1.ReasonSynced)
			if c.patch != "" {
				before := w.get().Status.ObservedGeneration
				w.patch(c.patch)
				require.Eventually(t, func() bool { return w.get().Status.ObservedGeneration > before }, soon, 100*time.Millisecond)
			}
			w.edit("g", `{"metadata":{"annotations":{"stoker.io/configsync":null}}}`) // the inventory lists it, so it is still ours
			w.remove()
			w.gone()
			if c.stays {
				assert.Len(t, w.ours(), 7)
				assert.NotContains(t, w.reasons(), "Released")
				return
			}
			assert.Equal(t, []string{"kept"}, w.ours())
			assert.Nil(t, w.data("g"))
			_, err := w.core.CoreV1().PersistentVolumeClaims(w.namespace).Get(t.Context(), "data", metav1.GetOptions{})
			require.NoError(t, err)
			assert.Contains(t, w.reasons(), "Normal Released: its objects are deleted, except those that must not be pruned: PersistentVolumeClaim "+w.namespace+"/data, ConfigMap "+w.namespace+"/kept\n")
		})
	}
}

// G6: a namespace that is deleted with everything in it goes away, although the rights of the account go first.
func TestProgramDoesNotHoldNamespaces(t *testing.T) {
	w := newWorld(t)
	system := w.installed()
	w.account(w.namespace, "stoker-config", configMaps)
	w.commit("k8s/a.yaml", configMap("a", "1"))
	w.create("{deletionPolicy: Delete}")
	w.program(system, nil)
	w.reaches(metav1.ConditionTrue, v1alpha1.ReasonSynced)
	require.Equal(t, []string{v1alpha1.FinalizerConfigSync}, w.get().Finalizers)
	require.NoError(t, w.core.CoreV1().Namespaces().Delete(t.Context(), w.namespace, metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		_, err := w.core.CoreV1().Namespaces().Get(t.Context(), w.namespace, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, soon, 200*time.Millisecond)
}

// later is an API server whose clock is hours ahead once over is set.
type later struct {
	http.RoundTripper
	over *atomic.Bool
}

func (l later) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := l.RoundTripper.RoundTrip(req)
	if err == nil && l.over.Load() {
		res.Header.Set("Date", time.Now().Add(2*time.Hour).UTC().Format(http.TimeFormat))
	}
	return res, err
}

// G6: if the account loses its rights together with the ConfigSync, as after an uninstall, the finalizer ends at the deadline, and a
// Warning lists what stays.
func TestProgramReleasesWithoutRights(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(w *world, system string){
		"account": func(w *world, _ string) {
			require.NoError(w.t, w.core.RbacV1().RoleBindings(w.namespace).Delete(w.t.Context(), "stoker-config", metav1.DeleteOptions{}))
			require.NoError(w.t, w.core.CoreV1().ServiceAccounts(w.namespace).Delete(w.t.Context(), "stoker-config", metav1.DeleteOptions{}))
			w.WaitDenied(w.t, w.namespace, "stoker-config", authorizationv1.ResourceAttributes{Namespace: w.namespace, Verb: "delete", Resource: "configmaps"})
		},
		"impersonation": func(w *world, system string) {
			role, err := w.core.RbacV1().Roles(w.namespace).Get(w.t.Context(), "stoker-configsync-accounts", metav1.GetOptions{})
			require.NoError(w.t, err)
			role.Rules = nil
			_, err = w.core.RbacV1().Roles(w.namespace).Update(w.t.Context(), role, metav1.UpdateOptions{})
			require.NoError(w.t, err)
			w.WaitDenied(w.t, system, "stoker-configsync", authorizationv1.ResourceAttributes{Namespace: w.namespace, Verb: "impersonate", Resource: "serviceaccounts", Name: "stoker-config"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			system := w.installed()
			w.account(w.namespace, "stoker-config", configMaps)
			w.commit("k8s/a.yaml", configMap("a", "1"))
			w.create("{deletionPolicy: Delete, progressDeadline: 1h}")
			over := &atomic.Bool{}
			w.program(system, func(rt http.RoundTripper) http.RoundTripper { return later{rt, over} })
			w.reaches(metav1.ConditionTrue, v1alpha1.ReasonSynced)
			lose(w, system)
			w.remove()
			require.Eventually(t, func() bool {
				c := w.condition(v1alpha1.ConditionReady)
				return c != nil && c.Status == metav1.ConditionFalse
			}, soon, 100*time.Millisecond, "the first attempt must fail")
			assert.NotEmpty(t, w.get().Finalizers, "the finalizer must wait for the rights until the deadline")
			over.Store(true)
			w.annotate(v1alpha1.AnnotationForceSync, "now")
			w.gone()
			assert.NotNil(t, w.data("a"))
			assert.Regexp(t, "Warning Released: they could not be deleted until 1h0m0s after the deletion of the ConfigSync: .+; not deleted: ConfigMap "+w.namespace+"/a", w.reasons())
		})
	}
}
