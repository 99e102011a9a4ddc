package v1alpha1_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
)

// A constant that is missing from the list would have no class, no row in the documentation and no label.
func TestReasonsHoldEveryConstantOnceWithItsMeaning(t *testing.T) {
	declared := declaredReasons(t)
	require.NotEmpty(t, declared)
	seen := map[v1alpha1.Reason]bool{}
	for _, r := range v1alpha1.Reasons {
		assert.False(t, seen[r.Reason], "%s is there twice", r.Reason)
		seen[r.Reason] = true
		assert.NotEmpty(t, r.Meaning, r.Reason)
		assert.Contains(t, []v1alpha1.Class{v1alpha1.ClassDone, v1alpha1.ClassWorking, v1alpha1.ClassRetry, v1alpha1.ClassHeld,
			v1alpha1.ClassStalled, v1alpha1.ClassNotInjected}, r.Class, r.Reason)
		assert.Equal(t, r.Class, r.Reason.Class())
		d, ok := declared[string(r.Reason)]
		if assert.True(t, ok, "%s is no constant", r.Reason) {
			assert.Equal(t, "Reason"+string(r.Reason), d.name)
			assert.Equal(t, d.name+" means: "+r.Meaning+".", d.doc)
			assert.Contains(t, d.group, d.class(r.Class), "%s stands among the constants of its class", r.Reason)
		}
	}
	for value := range declared {
		assert.True(t, seen[v1alpha1.Reason(value)], "%s is not in Reasons", value)
	}
}

func TestUnknownReasonIsTransient(t *testing.T) {
	assert.Equal(t, v1alpha1.ClassRetry, v1alpha1.Reason("OfTomorrow").Class())
}

type declaredReason struct{ name, doc, group string }

// class returns the name of a class's constant, as the comments of the groups contain it.
func (declaredReason) class(c v1alpha1.Class) string {
	name := "Class"
	for word := range strings.SplitSeq(string(c), "-") {
		name += strings.ToUpper(word[:1]) + word[1:]
	}
	return name + "."
}

func declaredReasons(t *testing.T) map[string]declaredReason {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, parser.ParseComments)
	require.NoError(t, err)
	declared := map[string]declaredReason{}
	for _, d := range file.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok || decl.Tok != token.CONST {
			continue
		}
		for _, s := range decl.Specs {
			spec := s.(*ast.ValueSpec)
			if typ, ok := spec.Type.(*ast.Ident); !ok || typ.Name != "Reason" {
				continue
			}
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			require.NoError(t, err)
			declared[value] = declaredReason{spec.Names[0].Name, strings.TrimSpace(spec.Doc.Text()), strings.TrimSpace(decl.Doc.Text())}
		}
	}
	return declared
}
