package kargo

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/document"
)

// pages are the pages about Kargo, in the order in which a user reads them.
var pages = []string{"docs/how-to/kargo.md", "docs/how-to/kargo-argocd.md", "docs/how-to/kargo-verification.md"}

// section returns the section under a heading, up to the next heading of the same or a higher level.
func section(t *testing.T, heading string) string {
	t.Helper()
	var text []byte
	// setup: one text
	for _, page := range pages {
		b, err := os.ReadFile("../../" + page)
		require.NoError(t, err)
		text = append(text, b...)
	}
	level, _, _ := strings.Cut(heading, " ")
	_, rest, found := strings.Cut(string(text), "\n"+heading+"\n")
	require.True(t, found, heading)
	for i := 1; i <= len(level); i++ {
		rest, _, _ = strings.Cut(rest, "\n"+strings.Repeat("#", i)+" ")
	}
	return rest
}

var row = regexp.MustCompile("(?m)^\\| (`[^|]*) \\|([^|]*)\\|[^|]*\\|$")

// listed returns the rows of a table as name=default.
func listed(table string) []string {
	var list []string
	for _, m := range row.FindAllStringSubmatch(table, -1) {
		for name := range strings.SplitSeq(m[1], ", ") {
			list = append(list, strings.Trim(name, "`")+"="+strings.Trim(strings.TrimSpace(m[2]), "`"))
		}
	}
	return list
}

func TestDocumentedVars(t *testing.T) {
	t.Parallel()
	for name, one := range tasks(t) {
		t.Run(name, func(t *testing.T) {
			var want []string
			for _, v := range one.Spec.Vars {
				want = append(want, v.Name+"="+v.Value)
			}
			_, table, _ := strings.Cut(section(t, "## The task "+name), "| var | default | |")
			table, _, _ = strings.Cut(table, "\n\n")
			assert.Equal(t, want, listed(table), name)
		})
	}
	for _, name := range []string{"stoker-status", "stoker-wait"} {
		t.Run(name, func(t *testing.T) {
			b, err := os.ReadFile(files + "analysis/" + name + ".yaml")
			require.NoError(t, err)
			var one analysis
			require.NoError(t, yaml.UnmarshalStrict(b, &one))
			var want []string
			for _, a := range one.Spec.Args {
				value := ""
				switch {
				case a.Value != nil:
					value = *a.Value
				case a.ValueFrom != nil: // without the last backtick, which listed trims
					value = fmt.Sprintf("key `%s` of the Secret `%s", a.ValueFrom.SecretKeyRef.Key, a.ValueFrom.SecretKeyRef.Name)
				}
				want = append(want, a.Name+"="+value)
			}
			_, table, _ := strings.Cut(section(t, "# Verify promotions of Kargo"), "| argument of `"+name+"` | default | |")
			table, _, _ = strings.Cut(table, "\n\n")
			assert.Equal(t, want, listed(table), name)
		})
	}
}

func TestDocumentedMessages(t *testing.T) {
	t.Parallel()
	text := section(t, "## When it does not work")
	b, err := os.ReadFile(files + "stoker-request.yaml")
	require.NoError(t, err)
	for _, said := range []string{"no answer from the receiver; check the var receiver", "is not a string, or empty"} {
		assert.Contains(t, text, said)
		assert.Contains(t, string(b), said)
	}
}

// These types are the parts of a Stage that the example uses. Unknown fields are errors.
type (
	verification struct {
		AnalysisTemplates []struct {
			Name string `json:"name"`
			Kind string `json:"kind,omitempty"`
		} `json:"analysisTemplates"`
		Args []variable `json:"args"`
	}
	stage struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name      string `json:"name"`
			Namespace string `json:"namespace"`
		} `json:"metadata"`
		Spec struct {
			RequestedFreight []struct {
				Origin  map[string]string `json:"origin"`
				Sources struct {
					Direct bool     `json:"direct,omitempty"`
					Stages []string `json:"stages,omitempty"`
				} `json:"sources"`
			} `json:"requestedFreight"`
			PromotionTemplate struct {
				Spec struct {
					Steps []step `json:"steps"`
				} `json:"spec"`
			} `json:"promotionTemplate"`
			Verification *verification `json:"verification,omitempty"`
		} `json:"spec"`
	}
)

