package document

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/test/cluster/kubetest"
	scripts "stoker.io/stoker/test/program"
)

func TestMain(m *testing.M) { kubetest.Main(m) }

// foreign are the groups of examples whose kinds the test cluster does not serve.
var foreign = []string{"argoproj.io", "builtin", "kube-state-metrics.io", "kustomize.config.k8s.io", "kyverno.io", "policy.sigstore.dev", "tekton.dev"}

// A reader gives the YAML of a page to kubectl, which reads YAML 1.1 and validates strictly. So every block that is an object, or a part of the
// spec or a profile of one, and every example goes to a real API server as kubectl would send it.
func TestObjectsOfDocuments(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Control(t)
	root := Root(t)
	cluster.Apply(t, filepath.Join(root, "hooks/kargo/testdata/crds.yaml"))
	server := dryRun{t: t, client: must(dynamic.NewForConfig(cluster.RESTConfig())), found: must(discovery.NewDiscoveryClientForConfig(cluster.RESTConfig())),
		namespace: cluster.Namespace(t), kinds: map[schema.GroupVersion]*metav1.APIResourceList{}}
	count := map[string]int{}
	for name, text := range yamlFiles(t, root) {
		documents := []block{{text: text}}
		if path.Ext(name) == ".md" {
			documents = blocks(text)
		}
		for _, b := range documents {
			for i, one := range regexp.MustCompile(`(?m)^---.*$`).Split(b.text, -1) {
				t.Run(fmt.Sprintf("%s:%d/%d", name, b.line, i), func(t *testing.T) {
					object := objectOf(t, name, b.info, one)
					if object != nil && server.accepts(t, object) {
						count[path.Ext(name)]++
					}
				})
			}
		}
	}
	assert.Greater(t, count[".md"], 30, "the blocks of the pages")
	assert.Greater(t, count[".yaml"], 60, "the objects of the examples")
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// yamlFiles returns the pages, and the examples without the repositories of gateways and templates of charts.
func yamlFiles(t *testing.T, root string) map[string]string {
	t.Helper()
	files := map[string]string{}
	// setup: what the test tries
	for _, top := range []string{"README.md", "docs", "examples"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, top), func(at string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && slices.Contains([]string{"repository", "templates"}, d.Name()):
				return fs.SkipDir
			case filepath.Ext(at) != ".md" && filepath.Ext(at) != ".yaml":
				return nil
			}
			text, err := os.ReadFile(at)
			name, _ := filepath.Rel(root, at)
			files[filepath.ToSlash(name)] = string(text)
			return err
		}))
	}
	return files
}

// block is a fenced block of YAML. info is what follows the word yaml.
type block struct {
	line       int
	info, text string
}

// blocks returns the blocks of YAML of a page, without the indentation of their list.
func blocks(page string) []block {
	var found []block
	fence, inside := "", false
	for i, line := range strings.Split(page, "\n") {
		indent, language, fenced := strings.Cut(line, "```")
		switch info, isYAML := strings.CutPrefix(language, "yaml"); {
		case fenced && fence != "":
			fence, inside = "", false
		case fenced && strings.TrimSpace(indent) == "":
			if fence, inside = indent+"```", isYAML; inside {
				found = append(found, block{line: i + 1, info: strings.TrimSpace(info)})
			}
		case inside:
			last := &found[len(found)-1]
			last.text += strings.TrimPrefix(line, strings.TrimSuffix(fence, "```")) + "\n"
		}
	}
	return found
}

