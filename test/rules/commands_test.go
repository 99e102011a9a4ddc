package rules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"strings"
	"testing"

	"stoker.io/stoker/test/document"
)

// untyped returns commands that no test runs. It also returns entries of the ledger without a command, and
// entries whose test does not exist or does not call document.Open.
func untyped(all []file, ledger []document.Entry) []string {
	var wrong []string
	used := make([]bool, len(ledger))
	for _, f := range all {
		if !strings.HasSuffix(f.path, ".md") || f.isSample() {
			continue
		}
	next:
		for _, c := range document.Parse(f.path, string(f.content)) {
			for i, e := range ledger {
				if e.Fits(c) {
					used[i] = true
					continue next
				}
			}
			wrong = append(wrong, fmt.Sprintf("%s:%d: no entry of test/document/ledger.go says which test types %q", f.path, c.Line, c.Text))
		}
	}
	readers := openers(all)
	for i, e := range ledger {
		where := fmt.Sprintf("test/document/ledger.go: %s %s %q", e.Document, e.Heading, e.Lines)
		if !used[i] {
			wrong = append(wrong, where+": no command matches, or an earlier entry matches them all")
		}
		if !readers[e.Test] {
			wrong = append(wrong, where+": "+e.Test+" is not there, or does not call document.Open itself")
		}
	}
	return wrong
}

// openers returns the tests that call document.Open, by package and function.
func openers(all []file) map[string]bool {
	found := map[string]bool{}
	for _, f := range all {
		if !strings.HasSuffix(f.path, "_test.go") || f.isSample() || !strings.Contains(string(f.content), "Open(t)") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f.path, f.content, parser.SkipObjectResolution)
		if err != nil {
			continue // the compiler reports it better
		}
		for _, d := range parsed.Decls {
			function, ok := d.(*ast.FuncDecl)
			if !ok || function.Recv != nil || !strings.HasPrefix(function.Name.Name, "Test") {
				continue
			}
			ast.Inspect(function, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				switch name := call.Fun.(type) {
				case *ast.SelectorExpr:
					in, ok := name.X.(*ast.Ident)
					ok = ok && in.Name == "document" && name.Sel.Name == "Open"
					found[path.Dir(f.path)+" "+function.Name.Name] = found[path.Dir(f.path)+" "+function.Name.Name] || ok
				case *ast.Ident:
					ok := parsed.Name.Name == "document" && name.Name == "Open"
					found[path.Dir(f.path)+" "+function.Name.Name] = found[path.Dir(f.path)+" "+function.Name.Name] || ok
				}
				return true
			})
		}
	}
	return found
}

func TestDocumentedCommandsAreTested(t *testing.T) {
	report(t, untyped(files(t), document.Ledger))
}
