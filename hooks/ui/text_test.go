package ui

import (
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/docs"
	"stoker.io/stoker/hooks/sites"
	"stoker.io/stoker/hooks/ui/uitest"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
)

// Each reason has advice, and the renderer knows all that the sections of the documentation use.
func TestAdvice(t *testing.T) {
	t.Parallel()
	a := newAdvisor(docs.Troubleshooting, manual)
	for _, r := range v1alpha1.Reasons {
		t.Run(string(r.Reason), func(t *testing.T) {
			found := a.advice(r.Reason)
			assert.NotEmpty(t, found.Meaning)
			assert.NotEmpty(t, found.Next)
			assert.NotEmpty(t, found.Body)
			text := regexp.MustCompile(`(?s)<code>.*?</code>|<[^>]*>`).ReplaceAllString(string(found.Body), "")
			assert.NotRegexp(t, "`|\\]\\(|\\*\\*|^#|\\|", text, "the text has markup that the renderer does not support")
			assert.Equal(t, strings.Count(string(found.Body), "<ul>"), strings.Count(string(found.Body), "</ul>"))
		})
	}
	assert.Equal(t, Advice{Reason: "Unheard"}, a.advice("Unheard"))
	assert.Equal(t, `<p>a &lt;b&gt; <code>x &amp; y</code> <em>c</em> <a href="https://docs.example.com/docs/reference/cli.md" rel="noopener noreferrer">d</a></p><ul><li>e <a href="/reasons/Paused">f</a></li></ul>`,
		string(a.render("a <b> `x & y` *c* [d](../reference/cli.md)\n\n- e\n  [f](#paused)")))
}

func TestText(t *testing.T) {
	assert.Equal(t, "abc?def", clean("abc\u202edef", 20))
	assert.Equal(t, "a b?", clean("a\nb\x00", 20))
	assert.Equal(t, "xxxx…", clean(strings.Repeat("x", 1<<20), 5))
	assert.Equal(t, "1,234,567", number(1234567))
	assert.Equal(t, "999", number(999))
	assert.Equal(t, "Designer<wbr>Session", string(breakable("DesignerSession")))
	assert.Equal(t, "&lt;b&gt;", string(breakable("<b>")))
	assert.Negative(t, compareNatural("line-2", "line-10"))
	assert.Positive(t, compareNatural("line-b", "line-a"))
	assert.Zero(t, compareNatural("a1", "a1"))
	assert.Negative(t, compareNatural("a", "ab"))
	for text, want := range map[string]string{"https://a.example.com/1": "https://a.example.com/1", "javascript:alert(1)": "", "branch": "", "https://u:p@a.example.com": "", "https:///x": ""} {
		t.Run(text, func(t *testing.T) { assert.Equal(t, want, newLink(text).URL) })
	}
}

func TestSearchOfFleets(t *testing.T) {
	for search, want := range map[string][]string{"": {"filling", "packing"}, "Fill": {"filling"}, "PLANT/P": {"packing"}, "x": nil} {
		t.Run(search, func(t *testing.T) {
			p := fleetsPage{Search: search}
			p.add([]fleet{{Namespace: "plant", Name: "filling"}, {Namespace: "plant", Name: "packing"}})
			var have []string
			for _, f := range p.Fleets {
				have = append(have, f.Name)
			}
			assert.Equal(t, want, have)
		})
	}
}

func TestReasonsThatThePageOmitsAreCounted(t *testing.T) {
	s, _, _ := thousand(t)
	for n, want := range map[int]string{maxCauses: "", maxCauses + 1: "1 more reason:", maxCauses + 3: "3 more reasons:"} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			f := fleet{Namespace: "plant", Name: "line"}
			for i := range n {
				f.Groups = append(f.Groups, group{Advice: Advice{Reason: fmt.Sprintf("Reason%d", i)}, N: 1})
			}
			p := fleetsPage{frame: s.newFrame(nil, "Fleets")}
			p.add([]fleet{f})
			w := httptest.NewRecorder()
			s.writePage(w, http.StatusOK, "fleets", p)
			assert.Len(t, p.Causes, maxCauses)
			assert.Equal(t, want != "", strings.Contains(w.Body.String(), "more reason"))
			assert.Contains(t, w.Body.String(), want)
		})
	}
}

func TestSearchKeepsTheOrder(t *testing.T) {
	s, gs, now := thousand(t)
	w := httptest.NewRecorder()
	s.writePage(w, http.StatusOK, "fleet", fleetPage{frame: s.newFrame(nil, "line"), Fleet: s.newFleet(s.sites[0], gs, nil, "", now), Sort: "name", Dir: "desc"})
	for _, want := range []string{`name="sort" value="name"`, `name="dir" value="desc"`} {
		assert.Contains(t, w.Body.String(), want)
	}
}

