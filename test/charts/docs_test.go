package charts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/program"
)

// reader runs the commands of documents in a folder with the files of the project.
type reader struct {
	*document.Shell
	t      *testing.T
	lines  *document.Commands
	images string // file that records the arguments of make and kind
}

// checkedOut is the abbreviated commit that the reader's git prints.
const checkedOut = "1f0c2d3"

func newReader(t *testing.T, lines *document.Commands, c *kubetest.Cluster) *reader {
	t.Helper()
	kubectl, root := kubetest.Kubectl(t)
	dir := t.TempDir()
	for _, name := range []string{"charts", "kustomize", "examples", "hooks"} {
		require.NoError(t, os.Symlink(filepath.Join(root, name), filepath.Join(dir, name)))
	}
	r := &reader{t: t, lines: lines, images: filepath.Join(t.TempDir(), "images")}
	// kind needs docker, and the tests of internal/release run make images. So kind and make only record their arguments here.
	// git only names a commit, because the folder is not a checkout.
	records, git := filepath.Join(t.TempDir(), "records"), filepath.Join(t.TempDir(), "git")
	program.Script(t, records, "#!/bin/sh\necho \"$@\" >> "+r.images+"\n")
	program.Script(t, git, "#!/bin/sh\necho "+checkedOut+"\n")
	r.Shell = document.NewShell(t, dir, map[string]string{"kubectl": kubectl, "helm": theHelm(t), "make": records, "kind": records, "git": git},
		"KUBECONFIG="+c.Kubeconfig())
	return r
}

// helm is the helm program that all tests of commands share. theHelm builds it, because the file that 'go tool -n' names is gone if go has just
// built it.
var helm struct {
	sync.Once
	dir  string
	said []byte
	err  error
}

func theHelm(t *testing.T) string {
	t.Helper()
	helm.Do(func() {
		if helm.dir, helm.err = os.MkdirTemp("", "stoker-helm-"); helm.err != nil { // TestMain removes it
			return
		}
		helm.said, helm.err = exec.Command("go", "build", "-ldflags=-s -w", "-o", helm.dir, "helm.sh/helm/v3/cmd/helm").CombinedOutput()
	})
	require.NoError(t, helm.err, "%s", helm.said)
	return filepath.Join(helm.dir, "helm")
}

// follows runs the commands of a document, or of its given headings, in order.
func (r *reader) follows(document string, headings ...string) {
	r.t.Helper()
	typed := 0
	for c := range r.lines.Of(document, headings...) {
		r.enter(c.Text)
		typed++
	}
	assert.Positive(r.t, typed, "%s %v", document, headings)
}

func (r *reader) enter(line string) {
	r.t.Helper()
	if strings.HasSuffix(line, " --watch") {
		r.Watch(r.t, line, "NAME", "line ")
		return
	}
	r.Type(r.t, line)
	for name, file := range map[string]string{"line": "examples/kubernetes/gatewaysync.yaml", "press": "examples/single/gatewaysync.yaml"} {
		if line == "kubectl create namespace "+name { // a reader creates the GatewaySync with stoker create, which needs a git server
			r.Type(r.t, "kubectl --namespace "+name+" apply -f "+file)
		}
	}
	if strings.HasPrefix(line, "helm install ") || strings.Contains(line, "kubectl kustomize ") {
		// A reader then waits for the Deployment. The test has no node, so only the kinds must exist.
		require.Eventually(r.t, func() bool {
			_, code := r.Try(r.t, "kubectl get gatewaysyncs,synctargets,syncreports --all-namespaces")
			return code == 0
		}, eventually, 10*pause)
	}
}