// stages returns the Stages of the example by name.
func stages(t *testing.T) map[string]stage {
	t.Helper()
	all := map[string]stage{}
	for _, text := range documents(t, "../../examples/kargo/pipeline.yaml") {
		if !strings.Contains(text, "\nkind: Stage\n") {
			continue
		}
		var s stage
		require.NoError(t, yaml.UnmarshalStrict([]byte(text), &s))
		all[s.Metadata.Name] = s
	}
	require.Len(t, all, 3)
	return all
}

func documents(t *testing.T, file string) []string {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return strings.Split(string(b), "\n---\n")
}

var fenced = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// The snippets must be valid parts of a Stage, and so must the steps of the example.
func TestDocumentedSteps(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"stoker-request", "stoker-argocd"} {
		t.Run(name, func(t *testing.T) {
			snippet := fenced.FindStringSubmatch(section(t, "## The task "+name))
			require.NotNil(t, snippet)
			var part struct{ Steps []step }
			require.NoError(t, yaml.UnmarshalStrict([]byte(snippet[1]), &part), name)
			p := &promotion{steps: part.Steps}
			require.NoError(t, p.inflate(tasks(t)))
			assert.Len(t, p.steps, len(tasks(t)[name].Spec.Steps))
		})
	}
	for name, s := range stages(t) {
		t.Run("example "+name, func(t *testing.T) {
			p := &promotion{steps: s.Spec.PromotionTemplate.Spec.Steps}
			require.NoError(t, p.inflate(tasks(t)))
		})
	}
	var part struct{ Verification verification }
	require.NoError(t, yaml.UnmarshalStrict([]byte(fenced.FindStringSubmatch(section(t, "# Verify promotions of Kargo"))[1]), &part))
	assert.Equal(t, stages(t)["test"].Spec.Verification, &part.Verification, "the page must show the verification of the example")
}

// The test runs every command unchanged, in the order of a reader who starts with the example. The commands for namespaces and Secrets, which
// the pages repeat, run once. The CRDs of Kargo and Rollouts come from testdata. The test creates the Project's namespace, as Kargo would.
func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	lines := document.Open(t)
	c := kubetest.Control(t)
	c.Apply(t, "testdata/crds.yaml")
	c.ApplyYAML(t, "", kubetest.Shipped(t, "../../kustomize/base", "ClusterRole/*"))
	kubectl, root := kubetest.Kubectl(t)
	shell := document.NewShell(t, root, map[string]string{"kubectl": kubectl}, "KUBECONFIG="+c.Kubeconfig())
	var said, typed []string
	enter := func(line string) { said, typed = append(said, shell.Type(t, line)), append(typed, line) }

	// The user has an Application of Argo CD. Kargo creates the Project's namespace, before the objects in it.
	enter("kubectl create namespace argocd")
	enter("kubectl apply -f - <<'E'\n" + anApplication + "E")
	for c := range lines.Of("examples/kargo/README.md") {
		if strings.Contains(c.Text, "examples/kargo/pipeline.yaml") {
			enter("kubectl create namespace ignition")
		}
		enter(c.Text)
	}
	// sequence: one reader
	for _, page := range pages {
		for c := range lines.Of(page) {
			if strings.Contains(c.Text, "create secret") || strings.Contains(c.Text, "create namespace") || strings.HasPrefix(c.Text, "TOKEN=") {
				assert.Contains(t, typed, c.Text, "the example must contain the same command")
				continue
			}
			enter(c.Text)
		}
	}
	for _, name := range []string{"clusterpromotiontask.kargo.akuity.io/stoker-request", "clusterpromotiontask.kargo.akuity.io/stoker-argocd",
		"clusteranalysistemplate.argoproj.io/stoker-status", "clusteranalysistemplate.argoproj.io/stoker-wait",
		"stage.kargo.akuity.io/prod", "gatewaysync.stoker.io/line-prod", "secret/stoker-webhook", "rolebinding.rbac.authorization.k8s.io/kargo-verification"} {
		assert.Contains(t, strings.Join(said, ""), name+" created")
	}
}

const anApplication = `apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {name: line, namespace: argocd}
spec: {}
`
