package configsync_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync"
	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/configsync/render"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/gitserver"
)

func TestMain(m *testing.M) {
	builder.Main(render.Functions())
	if err := flag.Set("test.parallel", "6"); err != nil { // these tests mostly wait
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	kubetest.Main(m)
}

// world is a namespace of a real API server, and a repository on a real git server.
type world struct {
	*kubetest.Cluster
	t         *testing.T
	namespace string
	git       *gitserver.Repo
	server    *gitserver.Server
	core      kubernetes.Interface
	admin     kube.Clients // have all rights
}

// newWorld creates a world, and makes the test run in parallel with others.
func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	cluster := kubetest.Control(t, kubetest.Controllers())
	root := t.TempDir()
	repo := gitserver.NewRepo(t, filepath.Join(root, "plant.git"))
	server, err := gitserver.Start(root, gitserver.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	w := &world{Cluster: cluster, t: t, namespace: cluster.Namespace(t), git: repo, server: server}
	w.core, w.admin = cluster.Client(t), w.clients(cluster.RESTConfig())
	return w
}

// commit commits files, given as names and contents in turn, and returns the ID of the commit. The content "" deletes a file. NS in a content
// stands for the namespace.
func (w *world) commit(files ...string) string {
	w.t.Helper()
	var edits []gitserver.Edit
	for i := 0; i < len(files); i += 2 {
		if files[i+1] == "" {
			edits = append(edits, gitserver.Delete(files[i]))
			continue
		}
		edits = append(edits, gitserver.Write(files[i], strings.ReplaceAll(files[i+1], "NS", w.namespace)))
	}
	return w.git.Commit("change", edits...)
}

// create creates or changes the ConfigSync plant, with more fields of its spec as YAML. null removes a field.
func (w *world) create(more string) {
	w.t.Helper()
	w.createNamed("plant", more)
}

// createNamed is create for a ConfigSync of any name.
func (w *world) createNamed(name, more string) {
	w.t.Helper()
	spec := map[string]any{"source": map[string]any{"git": map[string]any{"repoURL": w.server.URL("plant.git"), "branch": "main", "path": "k8s"}}, "progressDeadline": "20s"}
	given := map[string]any{}
	require.NoError(w.t, yaml.Unmarshal([]byte(more), &given))
	merge(spec, given)
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "stoker.io/v1alpha1", "kind": "ConfigSync", "metadata": map[string]any{"name": name}, "spec": spec,
	})
	require.NoError(w.t, err)
	w.ApplyYAML(w.t, w.namespace, string(text))
}

func merge(into, from map[string]any) {
	for k, v := range from {
		child, isMap := v.(map[string]any)
		old, wasMap := into[k].(map[string]any)
		if isMap && wasMap {
			merge(old, child)
			continue
		}
		if into[k] = v; v == nil {
			delete(into, k)
		}
	}
}

func (w *world) clients(config *rest.Config) kube.Clients {
	w.t.Helper()
	clients, err := kube.ConnectTo(config, "test")
	require.NoError(w.t, err)
	return clients
}

func (w *world) engine(config *rest.Config) *configsync.Engine {
	clients := w.clients(config)
	return &configsync.Engine{Connect: func() (kube.Clients, error) { return clients, nil }}
}

// get reads the ConfigSync.
func (w *world) get() *v1alpha1.ConfigSync {
	w.t.Helper()
	return w.getNamed("plant")
}

func (w *world) getNamed(name string) *v1alpha1.ConfigSync {
	w.t.Helper()
	cs, err := kube.ConfigSyncs(w.admin.Dynamic, w.namespace).Get(w.t.Context(), name)
	require.NoError(w.t, err)
	return cs
}

// apply runs the ConfigSync as a user with all rights.
func (w *world) apply() (*configsync.Run, error) {
	w.t.Helper()
	return w.applyNamed("plant")
}

func (w *world) applyNamed(name string) (*configsync.Run, error) {
	w.t.Helper()
	return w.engine(w.RESTConfig()).Apply(w.t.Context(), w.getNamed(name), configsync.Options{})
}

// run is applyNamed without a result.
func (w *world) run(name string) error {
	w.t.Helper()
	_, err := w.applyNamed(name)
	return err
}

// must is apply without an error.
func (w *world) must() *configsync.Run {
	w.t.Helper()
	r, err := w.apply()
	require.NoError(w.t, err)
	return r
}

// fails is apply with an error of a reason, which contains texts.
func (w *world) fails(reason v1alpha1.Reason, texts ...string) {
	w.t.Helper()
	_, err := w.apply()
	assert.Equal(w.t, reason, failure.Reason(err, ""), "%v", err)
	for _, text := range texts {
		assert.ErrorContains(w.t, err, text)
	}
}

// said returns all that a user sees of a run: the error, the plan, the ConfigSync and the Events.
func (w *world) said(r *configsync.Run, err error) string {
	w.t.Helper()
	object, jsonErr := json.Marshal(w.get())
	require.NoError(w.t, jsonErr)
	text := fmt.Sprint(err) + string(object)
	if r != nil && r.Plan != nil {
		text += r.Plan.String()
	}
	for _, e := range w.events() {
		text += e.Message
	}
	return text
}

// annotate sets an annotation of the ConfigSync.
func (w *world) annotate(name, value string) {
	w.t.Helper()
	_, err := kube.ConfigSyncs(w.admin.Dynamic, w.namespace).Patch(w.t.Context(), "plant", types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, name, value), metav1.PatchOptions{})
	require.NoError(w.t, err)
}

// data returns the data of a ConfigMap, or nil if there is none.
func (w *world) data(name string) map[string]string {
	m, err := w.core.CoreV1().ConfigMaps(w.namespace).Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	if m.Data == nil {
		return map[string]string{}
	}
	return m.Data
}

// ours returns the names of all ConfigMaps of the namespace that are marked.
func (w *world) ours() (names []string) {
	w.t.Helper()
	list, err := w.core.CoreV1().ConfigMaps(w.namespace).List(w.t.Context(), metav1.ListOptions{})
	require.NoError(w.t, err)
	for _, m := range list.Items {
		if m.Annotations[v1alpha1.AnnotationConfigSync] != "" {
			names = append(names, m.Name)
		}
	}
	return names
}

// tracked asserts that the inventory has every ConfigMap that is marked.
func (w *world) tracked() {
	w.t.Helper()
	listed := map[string]bool{}
	for _, line := range w.get().Status.Inventory {
		e, ok := manifest.ParseEntry(line)
		require.True(w.t, ok)
		listed[e.Name] = true
	}
	for _, name := range w.ours() {
		assert.True(w.t, listed[name], "ConfigMap %s has the mark but is missing from the inventory", name)
	}
}

func (w *world) condition(kind string) *metav1.Condition {
	w.t.Helper()
	for _, c := range w.get().Status.Conditions {
		if c.Type == kind {
			return &c
		}
	}
	return nil
}

func (w *world) events() (list []corev1.Event) {
	w.t.Helper()
	all, err := w.core.CoreV1().Events(w.namespace).List(w.t.Context(), metav1.ListOptions{})
	require.NoError(w.t, err)
	return all.Items
}

// configMap returns the manifest of a ConfigMap whose key a has a value, and the line that ends the document.
func configMap(name, value string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata: {a: %q}\n---\n", name, value)
}