func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	lines := document.Open(t)
	t.Run("installed with Helm, operated, uninstalled", func(t *testing.T) {
		t.Parallel()
		r := newReader(t, lines, kubetest.Control(t, kubetest.Private(), kubetest.WithoutKinds(), kubetest.Controllers()))
		r.follows("docs/how-to/installation.md", "The images")
		r.follows("docs/how-to/installation.md", "With Helm", "The first gateway", "What to decide", "The receiver")
		r.runs("registry.example.com/stoker", theChart(t).AppVersion())
		r.enter("kubectl create namespace argocd")
		r.enter("kubectl apply -f hooks/testdata/applications.yaml") // simulates a cluster with Argo CD
		for _, name := range []string{"argocd-cm", "argocd-notifications-cm"} {
			r.enter("kubectl --namespace argocd create configmap " + name + " --from-literal=theirs=kept")
		}
		r.follows("docs/how-to/installation.md", "With Argo CD", "Argo CD and Kargo")
		for name, key := range map[string]string{"argocd-cm": `resource\.customizations\.health\.stoker\.io_GatewaySync`, "argocd-notifications-cm": `service\.webhook\.stoker`} {
			r.enter("kubectl --namespace argocd get configmap " + name + " --output 'jsonpath={.data.theirs}' | grep --line-regexp kept")
			r.enter("kubectl --namespace argocd get configmap " + name + " --output 'jsonpath={.data." + key + "}' | grep .")
		}
		r.enter("kubectl --namespace line create serviceaccount pipeline")
		r.follows("docs/how-to/notifications.md")
		r.enter("kubectl --namespace stoker-system get deployment stoker-notifier")
		r.enter("kubectl --namespace line auth can-i get secret/stoker-alerts --as=system:serviceaccount:stoker-system:stoker-notifier")
		r.enter("! kubectl --namespace line auth can-i get secret/other --as=system:serviceaccount:stoker-system:stoker-notifier")
		r.follows("docs/internals/security.md")
		r.follows("docs/how-to/operations.md", "Check the state", "Make a request", "Upgrade", "Credentials")
		r.enter("grep 'images REGISTRY=registry.example.com/stoker VERSION=0.1.0-g" + checkedOut + "' " + r.images)
		r.runs("registry.example.com/stoker", "0.1.0-g"+checkedOut)
		r.follows("docs/how-to/operations.md", "Certificates")
		r.enter("helm get hooks stoker --namespace stoker-system | kubectl apply -f -") // what helm test leaves behind if it is interrupted
		r.follows("docs/how-to/uninstall.md")
		r.enter("! kubectl get pods,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings --all-namespaces --output name | grep stoker-check")
		for _, name := range []string{"argocd-cm", "argocd-notifications-cm"} {
			assert.JSONEq(t, `{"theirs": "kept"}`, r.Type(t, "kubectl --namespace argocd get configmap "+name+" --output 'jsonpath={.data}'"), "nothing of ours is left")
		}
		r.follows("charts/stoker/README.md")
	})
	t.Run("by the README", func(t *testing.T) {
		t.Parallel()
		r := newReader(t, lines, kubetest.Control(t, kubetest.Private(), kubetest.WithoutKinds(), kubetest.Controllers()))
		r.enter("kubectl apply -f hooks/kargo/testdata/crds.yaml") // simulates a cluster with Kargo and Argo CD
		r.enter("kubectl create namespace argocd")
		r.enter("kubectl create namespace ignition") // that of a Kargo Project
		r.follows("README.md")
		r.runs("registry.example.com/stoker", theChart(t).AppVersion())
	})
	t.Run("by the tutorial", func(t *testing.T) {
		t.Parallel()
		r := newReader(t, lines, kubetest.Control(t, kubetest.Private(), kubetest.WithoutKinds()))
		r.follows("docs/start/tutorial-kubernetes.md")
		recorded, err := os.ReadFile(r.images)
		require.NoError(t, err)
		assert.Contains(t, string(recorded), "images TAR=images.tar\nload image-archive images.tar\n")
		r.runs("ghcr.io/stoker-io", theChart(t).AppVersion())
	})
	t.Run("installed with kustomize", func(t *testing.T) {
		t.Parallel()
		r := newReader(t, lines, kubetest.Control(t, kubetest.Private(), kubetest.WithoutKinds()))
		r.follows("docs/how-to/kustomize.md", "Install with kustomize")
		r.enter("kubectl create namespace ignition")
		r.enter("kubectl apply -f kustomize/components/configsync/objects.yaml")
		r.follows("docs/how-to/kustomize.md", "Uninstall, or go on with Helm")
		r.enter("! kubectl get deployments,roles,rolebindings,clusterroles,clusterrolebindings --all-namespaces --output name | grep stoker-configsync")
		r.follows("examples/kubernetes/README.md")
	})
	t.Run("over an older installation", func(t *testing.T) {
		t.Parallel()
		r := newReader(t, lines, kubetest.Control(t, kubetest.Private(), kubetest.WithoutKinds()))
		r.enter("kubectl create --filename charts/stoker/files/crds/stoker.io_gatewaysyncs.yaml")
		r.follows("docs/how-to/migration.md", "Existing manifests")
		r.enter("helm install stoker charts/stoker --namespace stoker-system --create-namespace")
		r.enter("kubectl create namespace line")
		r.enter("cp examples/kubernetes/gatewaysync.yaml .")
		r.follows("docs/how-to/migration.md", "Existing gateways")
		r.enter("touch allowed_signers ca.crt identity known_hosts private-key.pem signing") // other tests make keys
		for _, page := range []string{"git", "pull-requests", "signed-commits", "ui", "validation"} {
			r.follows("docs/how-to/" + page + ".md")
		}
	})
}

