package rules

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/scanner"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// banned lists functions and variables of other packages that product code must not use.
var banned = []struct {
	path  string // of the package
	names []string
	rooms []string // packages by their paths in the module, with those below them; nil is the whole product
	why   string
}{
	{"os", []string{"CopyFS"}, nil, "it copies symbolic links as they are (trust F3)"},
	{"time", []string{"Now", "Since", "Until", "After", "Sleep", "NewTimer", "Tick"}, []string{"agent/plan", "agent/ignition/resource"}, "a plan must not depend on the clock"},
	{"time", []string{"Sleep", "Tick"}, nil, "a wait must end with its context: use a timer and select"},
	{"net/http", []string{"DefaultClient", "DefaultTransport", "Get", "Post", "PostForm", "Head", "DefaultServeMux", "Handle", "HandleFunc", "ListenAndServe"}, nil, "it has no timeout, or the whole process shares it"},
	{"log/slog", []string{"Debug", "Info", "Warn", "Error", "Log", "DebugContext", "InfoContext", "WarnContext", "ErrorContext", "LogAttrs", "With", "SetDefault", "Default"}, nil, "pass a logger to the constructor"},
	{"github.com/prometheus/client_golang/prometheus", []string{"DefaultRegisterer", "DefaultGatherer", "MustRegister", "Register"}, nil, "pass a prometheus.Registerer to the constructor"},
	{"github.com/prometheus/client_golang/prometheus/promhttp", []string{"Handler"}, nil, "it serves the registry of the whole process"},
	{"github.com/go-git/go-git/v5", []string{"Clone", "CloneContext", "PlainClone", "PlainCloneContext", "PlainOpen", "PlainOpenWithOptions", "PlainInit", "Worktree"}, nil, "use only go-git's plumbing: its work tree is slow and had vulnerabilities"},
	// threat R8
	{"net/http", []string{"Client", "NewRequest", "NewRequestWithContext", "Transport", "DefaultTransport"}, receiverRooms, "the receiver calls only the API server"},
	{"net", []string{"Dial", "DialTimeout", "Dialer", "LookupHost", "LookupIP", "Resolver", "DefaultResolver"}, receiverRooms, "the receiver calls only the API server"},
	{"flag", []string{"Parse", "String", "Bool", "Int", "Duration", "CommandLine", "StringVar", "BoolVar"}, nil, "flags belong to a settings value, not to the process"},
}

// receiverRooms are the packages with which the receiver serves requests.
var receiverRooms = []string{"receiver/credential", "internal/limit", "receiver/queue", "receiver/lookup", "receiver/secrets", "receiver/server"}

// connects matches the functions of client-go and cli-runtime that make a client of a rest.Config.
var connects = regexp.MustCompile(`^(New\w*ForConfig\w*|(HTTPClient|Transport|\w*RESTClient|HTTPWrappers|RoundTripper)For(Config)?|ToDiscoveryClient|ToRESTMapper)$`)

// global lists packages whose constructors (New…) must not initialize a package-level variable.
var global = []string{"log/slog", "github.com/prometheus/client_golang/prometheus", "flag", "net/http"}

// deciding lists functions that could search the text of an error.
var deciding = []string{"Contains", "HasPrefix", "HasSuffix", "EqualFold", "Index", "Cut", "CutPrefix", "CutSuffix", "Count", "MatchString"}

