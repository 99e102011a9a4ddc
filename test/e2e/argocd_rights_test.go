//go:build linux

package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/e2e/argocd"
	"stoker.io/stoker/test/gitserver"
)

// serverSide enables server-side apply and the matching diff, as described in docs/how-to/argocd.md.
func serverSide(u *unstructured.Unstructured) {
	if u.GetKind() == "Application" {
		u.SetAnnotations(map[string]string{"argocd.argoproj.io/compare-options": "ServerSideDiff=true"})
		options, _, _ := unstructured.NestedStringSlice(u.Object, "spec", "syncPolicy", "syncOptions")
		if err := unstructured.SetNestedStringSlice(u.Object, append(options, "ServerSideApply=true"), "spec", "syncPolicy", "syncOptions"); err != nil {
			panic(err)
		}
	}
}

// An AppProject may name a ServiceAccount for Argo CD to impersonate: for syncs and, since Argo CD 3.5,
// for actions. An account that can patch but not update GatewaySyncs is a setter.
func anImpersonatedAccountIsASetter(t *testing.T, w *world) {
	if argoCDMajor() == "2" {
		t.Skip("Argo CD 2 runs actions with its own rights")
	}
	argo := w.argocd(t)
	namespace := w.Namespace(t)
	w.kubectl(t, "create", "--namespace", namespace, "serviceaccount", "deployer")
	for name, verbs := range map[string]string{"applies": "get,list,watch,create,patch", "changes": "update"} {
		w.kubectl(t, "create", "--namespace", namespace, "role", name, "--verb="+verbs, "--resource=gatewaysyncs.stoker.io")
	}
	binds := func(role string) {
		w.kubectl(t, "create", "--namespace", namespace, "rolebinding", role, "--role="+role, "--serviceaccount="+namespace+":deployer")
	}
	binds("applies")

	repo := gitserver.NewRepo(t, filepath.Join(w.gitRoot, namespace+".git"))
	deploys := func(ref string) string {
		return repo.Commit(ref, gitserver.Write("gatewaysync.yaml", fmt.Sprintf(`apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: line}
spec:
  git: {repo: https://git.example.com/plant.git, ref: %s}
`, ref)))
	}
	first := deploys("main")
	created := func(objects dynamic.ResourceInterface, kind string, spec map[string]any) {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
		u.SetAPIVersion("argoproj.io/v1alpha1")
		u.SetKind(kind)
		u.SetName(namespace)
		_, err := objects.Create(w.ctx, u, metav1.CreateOptions{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, objects.Delete(w.ctx, namespace, metav1.DeleteOptions{})) })
	}
	destination := map[string]any{"server": "https://kubernetes.default.svc", "namespace": namespace}
	created(argocd.Projects(w.dynamic), "AppProject", map[string]any{
		"sourceRepos":  []any{"*"},
		"destinations": []any{destination},
		"destinationServiceAccounts": []any{map[string]any{
			"server": destination["server"], "namespace": namespace, "defaultServiceAccount": "deployer",
		}},
	})
	created(argocd.Applications(w.dynamic), "Application", map[string]any{
		"project":     namespace,
		"source":      map[string]any{"repoURL": w.git.URL(namespace + ".git"), "targetRevision": "main", "path": "."},
		"destination": destination,
		"syncPolicy":  map[string]any{"automated": map[string]any{}, "retry": map[string]any{"limit": int64(0)}},
	})
	ends := func(revision, phase string) (app *argocd.Application) {
		require.NoError(t, argocd.Refresh(w.ctx, w.dynamic, namespace))
		w.eventually(t, "the sync of "+short7(revision)+" has "+phase, func() string {
			var err error
			app, err = argocd.Get(w.ctx, w.dynamic, namespace)
			require.NoError(t, err)
			if o := app.Status.OperationState; o == nil || o.SyncResult.Revision != revision || o.Phase != phase {
				return summary(app)
			}
			return ""
		})
		return app
	}
	line := func() *unstructured.Unstructured {
		u, err := w.dynamic.Resource(kube.GatewaySync.Resource()).Namespace(namespace).Get(w.ctx, "line", metav1.GetOptions{})
		require.NoError(t, err)
		return u
	}

	ends(first, "Succeeded")
	resource := argocd.Resource{Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version, Kind: v1alpha1.KindGatewaySync, Namespace: namespace, Name: "line"}
	w.eventually(t, "Argo CD's server knows the GatewaySync", func() string {
		actions, err := argo.Actions(w.ctx, namespace, resource)
		if err != nil {
			return err.Error()
		}
		if !slices.ContainsFunc(actions, func(a argocd.Action) bool { return a.Name == "pause" && !a.Disabled }) {
			return fmt.Sprint(actions)
		}
		return ""
	})
	require.NoError(t, argo.Run(w.ctx, namespace, resource, "pause"))
	assert.Equal(t, "true", line().GetAnnotations()[v1alpha1.AnnotationPaused])
	refused := ends(deploys("v2"), "Failed")
	assert.Contains(t, summary(refused)+outcomes(refused), "system:serviceaccount:"+namespace+":deployer may patch GatewaySyncs and not update them")

	binds("changes")
	ends(deploys("v3"), "Succeeded")
	ref, _, _ := unstructured.NestedString(line().Object, "spec", "git", "ref")
	assert.Equal(t, "v3", ref)
	assert.Equal(t, "true", line().GetAnnotations()[v1alpha1.AnnotationPaused], "Argo CD must not remove a request")
}

// outcomes returns what a sync reports about each object.
func outcomes(app *argocd.Application) (all string) {
	for _, r := range app.Status.OperationState.SyncResult.Resources {
		all += "; " + r.Kind + "/" + r.Name + " " + r.Status + " " + r.Message
	}
	return all
}