// runs checks that the Deployments have the images that make images builds for a registry and a tag.
func (r *reader) runs(registry, tag string) {
	r.t.Helper()
	installed := strings.Fields(r.Type(r.t, "kubectl --namespace stoker-system get deployments --output 'jsonpath={.items[*].spec.template.spec.containers[*].image}'"))
	require.NotEmpty(r.t, installed)
	var built []string
	for part := range parts {
		built = append(built, registry+"/"+part+":"+tag)
	}
	assert.Subset(r.t, built, installed)
}

// The Application of Stoker in examples/argocd ignores exactly the field that the injector writes.
func TestArgoCDExampleMatchesChart(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "examples", "argocd", "stoker.yaml"))
	require.NoError(t, err)
	app := parseOne(t, string(text))
	path, _, err := unstructured.NestedString(app.Object, "spec", "source", "path")
	require.NoError(t, err)
	assert.FileExists(t, filepath.Join(root, path, "Chart.yaml"))
	ignored, _, err := unstructured.NestedSlice(app.Object, "spec", "ignoreDifferences")
	require.NoError(t, err)
	require.Len(t, ignored, 1)
	one := ignored[0].(map[string]any)
	assert.Contains(t, rendered(t, nil), one["kind"].(string)+"/"+one["name"].(string))
	assert.Equal(t, []any{".webhooks[].clientConfig.caBundle"}, one["jqPathExpressions"])
}

const (
	tableBegin = "<!-- values: written by `go test -update` in test/charts from values.yaml -->\n"
	tableEnd   = "<!-- end of values -->\n"
)

// table generates the reference of values from values.yaml and its comments.
func table(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(chartDir, "values.yaml"))
	require.NoError(t, err)
	var document yaml.Node
	require.NoError(t, yaml.Unmarshal(data, &document))
	var b strings.Builder
	b.WriteString("| value | default | meaning |\n|---|---|---|\n")
	var walk func(prefix string, in *yaml.Node)
	walk = func(prefix string, in *yaml.Node) {
		for i := 0; i < len(in.Content); i += 2 {
			name, value := in.Content[i], in.Content[i+1]
			paragraphs := strings.Split(name.HeadComment, "\n\n") // the first key also has the head comment of the file
			comment := strings.Join(strings.Fields(strings.ReplaceAll(paragraphs[len(paragraphs)-1], "#", " ")), " ")
			path := prefix + name.Value
			if value.Kind == yaml.MappingNode && len(value.Content) > 0 {
				walk(path+".", value)
				continue
			}
			require.NotEmpty(t, comment, "%s: values.yaml has no comment for it", path)
			var plain any
			require.NoError(t, value.Decode(&plain))
			standard, err := json.Marshal(plain)
			require.NoError(t, err)
			fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", path, standard, strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(comment))
		}
	}
	walk("", document.Content[0])
	return b.String()
}

func TestReadmeListsValues(t *testing.T) {
	t.Parallel()
	path := filepath.Join(chartDir, "README.md")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(data), tableBegin)
	require.True(t, found)
	got, after, found := strings.Cut(rest, tableEnd)
	require.True(t, found)
	want := table(t)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(before+tableBegin+want+tableEnd+after), 0o644))
		got = want
	}
	assert.Equal(t, want, got, "run go test -update")
	for value := range leaves(t) {
		assert.Contains(t, want, "| `"+value+"` |")
	}
}

const handedDown = "0123456789012345678901234567890123456789" // a commit that looks like a number