// brokenSource returns the violations in a Go file of the product.
func brokenSource(f file) ([]string, error) {
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, f.path, f.content, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	imports := importNames(tree)
	var broken []string
	bad := func(node ast.Node, message string, args ...any) {
		broken = append(broken, fmt.Sprintf("%s:%d: %s", f.path, fset.Position(node.Pos()).Line, fmt.Sprintf(message, args...)))
	}
	for _, decl := range tree.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil && d.Name.Name == "init" {
				bad(d, "func init: pass what a package needs to its constructor")
			}
		case *ast.GenDecl:
			for path, constructs := range packageLevelNews(d, imports) {
				if constructs && slices.Contains(global, path) {
					bad(d, "a package-level value of %s: pass loggers, metrics, flags and clients to the constructor", path)
				}
			}
		}
	}
	ast.Inspect(tree, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.SelectorExpr:
			from, name := selected(n, imports)
			for _, b := range banned {
				if b.path == from && slices.Contains(b.names, name) && (b.rooms == nil || within(f.path, b.rooms)) {
					bad(n, "%s.%s: %s", from, name, b.why)
				}
			}
			if connects.MatchString(n.Sel.Name) && !within(f.path, []string{"internal/kube"}) && !strings.HasSuffix(path.Dir(f.path), "test") {
				bad(n, "%s: use internal/kube, whose clients of an API server follow no redirect (threat U5)", n.Sel.Name)
			}
		case *ast.CompositeLit:
			t, ok := n.Type.(*ast.SelectorExpr)
			if !ok || within(f.path, []string{"internal/httpclient"}) {
				break
			}
			if from, name := selected(t, imports); from == "net/http" && (name == "Client" || name == "Transport") {
				bad(n, "http.%s: use a policy of internal/httpclient, and add the client to test/hostile", name)
			}
		case *ast.TypeSpec:
			if strings.HasPrefix(n.Name.Name, "limited") && !within(f.path, []string{"internal/bound"}) {
				bad(n, "type %s: use internal/bound", n.Name.Name)
			}
		case *ast.Ident:
			if n.Name == "Loopback" && !within(f.path, []string{"internal/httpclient"}) {
				bad(n, "Loopback lets an address that a user names reach the pod itself: only tests may (internal/httpclient)")
			}
		case *ast.CallExpr:
			if matchesErrorText(n, imports) {
				bad(n, "test an error with errors.Is, errors.As or its reason, not by its text")
			}
		}
		return true
	})
	return broken, nil
}

// importNames maps the local names of a file's imports to their paths.
func importNames(tree *ast.File) map[string]string {
	names := map[string]string{}
	for _, spec := range tree.Imports {
		path := strings.Trim(spec.Path.Value, `"`)
		parts := strings.Split(path, "/")
		name := parts[len(parts)-1]
		if len(parts) > 1 && len(name) > 1 && name[0] == 'v' && strings.Trim(name[1:], "0123456789") == "" {
			name = parts[len(parts)-2] // a major version is not the name
		}
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[strings.TrimPrefix(name, "go-")] = path
	}
	return names
}

// selected returns the package and name of a selector such as os.CopyFS. The path is empty if the selector
// is something else.
func selected(n *ast.SelectorExpr, imports map[string]string) (path, name string) {
	if x, ok := n.X.(*ast.Ident); ok {
		return imports[x.Name], n.Sel.Name
	}
	return "", ""
}

// packageLevelNews returns the packages whose constructors a var declaration calls.
func packageLevelNews(d *ast.GenDecl, imports map[string]string) map[string]bool {
	paths := map[string]bool{}
	if d.Tok != token.VAR {
		return paths
	}
	ast.Inspect(d, func(node ast.Node) bool {
		if _, ok := node.(*ast.FuncLit); ok {
			return false
		}
		if call, ok := node.(*ast.CallExpr); ok {
			if fun, ok := call.Fun.(*ast.SelectorExpr); ok {
				path, name := selected(fun, imports)
				paths[path] = paths[path] || strings.HasPrefix(name, "New")
			}
		}
		return true
	})
	return paths
}

// matchesErrorText reports whether a call searches an error's text, such as strings.Contains(err.Error(),
// …).
func matchesErrorText(call *ast.CallExpr, imports map[string]string) bool {
	fun, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	if path, name := selected(fun, imports); path != "strings" && path != "regexp" || !slices.Contains(deciding, name) {
		return false
	}
	return slices.ContainsFunc(call.Args, func(arg ast.Expr) bool {
		inner, ok := arg.(*ast.CallExpr)
		if !ok || len(inner.Args) != 0 {
			return false
		}
		method, ok := inner.Fun.(*ast.SelectorExpr)
		return ok && method.Sel.Name == "Error"
	})
}

func TestProductCode(t *testing.T) {
	for _, f := range files(t) {
		if !f.isGo() || f.isTest() || f.isSample() {
			continue
		}
		broken, err := brokenSource(f)
		require.NoError(t, err)
		report(t, broken)
	}
}

