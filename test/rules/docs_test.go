package rules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/url"
	"path"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/test/document"
)

var (
	markdownLink = regexp.MustCompile(`\]\(<?([^)\s>]+)>?(?:\s+"[^"]*")?\)|^\[[^\]]+\]:\s+(\S+)`)
	codeSpan     = regexp.MustCompile("`[^`]*`")
	heading      = regexp.MustCompile(`^#{1,6}\s+(.*?)\s*#*$`)
	ownAnchor    = regexp.MustCompile(`<a\s+(?:id|name)="([^"]+)"`)
	inlineLink   = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// prose yields the lines of a Markdown file outside of fenced code blocks, with their numbers.
func prose(content []byte) func(yield func(int, string) bool) {
	return func(yield func(int, string) bool) {
		fence := ""
		for i, line := range strings.Split(string(content), "\n") {
			trimmed := strings.TrimSpace(line)
			switch {
			case fence == "" && (strings.HasPrefix(trimmed, "```") || strings.HasPrefix(trimmed, "~~~")):
				fence = trimmed[:3]
			case fence != "" && strings.HasPrefix(trimmed, fence):
				fence = ""
			case fence == "":
				if !yield(i+1, line) {
					return
				}
			}
		}
	}
}

// anchors returns the fragments of a Markdown file, as git hosts derive them from headings.
func anchors(content []byte) map[string]bool {
	found, seen := map[string]bool{}, map[string]int{}
	for _, line := range prose(content) {
		for _, m := range ownAnchor.FindAllStringSubmatch(line, -1) {
			found[m[1]] = true
		}
		m := heading.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		slug := slugOf(m[1])
		if n := seen[slug]; n > 0 {
			found[fmt.Sprintf("%s-%d", slug, n)] = true
		} else {
			found[slug] = true
		}
		seen[slug]++
	}
	return found
}

func slugOf(heading string) string {
	text := inlineLink.ReplaceAllString(heading, "$1")
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_':
			return unicode.ToLower(r)
		case r == ' ':
			return '-'
		}
		return -1
	}, text)
}

// brokenLinks returns the broken relative links of the Markdown files.
func brokenLinks(all []file) []string {
	exists, docs := map[string]bool{".": true}, map[string]file{}
	for _, f := range all {
		for p := f.path; p != "."; p = path.Dir(p) {
			exists[p] = true
		}
		if strings.HasSuffix(f.path, ".md") && !f.isSample() {
			docs[f.path] = f
		}
	}
	var broken []string
	for _, f := range docs {
		for number, line := range prose(f.content) {
			for _, m := range markdownLink.FindAllStringSubmatch(codeSpan.ReplaceAllString(line, ""), -1) {
				if why := follow(f.path, m[1]+m[2], exists, docs); why != "" {
					broken = append(broken, fmt.Sprintf("%s:%d: link %q: %s", f.path, number, m[1]+m[2], why))
				}
			}
		}
	}
	return broken
}

// follow returns why a link is broken, or "". It does not follow links to other hosts.
func follow(from, link string, exists map[string]bool, docs map[string]file) string {
	u, err := url.Parse(link)
	if err != nil {
		return err.Error()
	}
	if u.Scheme != "" || u.Host != "" {
		return ""
	}
	target := from
	if u.Path != "" {
		target = path.Join(path.Dir(from), u.Path)
	}
	if !exists[target] {
		return "there is no " + target
	}
	if doc, ok := docs[target]; ok && u.Fragment != "" && !anchors(doc.content)[u.Fragment] {
		return target + " has no such heading"
	}
	return ""
}

func TestDocumentationLinks(t *testing.T) { report(t, brokenLinks(files(t))) }

// The table names the versions that the tests use.
func TestCompatibilityTable(t *testing.T) {
	content := map[string]string{}
	for _, f := range files(t) {
		content[f.path] = string(f.content)
	}
	for _, source := range []struct{ row, file, pattern string }{
		{"Kubernetes", "test/cluster/build/programs.go", `DefaultKubernetes = "v([0-9.]+)"`},
		{"Kubernetes", "test/cluster/build/programs.go", `OldestKubernetes  = "v([0-9.]+)"`},
		{"Kubernetes", "test/cluster/kubernetes/go.mod", `k8s\.io/kubernetes v([0-9.]+)`},
		{"Kubernetes", "test/cluster/kubernetes/v1.30.14.mod", `k8s\.io/kubernetes v([0-9.]+)`},
		{"Kubernetes", "charts/stoker/Chart.yaml", `kubeVersion: ">=([0-9]+\.[0-9]+)`},
		{"Ignition", "test/gateway/simulator/options.go", `&o\.Version: "([0-9.]+)"`},
		{"Argo CD", "test/argocd/go.mod", `argo-cd/v2 v([0-9.]+)`},
		{"Argo CD", "test/argocd/v3/go.mod", `argo-cd/v3 v([0-9.]+)`},
		{"Helm", "test/charts/go.mod", `helm\.sh/helm/v3 v([0-9.]+)`},
		{"Helm", "test/charts/go.mod", `helm\.sh/helm/v4 v([0-9.]+)`},
		{"SyncTarget", "api/v1alpha1/synctarget_types.go", `TargetFormat int32 = (\d+)`},
		{"SyncReport", "api/v1alpha1/synctarget_types.go", `ReportFormat int32 = (\d+)`},
		{"injector, receiver, Jobs, command line", "hooks/check/versions.go", `maxPartSkew  = (\d+)`},
		{"agents, which live as long as their pods", "hooks/check/versions.go", `maxAgentSkew = (\d+)`},
	} {
		t.Run(source.row+" in "+source.file, func(t *testing.T) {
			m := regexp.MustCompile(source.pattern).FindStringSubmatch(content[source.file])
			if assert.NotNil(t, m, source.pattern) {
				assert.Regexp(t, `(?m)^\| `+source.row+` \|.*\b`+regexp.QuoteMeta(m[1])+`\b`, content["docs/reference/compatibility.md"])
			}
		})
	}
}

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
