package rules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	checking = regexp.MustCompile(`^(require\..*|assert\..*|t\.(Error|Fatal)f?)$`)
	running  = regexp.MustCompile(`^t\.Run$`)
	// exempted matches the comment above a loop that is not a table: its iterations depend on each other, or only prepare the test. It
	// gives the reason, and covers the loops inside.
	exempted = regexp.MustCompile(`^// (sequence|setup): \S`)
)

// longBody is the number of lines above which the body of a loop over any list counts as a test of its own.
const longBody = 5

// tablesWithoutSubtests returns the loops in tests that check the cases of a table, but run no sub-test.
func tablesWithoutSubtests(f file) (broken []string, err error) {
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, f.path, f.content, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	exempt := map[int]bool{} // by line
	for _, group := range tree.Comments {
		last := group.List[len(group.List)-1]
		exempt[set.Position(last.Pos()).Line+1] = exempted.MatchString(last.Text)
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl: // others, such as fuzz tests, have no sub-tests
			return strings.Contains(types.ExprString(n.Type), "*testing.T")
		case *ast.RangeStmt:
			line := set.Position(n.Pos()).Line
			if exempt[line] {
				return false
			}
			long := set.Position(n.Body.Rbrace).Line-set.Position(n.Body.Lbrace).Line-1 > longBody
			if isTable(n.X, long) && calls(n.Body, checking) && !calls(n.Body, running) {
				broken = append(broken, fmt.Sprintf("%s:%d: run each case of this table with t.Run", f.path, line))
			}
		}
		return true
	})
	return broken, nil
}

// isTable reports whether an expression lists structs, lists or functions, or is a map of three or more. If the body of the loop is
// long, any list counts. A variable counts as its first value.
func isTable(e ast.Expr, long bool) bool {
	if id, ok := e.(*ast.Ident); ok && id.Obj != nil {
		switch d := id.Obj.Decl.(type) {
		case *ast.AssignStmt:
			e = d.Rhs[0]
		case *ast.ValueSpec:
			e = slices.Concat(d.Values, []ast.Expr{id})[0]
		}
	}
	lit, ok := e.(*ast.CompositeLit)
	if !ok || long {
		return ok && len(lit.Elts) > 0
	}
	if _, ok := lit.Type.(*ast.MapType); ok {
		return len(lit.Elts) >= 3
	}
	return slices.ContainsFunc(lit.Elts, func(e ast.Expr) bool {
		switch e.(type) {
		case *ast.CompositeLit, *ast.FuncLit:
			return true
		}
		return false
	})
}

// calls reports whether a body calls a function with such a name.
func calls(body ast.Node, name *regexp.Regexp) (found bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		found = found || ok && name.MatchString(types.ExprString(call.Fun))
		return !found
	})
	return found
}

func TestTablesRunSubtests(t *testing.T) {
	for _, f := range files(t) {
		if f.isGo() && f.isTest() && !f.isSample() {
			broken, err := tablesWithoutSubtests(f)
			require.NoError(t, err)
			report(t, broken)
		}
	}
}

func TestTableRule(t *testing.T) {
	const table = "for _, c := range []struct{ a int }{{1}} "
	body := func(lines int) string { return "{\n" + strings.Repeat("c++\n", lines-1) + "assert.Zero(t, c)\n}" }
	for name, c := range map[string]struct {
		body string
		want int
	}{
		"table of structs":        {table + "{ assert.Equal(t, 1, c.a) }", 1},
		"map of three":            {"for a, b := range map[int]int{1: 1, 2: 2, 3: 3} { require.Equal(t, a, b) }", 1},
		"table of functions":      {"for _, f := range []func(){func() {}} { if f() { t.Fatalf(``) } }", 1},
		"table in a variable":     {"all := []file{{}}\nfor range all { t.Error() }", 1},
		"in a closure":            {"func() { " + table + "{ t.Error() } }()", 1},
		"table with sub-tests":    {table + "{ t.Run(``, func(t *testing.T) { assert.Equal(t, 1, c.a) }) }", 0},
		"map of two":              {"for a, b := range map[int]int{1: 1, 2: 2} { assert.Equal(t, a, b) }", 0},
		"list of strings":         {"for _, a := range []string{``, ``, ``} { assert.Empty(t, a) }", 0},
		"list, five lines":        {"for c := range []bool{true, false} " + body(5), 0},
		"list, six lines":         {"for c := range []bool{true, false} " + body(6), 1},
		"map of two, six lines":   {"for c := range map[int]int{1: 1, 2: 2} " + body(6), 1},
		"empty map, six lines":    {"all := map[int]int{}\nfor c := range all " + body(6), 0},
		"loops of a sequence":     {"// sequence: each step reads the last\nfor range 3 {\n" + table + "{ t.Fatal(c.a) }\n}", 0},
		"no assertion":            {table + "{ _ = c }", 0},
		"sequence with a reason":  {"// sequence: each step reads the last\n" + table + "{ t.Fatal(c.a) }", 0},
		"sequence without reason": {"// sequence:\n" + table + "{ t.Fatal(c.a) }", 1},
	} {
		t.Run(name, func(t *testing.T) {
			broken, err := tablesWithoutSubtests(file{"a_test.go", []byte("package a\nfunc TestA(t *testing.T) {\n" + c.body + "\n}\n")})
			require.NoError(t, err)
			assert.Len(t, broken, c.want)
		})
	}
}
