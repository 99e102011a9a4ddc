package v1alpha1_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
)

// A constant that is missing from the list has no class, no section in the documentation and no label.
func TestReasonsListEveryConstant(t *testing.T) {
	declared := declaredReasons(t)
	require.NotEmpty(t, declared)
	var listed []string
	for _, r := range v1alpha1.Reasons {
		t.Run(string(r.Reason), func(t *testing.T) {
			assert.NotEmpty(t, r.Meaning)
			assert.Contains(t, []v1alpha1.Class{v1alpha1.ClassDone, v1alpha1.ClassWorking, v1alpha1.ClassRetry, v1alpha1.ClassHeld,
				v1alpha1.ClassStalled, v1alpha1.ClassNotInjected}, r.Class)
			assert.Equal(t, r.Class, r.Reason.Class())
		})
		listed = append(listed, string(r.Reason))
	}
	assert.Equal(t, declared, listed, "constants and list, in the same order")
}

func TestUnknownReasonIsTransient(t *testing.T) {
	assert.Equal(t, v1alpha1.ClassRetry, v1alpha1.Reason("OfTomorrow").Class())
}

// declaredReasons returns the values of the constants, in their order.
func declaredReasons(t *testing.T) (declared []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := spec.Type.(*ast.Ident); ok && typ.Name == "Reason" {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			require.NoError(t, err)
			assert.Equal(t, "Reason"+value, spec.Names[0].Name)
			declared = append(declared, value)
		}
		return true
	})
	return declared
}
