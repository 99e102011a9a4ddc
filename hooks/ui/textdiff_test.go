package ui

import (
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/hooks/ui/uitest"
	"stoker.io/stoker/test/cluster/kubetest"
)

// Both links lead to the text of one file, which the agent prints. U3: the text may be hostile.
func TestTextOfFiles(t *testing.T) {
	t.Parallel()
	s := uitest.New(t, kubetest.Objects(t))
	s.Fleet("line", 1, 1)
	s.Agent("line-1", "line-0")
	s.Agents.Execute(s.Namespace, "line-0", func(command []string, stdout, stderr io.Writer) int {
		path := command[len(command)-1]
		switch {
		case path == "secret":
			fmt.Fprint(stdout, "secret: has secrets, not shown: <script>\x1b[2J\n")
		case path == "long":
			fmt.Fprint(stdout, "--- git/long\n+++ gateway/long\n@@ -1,1 +1,1 @@\n+"+strings.Repeat("x", 100_000)+"\n")
		case slices.Equal(command[:4], []string{"/agent", "text-diff", "drift", "--"}) && len(command) == 5:
			fmt.Fprint(stdout, "--- git/"+path+"\n+++ gateway/"+path+"\n@@ -1,2 +1,2 @@ <script>\n \tsame\n-</ol><script>alert(1)</script>\n+new\u202e\x1b\n")
		case slices.Equal(command[:4], []string{"/agent", "text-diff", "sync", "--"}) && len(command) == 6:
			fmt.Fprint(stdout, "--- before/"+path+"\n+++ after/"+path+"\n@@ -1,1 +1,1 @@\n-"+command[4]+"\n")
		default:
			fmt.Fprintf(stderr, "unexpected: %q", command)
			return 1
		}
		return 0
	})
	r := open(t, s.Agents.Config(), s.Namespace)
	gateway := PathOf(s.Namespace, "line") + "/gateway?name=line-1"
	text := func(page, of string) string {
		t.Helper()
		m := regexp.MustCompile(`href="([^"]*/text\?[^"]*)">show text<span class="hidden"> of ` + regexp.QuoteMeta(of) + `</span>`).FindStringSubmatch(page)
		require.Len(t, m, 2, page)
		return r.get(html.UnescapeString(m[1]))
	}
	const view, sql = "projects/filling/com.inductiveautomation.perspective/views/Tank/view.json", "projects/packaging/ignition/named-query/old/query.sql"
	page := r.shows(gateway, "show text")
	t.Run("drift", func(t *testing.T) {
		page := text(page, view)
		for _, want := range []string{
			"What was changed on the gateway itself", "<li>\u00a0\tsame</li>", `<li class="hunk">--- git/` + view + "</li>", `<li class="hunk">@@ -1,2 &#43;1,2 @@ &lt;script&gt;</li>`,
			`<li class="deleted"><del>-&lt;/ol&gt;&lt;script&gt;alert(1)&lt;/script&gt;</del></li>`, `<li class="added"><ins>&#43;new?␛</ins></li>`, "Lines with + were added",
		} {
			assert.Contains(t, page, strings.ReplaceAll(want, "\u00a0", " "))
		}
		assert.NotContains(t, page, "<script>")
	})
	t.Run("sync", func(t *testing.T) {
		m := regexp.MustCompile(`href="([^"]*/sync\?[^"]*)"`).FindStringSubmatch(page)
		require.Len(t, m, 2)
		address, err := url.Parse(html.UnescapeString(m[1]))
		require.NoError(t, err)
		page := text(r.get(address.String()), sql)
		assert.Contains(t, page, "What the sync changed")
		assert.Contains(t, page, `<li class="deleted"><del>-`+address.Query().Get("id")+`</del></li>`)
	})
	t.Run("a note", func(t *testing.T) {
		page := r.get(PathOf(s.Namespace, "line") + "/text?name=line-1&path=secret")
		assert.Contains(t, page, "secret: has secrets, not shown: &lt;script&gt;?[2J")
		assert.NotContains(t, page, "<ol class=\"plan")
	})
	t.Run("a long line", func(t *testing.T) {
		page := r.get(PathOf(s.Namespace, "line") + "/text?name=line-1&path=long")
		assert.Contains(t, page, "xxx…</ins>")
		assert.Less(t, len(page), 10_000)
	})
	t.Run("a path that does not fit into an address", func(t *testing.T) {
		f := fleet{Path: "/fleets/a/b"}
		assert.Empty(t, textPath(f, gatewayNamed("line-1"), "", strings.Repeat("/", 700)))
		assert.NotEmpty(t, textPath(f, gatewayNamed("line-1"), "", strings.Repeat("x", 700)))
	})
	t.Run("an agent without the program", func(t *testing.T) {
		s.Agents.Execute(s.Namespace, "line-0", func([]string, io.Writer, io.Writer) int { return 2 })
		answer := r.send(http.MethodGet, PathOf(s.Namespace, "line")+"/text?name=line-1&path=x", nil)
		assert.Equal(t, http.StatusNotFound, answer.StatusCode)
		assert.Contains(t, answer.body, "is too old to show the text of files")
	})
}

func gatewayNamed(name string) (g gateway) {
	g.row.Name = name
	return g
}
