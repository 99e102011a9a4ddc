package rules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// riddles matches words that name no actor or that a reader of technical English does not expect, and riddle does so in names of tests.
// CONTRIBUTING.md has the rules.
var riddles = regexp.MustCompile(`(?i)\b(nobody|somebody|anybody|everybody|whoever|anew|mend(s|ed|ing)?)\b`)

var riddle = regexp.MustCompile(`(No|Some|Any|Every)` + `body|Who` + `ever|An` + `ew([A-Z]|$)|Mend`)

// negations are predicates such as "main is no tag", which English puts as "is not a tag". "There is no tag" and "no longer" are fine.
var negations = regexp.MustCompile(`(?i)\b(?:(there) )?(?:is|are|was|were) no (?:(longer|more|such|different|better)\b|\w+)`)

// conditions are sentences such as "Where the disk is full, the sync fails". `where` is a place.
var conditions = regexp.MustCompile(`(?m)(^\W*|[.!?:;#>] *)Where [a-z]`)

// names matches what is not checked: text in quotes or backticks, addresses, and the name of a user of Unix.
var names = regexp.MustCompile("`[^`]*`|\"[^\"]*\"|https?://\\S+|nobody:x?|\\bno" + "body's\\b|http\\.No" + "Body")

// text is a piece of prose: a comment, a paragraph of a document, a message.
type text struct {
	path    string
	line    int
	content string
}

// comments returns the comments of a Go file.
func comments(t *testing.T, f file) (all []text) {
	t.Helper()
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, f.path, f.content, parser.ParseComments|parser.SkipObjectResolution)
	require.NoError(t, err)
	for _, group := range parsed.Comments {
		all = append(all, text{f.path, set.Position(group.Pos()).Line, group.Text()})
	}
	return all
}

// messages returns the string literals of a Go file that contain a space.
func messages(t *testing.T, f file) (all []text) {
	t.Helper()
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, f.path, f.content, parser.SkipObjectResolution)
	require.NoError(t, err)
	ast.Inspect(parsed, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil && strings.Contains(s, " ") {
				all = append(all, text{f.path, set.Position(lit.Pos()).Line, s})
			}
		}
		return true
	})
	return all
}

// documents returns the lines of prose of a Markdown file, or all lines of another text file, such as YAML. There, quotes enclose prose, too.
func documents(f file) (all []text) {
	if !strings.HasSuffix(f.path, ".md") {
		for i, line := range strings.Split(string(f.content), "\n") {
			all = append(all, text{f.path, i + 1, strings.ReplaceAll(line, `"`, " ")})
		}
		return all
	}
	for number, line := range prose(f.content) {
		if !strings.HasPrefix(line, "    ") {
			all = append(all, text{f.path, number, line})
		}
	}
	return all
}

func broken(all []text) (found []string) {
	for _, x := range all {
		prose := names.ReplaceAllString(x.content, "")
		if m := riddles.FindString(prose); m != "" {
			found = append(found, fmt.Sprintf("%s:%d: %q: name the actor, or use the field's word (CONTRIBUTING.md)", x.path, x.line, m))
		}
		if m := conditions.FindString(prose); m != "" {
			found = append(found, fmt.Sprintf("%s:%d: %q: a condition is `if` or `when`", x.path, x.line, m))
		}
		for _, m := range negations.FindAllStringSubmatch(strings.Join(strings.Fields(prose), " "), -1) {
			if m[1] == "" && m[2] == "" {
				found = append(found, fmt.Sprintf("%s:%d: %q: write `is not a`", x.path, x.line, m[0]))
			}
		}
	}
	return found
}

// wordsOf counts the words of an identifier. An acronym and the word after it count as one.
func wordsOf(identifier string) (n int) {
	upper := false
	for i, r := range identifier {
		now := unicode.IsUpper(r) || unicode.IsDigit(r)
		if now && !upper || i == 0 {
			n++
		}
		upper = now
	}
	return n
}

const maxTestName = 8

var testName = regexp.MustCompile(`(?m)^func (Test|Fuzz|Benchmark)(\w+)\(`)

func TestLanguage(t *testing.T) {
	var product, others, docs, sentences []text
	ifs, wheres := regexp.MustCompile(`(?i)\b(if|when)\b`), regexp.MustCompile(`(?i)\bwhere\b`)
	longNames := 0
	var violations []string
	for _, f := range files(t) {
		switch {
		case f.isSample() || generated.Match(f.content):
		case f.isGo() && !f.isTest():
			product = append(product, comments(t, f)...)
			sentences = append(sentences, messages(t, f)...)
		case f.isGo():
			others = append(others, comments(t, f)...)
			for _, m := range testName.FindAllStringSubmatch(string(f.content), -1) {
				if wordsOf(m[2]) > maxTestName {
					longNames++
					violations = append(violations, fmt.Sprintf("%s: %s%s has more than %d words: name the feature, and state the case in a sub-test", f.path, m[1], m[2], maxTestName))
				}
				if riddle.MatchString(m[2]) {
					violations = append(violations, fmt.Sprintf("%s: %s%s: name the feature", f.path, m[1], m[2]))
				}
			}
		case f.isText():
			docs = append(docs, documents(f)...)
		}
	}
	for _, all := range [][]text{product, others, docs, sentences} {
		violations = append(violations, broken(all)...)
	}
	nIfs, nWheres := 0, 0
	for _, c := range product {
		nIfs += len(ifs.FindAllString(c.content, -1))
		nWheres += len(wheres.FindAllString(c.content, -1))
	}
	t.Logf("language: if and when : where in product comments %d : %d; test names over %d words %d", nIfs, nWheres, maxTestName, longNames)
	assert.GreaterOrEqual(t, nIfs, 5*nWheres, "a condition is `if` or `when`; `where` is a place")
	report(t, violations)
}

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
