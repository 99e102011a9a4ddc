//go:build linux

package e2e

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/e2e/argocd"
	"stoker.io/stoker/test/gitserver"
)

// deployment is a plant that Argo CD deploys from an example, with images, addresses and timing adapted to
// the test cluster.
type deployment struct {
	*plant
	argo    *argoCD
	example string          // directory in examples/argocd
	beside  string          // additional file from examples/argocd
	repo    *gitserver.Repo // holds the manifests
	at      string          // directory of the manifests in repo
	class   string          // storage class

	applications *states[argocd.Application]
	gatewaySyncs *states[v1alpha1.GatewaySync]
	shell        *document.Shell
}

// change adapts an object of the example.
type change func(*unstructured.Unstructured)

// deploy commits the manifests of an example to a directory of a repository and creates the Application.
// It applies changes to both. The example is a directory, or a directory and one additional file as
// directory+file.
func (p *plant) deploy(example string, repo *gitserver.Repo, repoName, at string, changes ...change) *deployment {
	p.t.Helper()
	example, beside, _ := strings.Cut(example, "+")
	d := &deployment{plant: p, argo: p.argocd(p.t), example: example, beside: beside, repo: repo, at: at, class: p.volumes(2)}
	d.argo.turn(p.ctx, p.t)
	d.record()
	d.deployed("the manifests", changes...)
	app := d.read(example+".yaml", append(changes, func(u *unstructured.Unstructured) {
		u.SetName(d.namespace)
		u.SetNamespace(argocd.Namespace)
		set(u, d.git.URL(repoName), "spec", "source", "repoURL")
		set(u, at, "spec", "source", "path")
		set(u, d.namespace, "spec", "destination", "namespace")
	})...)
	require.Len(p.t, app, 1)
	_, err := argocd.Applications(d.dynamic).Create(d.ctx, app[0], metav1.CreateOptions{})
	require.NoError(p.t, err)
	p.t.Cleanup(func() {
		if p.t.Failed() {
			p.t.Logf("the Application:%s", said(d.applications.all()))
		}
		err := argocd.Applications(d.dynamic).Delete(d.ctx, d.namespace, metav1.DeleteOptions{})
		if !apierrors.IsNotFound(err) {
			require.NoError(p.t, err)
		}
	})
	return d
}

// deployed commits the manifests with changes and returns the revision.
func (d *deployment) deployed(message string, changes ...change) string {
	d.t.Helper()
	return d.commitTo(message, gitserver.Files(d.manifests(changes...)))
}

// commitTo commits to the repository of the manifests, which may also be the repository of the plant.
func (d *deployment) commitTo(message string, edits ...gitserver.Edit) string {
	if d.repo == d.plant.repo {
		return d.commit(message, edits...)
	}
	return d.repo.Commit(message, edits...)
}

// manifests returns the files of the example by their paths in the repository. In a chart, changes apply
// only to its values.
func (d *deployment) manifests(changes ...change) map[string]string {
	d.t.Helper()
	out := map[string]string{}
	changed := func(file string) {
		var text strings.Builder
		for _, u := range d.read(file, d.inside(append([]change{d.here}, changes...))...) {
			raw, err := yaml.Marshal(u.Object)
			require.NoError(d.t, err)
			text.WriteString("---\n" + string(raw))
		}
		out[filepath.Join(d.at, filepath.Base(file))] = text.String()
	}
	for name, content := range example(d.t, filepath.Join(d.module, "examples", "argocd", d.example)) {
		if name == "Chart.yaml" || filepath.Dir(name) == "templates" {
			out[filepath.Join(d.at, name)] = content
		} else {
			changed(filepath.Join(d.example, name))
		}
	}
	if d.beside != "" {
		changed(d.beside)
	}
	require.NotEmpty(d.t, out)
	return out
}