func TestPackageComments(t *testing.T) {
	documented := map[string]bool{}
	for _, f := range files(t) {
		if !f.isGo() || f.isSample() {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), f.path, f.content, parser.PackageClauseOnly|parser.ParseComments)
		require.NoError(t, err)
		dir := path.Dir(f.path)
		documented[dir] = documented[dir] || tree.Doc != nil && !ast.IsGenerated(tree)
	}
	for dir, ok := range documented {
		assert.True(t, ok, "%s has no package comment", dir)
	}
}

func TestGoFilesAreFormatted(t *testing.T) {
	for _, f := range files(t) {
		if f.isGo() && !f.isSample() {
			formatted, err := format.Source(f.content)
			require.NoError(t, err, f.path)
			assert.True(t, bytes.Equal(formatted, f.content), "%s is not gofmt'd", f.path)
		}
	}
}

var (
	word = regexp.MustCompile(`[A-Za-z][A-Za-z0-9]*`)
	// mixedCase matches words that only a name can be. A name with its package before a dot belongs to another module.
	mixedCase = regexp.MustCompile(`(?:^|[^.\w\\])([a-z]+[a-z0-9]*[A-Z]\w*|[A-Z][a-z0-9]+[A-Z]\w*)\b`)
)

// foreign has names that occur only in comments: those of other projects, and an example test.
var foreign = []string{"AppProjects", "EndpointSlice", "GitOps", "NodePorts", "PromQL", "TestPageCommands"}

// staleNames returns the comments in Go files that mention a name that is declared, used or written nowhere.
func staleNames(all []file) []string {
	known := map[string]bool{}
	for _, name := range foreign {
		known[name] = true
	}
	type comment struct {
		path string
		line int
		text string
	}
	var comments []comment
	for _, f := range all {
		if !f.isGo() {
			for _, w := range word.FindAllString(string(f.content), -1) {
				known[w] = true
			}
			continue
		}
		var s scanner.Scanner
		set := token.NewFileSet()
		s.Init(set.AddFile(f.path, -1, len(f.content)), f.content, nil, scanner.ScanComments)
		for pos, kind, text := s.Scan(); kind != token.EOF; pos, kind, text = s.Scan() {
			switch {
			case kind != token.COMMENT:
				for _, w := range word.FindAllString(text, -1) {
					known[w] = true
				}
			case !strings.HasPrefix(text, "// +") && !strings.HasPrefix(text, "//go:"): // these are for other programs
				comments = append(comments, comment{f.path, set.Position(pos).Line, text})
			}
		}
	}
	var stale []string
	for _, c := range comments {
		for _, m := range mixedCase.FindAllStringSubmatch(c.text, -1) {
			if !known[m[1]] {
				stale = append(stale, fmt.Sprintf("%s:%d: the comment mentions %s, which does not exist: was it renamed?", c.path, c.line, m[1]))
			}
		}
	}
	return stale
}

func TestCommentsMentionExistingNames(t *testing.T) {
	report(t, staleNames(files(t)))
}

// staleDocs returns the doc comments that begin with the name of something else. Those of tests may begin with any word.
func staleDocs(f file) ([]string, error) {
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, f.path, f.content, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var stale []string
	check := func(doc *ast.CommentGroup, name string) {
		first, _, _ := strings.Cut(doc.Text(), " ")
		if first != name && first != "" && unicode.IsLower(rune(first[0])) && !strings.HasPrefix(name, "Test") {
			stale = append(stale, fmt.Sprintf("%s:%d: the comment of %s begins with %q", f.path, set.Position(doc.Pos()).Line, name, first))
		}
	}
	for _, decl := range tree.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			check(d.Doc, d.Name.Name)
		case *ast.GenDecl:
			if len(d.Specs) != 1 {
				continue
			}
			switch s := d.Specs[0].(type) {
			case *ast.TypeSpec:
				check(d.Doc, s.Name.Name)
			case *ast.ValueSpec:
				check(d.Doc, s.Names[0].Name)
			}
		}
	}
	return stale, nil
}

func TestDocCommentsStartWithName(t *testing.T) {
	for _, f := range files(t) {
		if f.isGo() && !f.isSample() {
			stale, err := staleDocs(f)
			require.NoError(t, err)
			report(t, stale)
		}
	}
}

