package charts

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"stoker.io/stoker/test/cluster/build"
	"stoker.io/stoker/test/cluster/kubetest"
)

// command is a line of a document that a reader is to type.
type command struct{ heading, line string }

// commandsIn returns the lines of a document that call kubectl or helm.
func commandsIn(t *testing.T, document string) []command {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, document))
	require.NoError(t, err)
	var found []command
	heading := ""
	for line := range strings.Lines(strings.ReplaceAll(string(text), "\\\n", " ")) {
		line = strings.TrimRight(line, "\n")
		if after, ok := strings.CutPrefix(line, "## "); ok {
			heading = after
		}
		typed := strings.TrimSpace(line)
		if strings.HasPrefix(line, "    ") && (strings.HasPrefix(typed, "kubectl ") || strings.HasPrefix(typed, "helm ")) {
			found = append(found, command{heading, typed})
		}
	}
	require.NotEmpty(t, found, document)
	return found
}

// elsewhere are commands that need a kubelet, or Argo CD; the whole way, with pods, is driven by test/e2e.
var elsewhere = []string{"rollout status ", "helm test ", "/proxy/state", "examples/argocd/", " --watch"}

// shell runs commands as a reader would, from the project's folder.
type shell struct {
	dir string
	env []string
}

func newShell(t *testing.T, c *kubetest.Cluster) *shell {
	t.Helper()
	cache, err := build.Open(build.Cache{Say: os.Stderr})
	require.NoError(t, err)
	kubernetes, err := cache.Kubernetes(t.Context(), os.Getenv(build.VersionVariable))
	require.NoError(t, err)
	s := &shell{dir: t.TempDir()}
	module, err := filepath.Abs(root)
	require.NoError(t, err)
	for _, name := range []string{"charts", "kustomize", "examples"} {
		require.NoError(t, os.Symlink(filepath.Join(module, name), filepath.Join(s.dir, name)))
	}
	bin := t.TempDir()
	require.NoError(t, os.Symlink(filepath.Join(kubernetes, "kubectl"), filepath.Join(bin, "kubectl")))
	out, err := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(bin, "helm"), "helm.sh/helm/v3/cmd/helm").CombinedOutput()
	require.NoError(t, err, string(out))
	home := t.TempDir()
	s.env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "KUBECONFIG=" + c.Kubeconfig(), "HOME=" + home}
	return s
}

// run runs the commands of a document, or of one of its headings, in their order.
func (s *shell) run(t *testing.T, document string, headings ...string) {
	t.Helper()
	ran := 0
	for _, c := range commandsIn(t, document) {
		if len(headings) > 0 && !slices.Contains(headings, c.heading) {
			continue
		}
		if slices.ContainsFunc(elsewhere, func(s string) bool { return strings.Contains(c.line, s) }) {
			continue
		}
		s.enter(t, c.line)
		ran++
	}
	assert.Positive(t, ran, "%s %v", document, headings)
}

func (s *shell) enter(t *testing.T, line string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir, cmd.Env = s.dir, s.env
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", line, out)
	t.Logf("$ %s\n%s", line, out)
	if strings.HasPrefix(line, "helm install ") || strings.Contains(line, " -k ") {
		// A reader waits for the Deployment next. Here it has no node; what has to be there is the kinds.
		require.Eventually(t, func() bool {
			cmd := exec.CommandContext(t.Context(), "sh", "-c", "kubectl get gatewaysyncs,synctargets,syncreports --all-namespaces")
			cmd.Dir, cmd.Env = s.dir, s.env
			return cmd.Run() == nil
		}, eventually, 10*pause)
	}
}

func TestCommandsOfTheDocumentsWork(t *testing.T) {
	t.Run("installed with Helm, operated, uninstalled", func(t *testing.T) {
		s := newShell(t, kubetest.Control(t, kubetest.Private(), kubetest.WithoutKinds(), kubetest.Controllers()))
		s.run(t, "docs/installation.md", "With Helm", "The first gateway", "What to decide")
		s.enter(t, "kubectl --namespace line create serviceaccount pipeline")
		s.run(t, "docs/security.md")
		s.run(t, "docs/operations.md", "Look at it", "Ask for something", "Upgrade", "Credentials")
		s.enter(t, "kubectl --namespace stoker-system create secret generic stoker-injector-cert") // no injector runs here
		s.run(t, "docs/operations.md", "Certificates")
		s.enter(t, "kubectl --namespace stoker-system create secret generic stoker-injector-cert")
		s.run(t, "docs/operations.md", "Uninstall")
	})
	t.Run("by the README", func(t *testing.T) {
		s := newShell(t, kubetest.Control(t, kubetest.Private(), kubetest.WithoutKinds(), kubetest.Controllers()))
		s.run(t, "README.md")
	})
	t.Run("installed with kustomize", func(t *testing.T) {
		s := newShell(t, kubetest.Control(t, kubetest.Private(), kubetest.WithoutKinds()))
		s.run(t, "docs/installation.md", "With kustomize")
	})
	t.Run("over an older installation", func(t *testing.T) {
		s := newShell(t, kubetest.Control(t, kubetest.Private(), kubetest.WithoutKinds()))
		s.enter(t, "kubectl create --filename charts/stoker/files/crds/stoker.io_gatewaysyncs.yaml")
		s.run(t, "docs/migration.md", "Existing manifests")
		s.enter(t, "helm install stoker charts/stoker --namespace stoker-system --create-namespace")
		s.enter(t, "kubectl create namespace line")
		s.enter(t, "cp examples/kubernetes/gatewaysync.yaml .")
		s.run(t, "docs/migration.md", "Gateways that are there already")
	})
}

// Every document's commands are run above; a heading that none of the lists names would be left out silently.
func TestNoCommandOfTheDocumentsIsLeftOut(t *testing.T) {
	for document, headings := range map[string][]string{
		"README.md":            {"Install it on a cluster"},
		"docs/installation.md": {"With Helm", "With kustomize", "With Argo CD", "The first gateway", "What to decide"},
		"docs/operations.md":   {"Look at it", "Ask for something", "Upgrade", "Uninstall", "Certificates", "Credentials"},
		"docs/migration.md":    {"Gateways that are there already", "Existing manifests"},
		"docs/security.md":     {"Setters"},
	} {
		for _, c := range commandsIn(t, document) {
			assert.Contains(t, headings, c.heading, "%s: %s", document, c.line)
		}
	}
}

// What an Application of the examples ignores is what the injector writes, and nothing else.
func TestTheExampleForArgoCDNamesWhatTheChartRenders(t *testing.T) {
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