// thousand returns a server, a fleet of 1,000 gateways, of which 100 are held, and the time of its status.
func thousand(t testing.TB) (*Server, *v1alpha1.GatewaySync, time.Time) {
	t.Helper()
	clients, err := kube.ConnectTo(&rest.Config{Host: "http://127.0.0.1:1"}, "test")
	require.NoError(t, err)
	s, err := New(Options{Sites: []sites.Site{{Clients: clients, Namespace: "plant"}}, Manual: manual})
	require.NoError(t, err)
	now := time.Now()
	gs := &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: "line"}}
	gs.Spec.Git.Ref = "main"
	gs.Status.ConfirmedAt = &metav1.Time{Time: now}
	gs.Status.ObservedRequest = desiredref.Key(gs)
	gs.Status.Outcome = &v1alpha1.Outcome{Phase: v1alpha1.OutcomeProgressing, Ref: "main", Commit: uitest.Target, Total: 1000, Synced: 900}
	for i := range 1000 {
		g := v1alpha1.DiscoveredGateway{Name: fmt.Sprintf("line-%d", i), PodName: fmt.Sprintf("line-%d", i), Profile: "edge", SyncStatus: v1alpha1.GatewaySynced, SyncedCommit: uitest.Target}
		if i%10 == 0 {
			g.SyncStatus, g.Reason, g.Message, g.SyncedCommit = v1alpha1.GatewayHeld, v1alpha1.ReasonDesignerSessionActive, "Designer session of maria on project filling", uitest.Old
		}
		gs.Status.DiscoveredGateways = append(gs.Status.DiscoveredGateways, g)
	}
	return s, gs, now
}

// render writes the page of the fleet and returns its size.
func render(t testing.TB, s *Server, gs *v1alpha1.GatewaySync, now time.Time) int {
	t.Helper()
	p := fleetPage{frame: s.newFrame(nil, "line"), Fleet: s.newFleet(s.sites[0], gs, nil, "", now)}
	p.addFilters()
	p.addColumns()
	p.Rows = p.Fleet.Gateways
	sortGateways(p.Rows, "", false)
	w := httptest.NewRecorder()
	s.writePage(w, http.StatusOK, "fleet", p)
	require.Equal(t, http.StatusOK, w.Code)
	return w.Body.Len()
}

// budget is how long the page of 1,000 gateways may take. The test allows ten times as much, for a loaded machine.
const budget = 200 * time.Millisecond

func TestThousandGatewaysRenderInTime(t *testing.T) {
	s, gs, now := thousand(t)
	began := time.Now()
	size := render(t, s, gs, now)
	assert.Less(t, time.Since(began), 10*budget)
	assert.Less(t, size, 1<<20)
	assert.Greater(t, size, 100<<10)
}

func TestCommitLink(t *testing.T) {
	full := strings.Repeat("ab", 20)
	for name, c := range map[string]struct{ repo, outcome, shown, want string }{
		"github":                   {"git@github.com:plants/line.git", full, full[:7], "https://github.com/plants/line/commit/" + full},
		"unknown host":             {"https://git.example.com/plants/line", full, full[:7], ""},
		"script address":           {"javascript://github.com/%0aalert(1)/x", full, full[:7], ""},
		"status of another commit": {"git@github.com:plants/line.git", full, "1234567", ""},
		"no commit":                {"git@github.com:plants/line.git", full, "", ""},
		"not a commit":             {"git@github.com:plants/line.git", "../../x", "../../x", ""},
	} {
		t.Run(name, func(t *testing.T) {
			gs := &v1alpha1.GatewaySync{Status: v1alpha1.GatewaySyncStatus{Outcome: &v1alpha1.Outcome{Commit: c.outcome}}}
			gs.Spec.Git.Repo = c.repo
			assert.Equal(t, commit{ID: c.shown, Link: c.want}, fleet{gs: gs, Commit: c.shown}.Desired())
		})
	}
	gs := &v1alpha1.GatewaySync{Status: v1alpha1.GatewaySyncStatus{
		Target: &v1alpha1.TargetStatus{Commit: full, Subject: "Fill tank 4"}, History: []v1alpha1.CommitRecord{{Commit: "other", Subject: "Fill\x1b tank 3"}},
	}}
	assert.Equal(t, "Fill tank 4", fleet{gs: gs}.newCommit(full).Subject)
	assert.NotContains(t, fleet{gs: gs}.newCommit("other").Subject, "\x1b")
	assert.Empty(t, fleet{}.Desired())
	assert.Empty(t, fleet{}.compare(plan.ID{1}, plan.ID{2}))
}

// The links of a file that drifted and of a file that a sync changed lead to its text, which the agent prints. U3 of docs/internals/threats.md:
// the text may be hostile.
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
	t.Run("an agent that is too old", func(t *testing.T) {
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