var (
	shortened = regexp.MustCompile(`if !?testing\.Short\(\)`)
	ownName   = regexp.MustCompile(`^func (\w+)`)
	foundName = regexp.MustCompile(`^(Test|short)[A-Z]`)
)

// make test-cluster finds the tests that -short shortens by a call of testing.Short, or of a function with such a name (LONG in the Makefile).
func TestShortFormIsFound(t *testing.T) {
	for _, f := range files(t) {
		if !strings.HasSuffix(f.path, "_test.go") || f.isSample() {
			continue
		}
		name := ""
		for line := range strings.Lines(string(f.content)) {
			if m := ownName.FindStringSubmatch(line); m != nil {
				name = m[1]
			}
			if shortened.MatchString(line) {
				assert.Regexp(t, foundName, name, "%s: name the function that asks for -short like shortStride", f.path)
			}
		}
	}
}

var oldestTests = regexp.MustCompile(`(?m)^OLDEST(?:_CHART)? := ((?:.*\$\\\n)*.*)$`)

// make test-oldest names its tests, and go test says nothing about a name that no test has.
func TestOldestNamesTests(t *testing.T) {
	declared, names := map[string]bool{}, 0
	var makefile string
	for _, f := range files(t) {
		if f.path == "Makefile" {
			makefile = string(f.content)
		}
		if !oldestPackages.MatchString(f.path) {
			continue
		}
		for _, m := range topLevelTests.FindAllStringSubmatch(string(f.content), -1) {
			declared[m[1]] = true
		}
	}
	for _, m := range oldestTests.FindAllStringSubmatch(makefile, -1) {
		for _, name := range word.FindAllString(m[1], -1) {
			names++
			assert.True(t, declared[name], "no test has the name Test%s", name)
		}
	}
	assert.Greater(t, names, 40)
}

var oldestPackages = regexp.MustCompile(`^(injector|internal/configsync|receiver|test/document|test/charts)/[^/]*$`)

var topLevelTests = regexp.MustCompile(`(?m)^func Test(\w+)\(t \*testing\.T\)`)

const threatPage = "docs/internals/threats.md"

var (
	threatRow = regexp.MustCompile(`(?m)^\| ([A-Z][0-9]+) \|`)
	threatID  = regexp.MustCompile(`\b[FCRIPUG][0-9]{1,2}\b`)
)

// brokenThreats returns the threats of the page that no test names, and the threats in test comments that
// the page does not have.
func brokenThreats(all []file) []string {
	listed, tested := map[string]bool{}, map[string]string{}
	for _, f := range all {
		if f.path == threatPage {
			for _, row := range threatRow.FindAllSubmatch(f.content, -1) {
				listed[string(row[1])] = true
			}
		}
		if !strings.HasSuffix(f.path, "_test.go") {
			continue
		}
		for line := range strings.Lines(string(f.content)) {
			_, comment, found := strings.Cut(line, "// ")
			if found {
				for _, id := range threatID.FindAllString(comment, -1) {
					tested[id] = f.path
				}
			}
		}
	}
	var broken []string
	for id := range listed {
		if tested[id] == "" {
			broken = append(broken, fmt.Sprintf("%s: no comment of a test names %s", threatPage, id))
		}
	}
	for id, where := range tested {
		if !listed[id] {
			broken = append(broken, fmt.Sprintf("%s names %s, which %s does not have", where, id, threatPage))
		}
	}
	return broken
}

func TestThreatsHaveTests(t *testing.T) { report(t, brokenThreats(files(t))) }

func TestThreatRules(t *testing.T) {
	page := file{threatPage, []byte("| | x |\n|---|---|\n| F1 | x |\n| C10 | x |\n")}
	check := func(text string) []string { return brokenThreats([]file{page, {"a/a_test.go", []byte(text)}}) }
	assert.Empty(t, check("// F1: links.\nfunc TestX() {} // C10, too\n"))
	assert.Len(t, check("// F1: links.\n"), 1, "C10 has no test")
	assert.Len(t, check("// F1, C10, R1\n"), 1, "R1 has no row")
	assert.Len(t, check("x := F1 + C10\n"), 2, "an identifier must not count as a comment")
}
