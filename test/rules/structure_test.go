package rules

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// limit bounds the size of a kind of thing in the product.
type limit struct {
	max       int
	unit, why string
}

var (
	methodLimit  = limit{30, "methods of a type", "a type has one job: split it by responsibility"}
	sharedLimit  = limit{30, "methods of types that embed pointers to each other", "embedding shares all state: pass values, or name the field"}
	packageLimit = limit{4000, "lines of Go in a package", "a package has a subject that fits in one sentence: split it"}
	branchLimit  = limit{30, "branches of a function (cyclomatic complexity)", "a reader cannot hold more: give a part its own name"}
	healthLimit  = limit{60, "lines of a health.lua", "it only shows the status: compute it in the lead"}
	actionLimit  = limit{40, "lines of an action", "it only writes annotations: compute what to write in the lead"}
)

// measure returns the sizes of everything in the product that has a limit, by name.
func measure(all []file) (map[limit]map[string]int, error) {
	sizes := map[limit]map[string]int{methodLimit: {}, sharedLimit: {}, packageLimit: {}, branchLimit: {}, healthLimit: {}, actionLimit: {}}
	embeds := map[string]string{} // a type by one that it embeds or is embedded in
	for _, f := range all {
		lines := bytes.Count(f.content, []byte("\n"))
		switch {
		case f.isTest() || f.isSample() || generated.Match(f.content):
		case path.Base(f.path) == "health.lua":
			sizes[healthLimit][f.path] = lines
		case strings.HasSuffix(f.path, ".lua"):
			sizes[actionLimit][f.path] = lines
		case f.isGo():
			dir := path.Dir(f.path)
			sizes[packageLimit][dir] += lines
			tree, err := parser.ParseFile(token.NewFileSet(), f.path, f.content, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			for _, d := range tree.Decls {
				if types, ok := d.(*ast.GenDecl); ok {
					for _, s := range types.Specs {
						addEmbedded(embeds, dir, s)
					}
				}
				fn, ok := d.(*ast.FuncDecl)
				if !ok {
					continue
				}
				if fn.Recv != nil {
					sizes[methodLimit][dir+"."+receiver(fn.Recv.List[0].Type)]++
				}
				sizes[branchLimit][dir+"."+fn.Name.Name] = max(sizes[branchLimit][dir+"."+fn.Name.Name], branches(fn))
			}
		}
	}
	for name, methods := range sizes[methodLimit] {
		sizes[sharedLimit][groupOf(embeds, name)] += methods
	}
	return sizes, nil
}

// addEmbedded joins a struct with the types of its package to which it embeds pointers.
func addEmbedded(embeds map[string]string, dir string, s ast.Spec) {
	t, ok := s.(*ast.TypeSpec)
	if !ok {
		return
	}
	fields, ok := t.Type.(*ast.StructType)
	if !ok {
		return
	}
	for _, f := range fields.Fields.List {
		if _, pointer := f.Type.(*ast.StarExpr); pointer && len(f.Names) == 0 {
			if a, b := groupOf(embeds, dir+"."+t.Name.Name), groupOf(embeds, dir+"."+receiver(f.Type)); a != b {
				embeds[a] = b
			}
		}
	}
}

// groupOf returns the name of the group that a type belongs to.
func groupOf(embeds map[string]string, name string) string {
	for embeds[name] != "" {
		name = embeds[name]
	}
	return name
}

// branches returns the cyclomatic complexity of a function: one more than its conditions, loops and cases.
func branches(fn *ast.FuncDecl) int {
	n := 1
	ast.Inspect(fn, func(x ast.Node) bool {
		switch x := x.(type) {
		case *ast.IfStmt, *ast.ForStmt, *ast.RangeStmt:
			n++
		case *ast.CaseClause:
			if x.List != nil {
				n++
			}
		case *ast.CommClause:
			if x.Comm != nil {
				n++
			}
		case *ast.BinaryExpr:
			if x.Op == token.LAND || x.Op == token.LOR {
				n++
			}
		}
		return true
	})
	return n
}

// receiver returns the name of the type of a method, without a star and type parameters.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// brokenLimit returns the largest of the things that a limit bounds, and those that exceed it.
func brokenLimit(l limit, sizes map[string]int) (largest string, broken []string) {
	for name, size := range sizes {
		if size > l.max {
			broken = append(broken, fmt.Sprintf("%s has %d; the limit is %d %s: %s", name, size, l.max, l.unit, l.why))
		}
		if old := sizes[largest]; size > old || size == old && name < largest {
			largest = name
		}
	}
	return largest, broken
}

func TestStructure(t *testing.T) {
	sizes, err := measure(files(t))
	require.NoError(t, err)
	for _, l := range []limit{methodLimit, sharedLimit, packageLimit, branchLimit, healthLimit, actionLimit} {
		t.Run(l.unit, func(t *testing.T) {
			require.NotEmpty(t, sizes[l])
			largest, broken := brokenLimit(l, sizes[l])
			t.Logf("structure: %s: %d of %d in %s", l.unit, sizes[l][largest], l.max, largest)
			report(t, broken)
		})
	}
}

// Every field, page and line costs each later change, so their numbers have limits. make lint prints them.
const (
	maxFields = 430    // of the kinds
	maxWords  = 80_000 // in docs
)

func TestBudget(t *testing.T) {
	var fields, words, product, tests int
	all := files(t)
	for _, f := range all { // sequence: a sum
		lines := bytes.Count(f.content, []byte("\n"))
		switch {
		case strings.HasPrefix(f.path, "docs/") && strings.HasSuffix(f.path, ".md"):
			words += len(bytes.Fields(f.content))
		case !f.isGo():
		case f.isTest() || strings.HasPrefix(f.path, "test/"):
			tests += lines
		case strings.HasPrefix(f.path, "api/v1alpha1/") && path.Dir(f.path) == "api/v1alpha1" && !generated.Match(f.content):
			fields += bytes.Count(f.content, []byte(`json:"`))
			product += lines
		default:
			product += lines
		}
	}
	t.Logf("budget: %d fields of the kinds, at most %d; %d words in docs, at most %d; %d lines of Go in the product, %d in tests; %d files",
		fields, maxFields, words, maxWords, product, tests, len(all))
	assert.LessOrEqual(t, fields, maxFields, "fields of the kinds: does an operator ask for it, and can no other field carry it?")
	assert.LessOrEqual(t, words, maxWords, "words in docs: state a fact once, and link to it")
}
