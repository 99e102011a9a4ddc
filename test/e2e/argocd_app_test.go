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
	argo      *argoCD
	example   string          // directory in examples/argocd
	extraFile string          // additional file from examples/argocd
	repo      *gitserver.Repo // holds the manifests
	at        string          // directory of the manifests in repo
	class     string          // storage class

	applications *states[argocd.Application]
	gatewaySyncs *states[v1alpha1.GatewaySync]
	shell        *document.Shell
}

// change adapts an object of the example.
type change func(*unstructured.Unstructured)

// deploy commits the manifests of an example to the directory at of repo and creates the Application, both
// with changes. The example names a directory of examples/argocd, or "directory+file" for a directory and one
// additional file.
func (p *plant) deploy(example string, repo *gitserver.Repo, repoName, at string, changes ...change) *deployment {
	p.t.Helper()
	example, extraFile, _ := strings.Cut(example, "+")
	d := &deployment{plant: p, argo: p.argocd(p.t), example: example, extraFile: extraFile, repo: repo, at: at, class: p.volumes(2)}
	d.argo.waitForTurn(p.ctx, p.t)
	d.recordStates()
	d.commitManifests("the manifests", changes...)
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
			p.t.Logf("the Application:%s", distinctStates(d.applications.all()))
		}
		err := argocd.Applications(d.dynamic).Delete(d.ctx, d.namespace, metav1.DeleteOptions{})
		if !apierrors.IsNotFound(err) {
			require.NoError(p.t, err)
		}
	})
	return d
}

// commitManifests commits the manifests with changes and returns the revision.
func (d *deployment) commitManifests(message string, changes ...change) string {
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
	add := func(file string) {
		var text strings.Builder
		for _, u := range d.read(file, d.withEmbedded(append([]change{d.adaptToCluster}, changes...))...) {
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
			add(filepath.Join(d.example, name))
		}
	}
	if d.extraFile != "" {
		add(d.extraFile)
	}
	require.NotEmpty(d.t, out)
	return out
}

// read decodes the objects in a file of examples/argocd and applies changes to each.
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

// withEmbedded returns changes, extended so that they also apply to the GatewaySync embedded in a ConfigMap of
// the example.
func (d *deployment) withEmbedded(changes []change) []change {
	const name = "gatewaysync.yaml"
	return append(changes, func(u *unstructured.Unstructured) {
		text, there, _ := unstructured.NestedString(u.Object, "data", name)
		if u.GetKind() != "ConfigMap" || !there {
			return
		}
		embedded := &unstructured.Unstructured{}
		require.NoError(d.t, yaml.Unmarshal([]byte(text), &embedded.Object))
		for _, c := range changes {
			c(embedded)
		}
		raw, err := yaml.Marshal(embedded.Object)
		require.NoError(d.t, err)
		set(u, string(raw), "data", name)
	})
}

// chartValues is the kind of the values of a chart, which are not a Kubernetes object and have none.
const chartValues = ""

func set(u *unstructured.Unstructured, value any, path ...string) {
	if err := unstructured.SetNestedField(u.Object, value, path...); err != nil {
		panic(err)
	}
}

// adaptToCluster sets the addresses, images, storage class, namespace and timing of this cluster in an object of
// the example.
func (d *deployment) adaptToCluster(u *unstructured.Unstructured) {
	switch u.GetKind() {
	case chartValues:
		set(u, d.git.URL(d.repoName), "repo")
		set(u, map[string]any{"name": "git-ca", "key": "ca.crt"}, "caSecretRef")
		set(u, d.class, "storageClassName")
		set(u, map[string]any{"hooks": d.registry + "/hooks:" + d.version, "gateway": gatewayImageRef}, "images")
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
	case v1alpha1.KindGatewaySync:
		set(u, d.git.URL(d.repoName), "spec", "git", "repo")
		set(u, map[string]any{"name": "git-ca", "key": "ca.crt"}, "spec", "git", "caSecretRef")
		set(u, int64(5), "spec", "sync", "defaults", "syncPeriod")
	case "StatefulSet":
		pod := ensureMap(u.Object, "spec", "template", "spec")
		pod["terminationGracePeriodSeconds"] = int64(10)
		containers(pod, gatewayImageRef)
		for _, c := range list(pod, "containers") {
			ensureMap(c, "readinessProbe")["periodSeconds"] = int64(1)
		}
		for _, claim := range list(u.Object, "spec", "volumeClaimTemplates") {
			ensureMap(claim, "spec")["storageClassName"] = d.class
		}
	case "Job":
		pod := ensureMap(u.Object, "spec", "template", "spec")
		containers(pod, d.registry+"/hooks:"+d.version)
		for _, c := range list(pod, "containers") {
			for i, arg := range c["args"].([]any) {
				if arg == exampleApplication {
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

// exampleApplication is the hook argument that names the Application in the examples.
const exampleApplication = "argocd/line"

// containers sets the image of all containers of a pod.
func containers(pod map[string]any, image string) {
	for _, key := range []string{"initContainers", "containers"} {
		for _, c := range list(pod, key) {
			c["image"], c["imagePullPolicy"] = image, "IfNotPresent"
		}
	}
}

// ensureMap returns a nested map and creates missing levels.
func ensureMap(m map[string]any, path ...string) map[string]any {
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

// recordStates stores every state of the Application and the GatewaySync until the test ends.
func (d *deployment) recordStates() {
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

// watch appends every state that the informer reports.
func watch[T any](d *deployment, informer cache.SharedIndexInformer, to *states[T]) {
	d.t.Helper()
	add := func(now any) {
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
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, now any) { add(now) }})
	require.NoError(d.t, err)
}

// waitForFirstSync waits until Argo CD has synced a revision successfully, and lets the next test start.
func (d *deployment) waitForFirstSync(revision string) {
	d.t.Helper()
	d.waitForSync(revision, "Succeeded")
	d.argo.markStarted(d.t)
}

// refresher returns a function that asks Argo CD to refresh the Application, every 20 seconds, until it compares
// with the given revision. Argo CD itself does not retry for minutes if git is unavailable during a refresh.
func (d *deployment) refresher() func(app *argocd.Application, revision string) {
	var asked time.Time
	return func(app *argocd.Application, revision string) {
		d.t.Helper()
		if asked.IsZero() || app.Status.Sync.Revision != revision && time.Since(asked) > 20*time.Second {
			asked = time.Now()
			require.NoError(d.t, argocd.Refresh(d.ctx, d.dynamic, d.namespace))
		}
	}
}

// waitForSync waits until Argo CD has finished the sync of a revision, and returns the Application in that state.
// It fails the test if the sync ends in another phase.
func (d *deployment) waitForSync(revision, phase string) *argocd.Application {
	d.t.Helper()
	var app *argocd.Application
	refresh := d.refresher()
	d.eventually(d.t, "the sync of "+short7(revision)+" has "+phase, func() string {
		var err error
		if app, err = argocd.Get(d.ctx, d.dynamic, d.namespace); err != nil {
			return err.Error()
		}
		refresh(app, revision)
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