// read decodes the objects in a file of the example.
func (d *deployment) read(name string, changes ...change) []*unstructured.Unstructured {
	d.t.Helper()
	content, err := os.ReadFile(filepath.Join(d.module, "examples", "argocd", name))
	require.NoError(d.t, err)
	var objects []*unstructured.Unstructured
	for decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096); ; {
		u := &unstructured.Unstructured{}
		err := decoder.Decode(&u.Object) // chart values have no kind
		if errors.Is(err, io.EOF) {
			return objects
		}
		require.NoError(d.t, err)
		if len(u.Object) == 0 {
			continue
		}
		for _, c := range changes {
			c(u)
		}
		objects = append(objects, u)
	}
}

// inside also applies changes to the manifest embedded in a ConfigMap of the example.
func (d *deployment) inside(changes []change) []change {
	const name = "gatewaysync.yaml"
	return append(changes, func(u *unstructured.Unstructured) {
		text, there, _ := unstructured.NestedString(u.Object, "data", name)
		if u.GetKind() != "ConfigMap" || !there {
			return
		}
		inner := &unstructured.Unstructured{}
		require.NoError(d.t, yaml.Unmarshal([]byte(text), &inner.Object))
		for _, c := range changes {
			c(inner)
		}
		raw, err := yaml.Marshal(inner.Object)
		require.NoError(d.t, err)
		set(u, string(raw), "data", name)
	})
}

// valuesOfChart is the kind of chart values, which are not a Kubernetes object.
const valuesOfChart = ""

func set(u *unstructured.Unstructured, value any, path ...string) {
	if err := unstructured.SetNestedField(u.Object, value, path...); err != nil {
		panic(err)
	}
}

// here adapts an object of the example to this cluster.
func (d *deployment) here(u *unstructured.Unstructured) {
	switch u.GetKind() {
	case valuesOfChart:
		set(u, d.git.URL(d.repoName), "repo")
		set(u, map[string]any{"name": "git-ca", "key": "ca.crt"}, "caSecretRef")
		set(u, d.class, "storageClassName")
		set(u, map[string]any{"hooks": hooksImage, "gateway": gateImage}, "images")
	case "Kustomization":
		set(u, d.namespace, "namespace")
	case "Role":
		for _, rule := range list(u.Object, "rules") {
			rule["resourceNames"] = []any{d.namespace}
		}
	case "RoleBinding":
		for _, s := range list(u.Object, "subjects") {
			s["namespace"] = d.namespace
		}
	case v1alpha1.Kind:
		set(u, d.git.URL(d.repoName), "spec", "git", "repo")
		set(u, map[string]any{"name": "git-ca", "key": "ca.crt"}, "spec", "git", "caSecretRef")
		set(u, int64(5), "spec", "sync", "defaults", "syncPeriod")
	case "StatefulSet":
		pod := within(u.Object, "spec", "template", "spec")
		pod["terminationGracePeriodSeconds"] = int64(10)
		containers(pod, gateImage)
		for _, c := range list(pod, "containers") {
			within(c, "readinessProbe")["periodSeconds"] = int64(1)
		}
		for _, claim := range list(u.Object, "spec", "volumeClaimTemplates") {
			within(claim, "spec")["storageClassName"] = d.class
		}
	case "Job":
		pod := within(u.Object, "spec", "template", "spec")
		containers(pod, hooksImage)
		for _, c := range list(pod, "containers") {
			for i, arg := range c["args"].([]any) {
				if arg == theApplication {
					c["args"].([]any)[i] = argocd.Namespace + "/" + d.namespace
				}
			}
			if mounts := list(c, "volumeMounts"); len(mounts) > 0 { // mount the CA of the git server beside the credentials
				c["volumeMounts"] = append(c["volumeMounts"].([]any), map[string]any{"name": "git-ca", "mountPath": "/secrets/git-ca", "readOnly": true})
				pod["volumes"] = append(pod["volumes"].([]any), map[string]any{"name": "git-ca", "secret": map[string]any{"secretName": "git-ca"}})
			}
		}
	}
}

// theApplication is the hook argument that names the Application in the examples.
const theApplication = "argocd/line"

func containers(pod map[string]any, image string) {
	for _, key := range []string{"initContainers", "containers"} {
		for _, c := range list(pod, key) {
			c["image"], c["imagePullPolicy"] = image, "Never"
		}
	}
}