// objectOf returns the object that a text of YAML is, or that it is a part of; nil if it is neither.
func objectOf(t *testing.T, name, info, text string) map[string]any {
	t.Helper()
	var part map[string]any
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil || json.Unmarshal(raw, &part) != nil {
		require.NotContains(t, text, "apiVersion:", "%v", err)
		return nil // a list, or a part that begins in the middle
	}
	_, hasSpec := part["spec"]
	switch {
	case part["kind"] == "StatefulSet" && path.Ext(name) == ".md": // what a page adds to one
		labels := map[string]any{"app": "line"}
		object := map[string]any{"spec": map[string]any{"serviceName": "line", "selector": map[string]any{"matchLabels": labels}, "template": map[string]any{
			"metadata": map[string]any{"labels": labels}, "spec": map[string]any{"containers": []any{map[string]any{"name": "gateway", "image": "ignition"}}}}}}
		merge(object, part)
		return object
	case part["apiVersion"] != nil && part["kind"] != nil:
		return part
	case info == "profile":
		part = map[string]any{"spec": map[string]any{"sync": map[string]any{"profiles": map[string]any{"default": part}}}}
	case info == "annotations":
		part = map[string]any{"metadata": map[string]any{"annotations": part}}
	case !hasSpec || path.Ext(name) != ".md":
		return nil
	}
	object := map[string]any{"apiVersion": "stoker.io/v1alpha1", "kind": "GatewaySync", "metadata": map[string]any{"name": "line"},
		"spec": map[string]any{"git": map[string]any{"repo": "https://git.example.com/plant/site.git", "ref": "main"}}}
	if strings.HasPrefix(name, "docs/how-to/config") {
		object["kind"], object["spec"] = "ConfigSync", map[string]any{"source": map[string]any{}}
		if source, _, _ := unstructured.NestedMap(part, "spec", "source"); source["gatewaySync"] == nil {
			object["spec"] = map[string]any{"source": map[string]any{"git": map[string]any{"repoURL": "https://git.example.com/plant.git", "branch": "main"}}}
		}
	}
	merge(object, part)
	return object
}

// merge merges the maps of src into dst.
func merge(dst, src map[string]any) {
	for key, value := range src {
		into, ok := dst[key].(map[string]any)
		if from, isMap := value.(map[string]any); ok && isMap {
			merge(into, from)
		} else {
			dst[key] = value
		}
	}
}

// dryRun is an API server that stores nothing.
type dryRun struct {
	t         *testing.T
	client    dynamic.Interface
	found     discovery.DiscoveryInterface
	namespace string
	kinds     map[schema.GroupVersion]*metav1.APIResourceList
}

// accepts creates an object. It returns false if the kind is foreign.
func (s *dryRun) accepts(t *testing.T, content map[string]any) bool {
	t.Helper()
	object := &unstructured.Unstructured{Object: content}
	version := object.GroupVersionKind().GroupVersion()
	if s.kinds[version] == nil {
		s.kinds[version], _ = s.found.ServerResourcesForGroupVersion(version.String())
	}
	if list := s.kinds[version]; list != nil {
		for _, r := range list.APIResources {
			if r.Kind != object.GetKind() || strings.Contains(r.Name, "/") {
				continue
			}
			objects := dynamic.ResourceInterface(s.client.Resource(version.WithResource(r.Name)))
			if r.Namespaced {
				object.SetNamespace(s.namespace)
				objects = s.client.Resource(version.WithResource(r.Name)).Namespace(s.namespace)
			}
			_, err := objects.Create(t.Context(), object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict})
			require.NoError(t, err)
			return true
		}
	}
	group, _, _ := strings.Cut(version.String(), "/")
	require.Contains(t, foreign, group, "no API server of the test serves %s", object.GroupVersionKind())
	return false
}

// Other tests check what these commands do. This one checks only that make has the targets.
func TestMakeTargets(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("no make on this machine")
	}
	lines := Open(t)
	s := NewShell(t, Root(t), nil, "MAKEFLAGS=n")
	for _, document := range []string{"README.md", "docs/how-to/air-gap.md", "docs/how-to/installation.md", "docs/internals/performance.md"} {
		for c := range lines.Of(document) {
			assert.Contains(t, s.Type(t, c.Text), "go ", c.Text)
		}
	}
}

func TestDocumentedHostKeys(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("no ssh-keygen on this machine")
	}
	lines := Open(t)
	scan := filepath.Join(t.TempDir(), "ssh-keyscan") // simulates a host, with the key of the page
	scripts.Script(t, scan, "#!/bin/sh\necho \"$1 $(cat identity.pub)\"\n")
	s := NewShell(t, t.TempDir(), map[string]string{"ssh-keyscan": scan})
	for c := range lines.Of("docs/how-to/git.md") {
		s.Type(t, c.Text)
	}
	private, err := os.ReadFile(filepath.Join(s.Dir, "identity"))
	require.NoError(t, err)
	key, err := ssh.ParsePrivateKey(private)
	require.NoError(t, err)
	public, err := os.ReadFile(filepath.Join(s.Dir, "identity.pub"))
	require.NoError(t, err)
	assert.Contains(t, string(public), string(ssh.MarshalAuthorizedKey(key.PublicKey()))[:60])
}
