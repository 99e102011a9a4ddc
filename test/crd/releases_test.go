package crd

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/version"
	admission "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1/decode"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/test/verdicts"
)

var update = flag.Bool("update", false, "write the objects of the version of the chart, until it is released")

const releases = "testdata/releases"

// Objects that an earlier release accepted stay valid, because clusters have them. Each file has the valid objects of the
// release that names it, one for each line. The file of a version is frozen with its tag.
func TestObjectsOfReleases(t *testing.T) {
	chart, err := os.ReadFile("../../charts/stoker/Chart.yaml")
	require.NoError(t, err)
	version := regexp.MustCompile(`(?m)^appVersion: (.+)$`).FindStringSubmatch(string(chart))[1]
	if *update {
		require.NoError(t, os.MkdirAll(releases, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(releases, version+".jsonl"), validObjects(t), 0o644))
	}
	servers := map[string]*server{"GatewaySync": newServer(t), "ConfigSync": newServerOf(t, "configsyncs")}
	files, err := filepath.Glob(releases + "/*.jsonl")
	require.NoError(t, err)
	require.Contains(t, files, filepath.Join(releases, version+".jsonl"), "run go test -run ObjectsOfReleases -update")
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".jsonl"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			require.NoError(t, err)
			for line := range bytes.Lines(raw) { // sequence: objects of one release
				var object map[string]any
				require.NoError(t, json.Unmarshal(line, &object))
				kind := object["kind"].(string)
				assert.Empty(t, servers[kind].admit(asJSON(t, object)), "%s", line)
				assert.Empty(t, invalid(t, kind, line), "%s", line)
			}
		})
	}
}

// invalid returns what the agents and programs refuse of an object. A field that they do not know is an error.
func invalid(t *testing.T, kind string, object []byte) []string {
	t.Helper()
	var found []string
	if kind == "ConfigSync" {
		cs, err := decode.ConfigSync(object)
		require.NoError(t, err)
		for _, e := range validation.ConfigSync(cs) {
			found = append(found, e.Error())
		}
		return found
	}
	gs, err := decode.GatewaySync(object)
	require.NoError(t, err)
	for _, e := range validation.GatewaySync(gs) {
		found = append(found, e.Error())
	}
	return found
}

// validObjects returns the objects that this version accepts, without those that only test a size.
func validObjects(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	table := verdicts.Table()
	for _, c := range append(table, verdicts.ConfigSyncs()...) {
		if c.Refused != "" || c.Undecodable || c.GoOnly != "" || c.CRDOnly != "" {
			continue
		}
		line, err := json.Marshal(c.Object())
		require.NoError(t, err)
		if _, err := decode.GatewaySync(line); err != nil && c.Kind == "" || len(line) > 4000 {
			continue // it has a field of another product, or only tests a size
		}
		b.Write(append(line, '\n'))
	}
	return b.Bytes()
}

// named is an expression of a policy with its possible result types.
type named struct {
	Name       string `json:"name"`
	Expression string `json:"expression"`
	types      []*cel.Type
}

func (n named) GetName() string          { return n.Name }
func (n named) GetExpression() string    { return n.Expression }
func (n named) ReturnTypes() []*cel.Type { return n.types }

// To allow a rollback, an API server accepts in a new expression only what the previous version also
// knows. The oldest version that the chart accepts is 1.30.
func TestPoliciesCompileInOldestKubernetes(t *testing.T) {
	chart, err := os.ReadFile("../../charts/stoker/Chart.yaml")
	require.NoError(t, err)
	require.Contains(t, string(chart), `kubeVersion: ">=1.30.0-0"`, "the oldest version has changed: compile with the version before it")
	text, err := os.ReadFile("../../kustomize/base/objects.yaml")
	require.NoError(t, err)
	policies := 0
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var policy struct {
			Kind     string
			Metadata struct{ Name string }
			Spec     struct {
				MatchConditions, Variables []named
				Validations                []struct{ Expression, MessageExpression string }
			}
		}
		require.NoError(t, yaml.Unmarshal([]byte(document), &policy))
		if policy.Kind != "ValidatingAdmissionPolicy" {
			continue
		}
		policies++
		t.Run(policy.Metadata.Name, func(t *testing.T) {
			compiler, err := admission.NewCompositedCompiler(environment.MustBaseEnvSet(version.MajorMinor(1, 29)))
			require.NoError(t, err)
			has := admission.OptionalVariableDeclarations{HasAuthorizer: true}
			compiles := func(expression string, of *cel.Type) {
				got := compiler.CompileCELExpression(named{Expression: expression, types: []*cel.Type{of}}, has, environment.NewExpressions)
				assert.Nil(t, got.Error, expression)
			}
			for _, c := range policy.Spec.MatchConditions {
				compiles(c.Expression, cel.BoolType)
			}
			for _, v := range policy.Spec.Variables {
				v.types = []*cel.Type{cel.AnyType, cel.DynType}
				assert.Nil(t, compiler.CompileAndStoreVariable(v, has, environment.NewExpressions).Error, v.Expression)
			}
			require.NotEmpty(t, policy.Spec.Validations)
			for _, v := range policy.Spec.Validations {
				compiles(v.Expression, cel.BoolType)
				if v.MessageExpression != "" {
					compiles(v.MessageExpression, cel.StringType)
				}
			}
		})
	}
	assert.Equal(t, 5, policies)
}