// within returns a nested map and creates missing levels.
func within(m map[string]any, path ...string) map[string]any {
	for _, key := range path {
		next, ok := m[key].(map[string]any)
		if !ok {
			next = map[string]any{}
			m[key] = next
		}
		m = next
	}
	return m
}

// list returns a nested list of maps.
func list(m map[string]any, path ...string) (maps []map[string]any) {
	items, _, _ := unstructured.NestedFieldNoCopy(m, path...)
	all, _ := items.([]any)
	for _, item := range all {
		if m, ok := item.(map[string]any); ok {
			maps = append(maps, m)
		}
	}
	return maps
}

// record stores every state of the Application and the GatewaySync until the test ends.
func (d *deployment) record() {
	d.applications, d.gatewaySyncs = &states[argocd.Application]{}, &states[v1alpha1.GatewaySync]{}
	stop := make(chan struct{})
	named := func(name string) func(*metav1.ListOptions) {
		return func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=" + name }
	}
	apps := dynamicinformer.NewFilteredDynamicSharedInformerFactory(d.dynamic, 0, argocd.Namespace, named(d.namespace))
	syncs := dynamicinformer.NewFilteredDynamicSharedInformerFactory(d.dynamic, 0, d.namespace, named("line"))
	watch(d, apps.ForResource(argocd.Resources).Informer(), d.applications)
	watch(d, syncs.ForResource(kube.GatewaySync.Resource()).Informer(), d.gatewaySyncs)
	for _, f := range []dynamicinformer.DynamicSharedInformerFactory{apps, syncs} {
		f.Start(stop)
		f.WaitForCacheSync(stop)
		d.t.Cleanup(f.Shutdown)
	}
	d.t.Cleanup(func() { close(stop) })
}

func watch[T any](d *deployment, informer cache.SharedIndexInformer, to *states[T]) {
	d.t.Helper()
	saw := func(now any) {
		u, ok := now.(*unstructured.Unstructured)
		if !ok {
			return
		}
		object := new(T)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, object); err != nil {
			d.t.Errorf("%s %s: %v", u.GetKind(), u.GetName(), err)
			return
		}
		to.mu.Lock()
		to.seen = append(to.seen, object)
		to.mu.Unlock()
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: saw, UpdateFunc: func(_, now any) { saw(now) }})
	require.NoError(d.t, err)
}

// begins waits until the first sync has Succeeded.
func (d *deployment) begins(revision string) {
	d.t.Helper()
	d.ends(revision, "Succeeded")
	d.argo.hasBegun(d.t)
}

// looks returns a function that refreshes the Application until Argo CD has found a revision. If git is
// unavailable during a refresh, Argo CD does not retry for minutes.
func (d *deployment) looks() func(app *argocd.Application, revision string) {
	var asked time.Time
	return func(app *argocd.Application, revision string) {
		d.t.Helper()
		if asked.IsZero() || app.Status.Sync.Revision != revision && time.Since(asked) > 20*time.Second {
			asked = time.Now()
			require.NoError(d.t, argocd.Refresh(d.ctx, d.dynamic, d.namespace))
		}
	}
}

// ends waits until Argo CD has finished the operation for a revision and returns the Application in that
// state.
func (d *deployment) ends(revision, phase string) *argocd.Application {
	d.t.Helper()
	var app *argocd.Application
	look := d.looks()
	d.eventually(d.t, "the sync of "+short7(revision)+" has "+phase, func() string {
		var err error
		if app, err = argocd.Get(d.ctx, d.dynamic, d.namespace); err != nil {
			return err.Error()
		}
		look(app, revision)
		o := app.Status.OperationState
		if o != nil && o.SyncResult.Revision == revision && o.Over() { // the phase is also Running between retries
			if o.Phase != phase {
				d.t.Fatalf("the sync of %s has %s:%s", short7(revision), o.Phase, summary(app))
			}
			return ""
		}
		return summary(app)
	})
	return app
}