// handed checks what the examples for Helm and kustomize have in common, to which Argo CD passes a revision. The GatewaySync names the revision, a
// Job checks the same one first, and the pods of the gateways do not change with it.
func handed(t *testing.T, render func(revision string) objects) {
	t.Helper()
	found := render(handedDown)
	gs := found["GatewaySync/line"]
	require.NotNil(t, gs)
	ref, _ := at(gs.Object, "spec/git/ref")
	assert.Equal(t, handedDown, ref)
	require.NotNil(t, found["ConfigMap/stoker-preflight"])
	manifest, _ := at(found["ConfigMap/stoker-preflight"].Object, "data/gatewaysync.yaml")
	assert.Contains(t, manifest, "kind: GatewaySync")
	for _, job := range []string{"Job/stoker-preflight", "Job/stoker-wait"} {
		assert.Contains(t, found, job)
	}
	before, err := render("main")["StatefulSet/line"].MarshalJSON()
	require.NoError(t, err)
	after, err := found["StatefulSet/line"].MarshalJSON()
	require.NoError(t, err)
	assert.Equal(t, string(before), strings.ReplaceAll(string(after), handedDown, "main"))
	for _, path := range []string{"spec/template", "spec/volumeClaimTemplates"} {
		inside, _ := at(found["StatefulSet/line"].Object, path)
		assert.NotContains(t, mustJSON(t, inside), handedDown, "%s: each commit would restart the gateways", path)
	}
}

func TestHelmExampleRevision(t *testing.T) {
	t.Parallel()
	handed(t, func(revision string) objects { return helmExample(t, values{"revision": revision}) })
}

func helmExample(t *testing.T, given values) objects {
	t.Helper()
	c, err := loader.Load(filepath.Join(root, "examples", "argocd", "helm"))
	require.NoError(t, err)
	install := action.NewInstall(&action.Configuration{Capabilities: chartutil.DefaultCapabilities})
	install.DryRun, install.ClientOnly, install.ReleaseName, install.Namespace = true, true, "line", "plant"
	made, err := install.Run(c, given)
	require.NoError(t, err)
	// The API server generates the name of one Job.
	return parse(t, []byte(strings.ReplaceAll(made.Manifest, "generateName: stoker-rollback-", "name: stoker-rollback")))
}

// A private git server and a cluster without a default StorageClass need additional values. They must
// reach every object that uses them.
func TestHelmExampleValues(t *testing.T) {
	t.Parallel()
	const (
		class  = "spec/volumeClaimTemplates/0/spec/storageClassName"
		mounts = "spec/template/spec/containers/0/volumeMounts"
	)
	plain := helmExample(t, values{})
	assert.NotContains(t, mustJSON(t, plain["GatewaySync/line"].Object), "caSecretRef")
	is, _ := at(plain["StatefulSet/line"].Object, class)
	assert.Nil(t, is, "the storage class must not be set")
	assert.NotContains(t, mustJSON(t, plain["Job/stoker-preflight"].Object), "git-ca")

	found := helmExample(t, values{"caSecretRef": values{"name": "plant-ca", "key": "tls.crt"}, "storageClassName": "fast", "storage": "9Gi"})
	ref, _ := at(found["GatewaySync/line"].Object, "spec/git/caSecretRef")
	assert.Equal(t, values{"name": "plant-ca", "key": "tls.crt"}, ref)
	before, _ := at(found["ConfigMap/stoker-preflight"].Object, "data/gatewaysync.yaml")
	assert.Contains(t, before, "name: plant-ca", "the checked GatewaySync must be the applied one")
	is, _ = at(found["StatefulSet/line"].Object, class)
	assert.Equal(t, "fast", is)
	size, _ := at(found["StatefulSet/line"].Object, "spec/volumeClaimTemplates/0/spec/resources/requests/storage")
	assert.Equal(t, "9Gi", size)
	mounted, _ := at(found["Job/stoker-preflight"].Object, mounts)
	assert.Contains(t, mounted, values{"name": "git-ca", "mountPath": "/secrets/plant-ca", "readOnly": true}, "the Job must mount the authority")
	volumes, _ := at(found["Job/stoker-preflight"].Object, "spec/template/spec/volumes")
	assert.Contains(t, volumes, values{"name": "git-ca", "secret": values{"secretName": "plant-ca", "optional": true}})
}

func TestKustomizeExampleRevision(t *testing.T) {
	t.Parallel()
	handed(t, func(revision string) objects {
		dir := t.TempDir()
		copyFiles(t, filepath.Join(root, "examples", "argocd", "kustomize"), dir, func(string) bool { return true })
		// The same edit as Argo CD makes with kustomize edit add annotation.
		file := filepath.Join(dir, "kustomization.yaml")
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		text = append(bytes.TrimSpace(text), "\ncommonAnnotations:\n  example.com/revision: \""+revision+"\"\n"...)
		require.NoError(t, os.WriteFile(file, text, 0o644))
		found := objects{}
		for name, o := range kustomized(t, dir) {
			found[strings.Replace(name, "plant/", "", 1)] = o
		}
		return found
	})
}
