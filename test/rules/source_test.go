package rules

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// banned lists functions and variables of other packages that product code must not use.
var banned = []struct {
	path  string // of the package
	names []string
	rooms []string // nil is everywhere
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
	// R8
	{"net/http", []string{"Client", "NewRequest", "NewRequestWithContext", "Transport", "DefaultTransport"}, receiverRooms, "the receiver calls only the API server"},
	{"net", []string{"Dial", "DialTimeout", "Dialer", "LookupHost", "LookupIP", "Resolver", "DefaultResolver"}, receiverRooms, "the receiver calls only the API server"},
	{"flag", []string{"Parse", "String", "Bool", "Int", "Duration", "CommandLine", "StringVar", "BoolVar"}, nil, "flags belong to a settings value, not to the process"},
}

// receiverRooms are the rooms that serve requests. The check command, beside them, is a client of a
// receiver.
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
