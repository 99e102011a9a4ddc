package crd

import (
	"os"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/version"
	admission "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"
)

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
	assert.Equal(t, 4, policies)
}
