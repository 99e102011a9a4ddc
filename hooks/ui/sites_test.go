package ui

import (
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/sites"
	"stoker.io/stoker/hooks/ui/uitest"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/cluster/memory"
)

// siteOf returns a site with the rights of config.
func siteOf(t testing.TB, name string, config *rest.Config, namespace string) sites.Site {
	t.Helper()
	clients, err := kube.ConnectTo(config, "test")
	require.NoError(t, err)
	return sites.Site{Context: name, Clients: clients, Namespace: namespace}
}

// isLost expects that a page shows nothing as good or current, and that its headline has no number of gateways.
func isLost(t *testing.T, page string) {
	t.Helper()
	for _, wrong := range []string{"Up to date", "calm", "Live, read-only", "chip good", "No fleets"} {
		assert.NotContains(t, page, wrong)
	}
	assert.Contains(t, page, `class="summary lost"`)
	headline := regexp.MustCompile(`<h1[^>]*>([^<]*)<`).FindStringSubmatch(page)
	require.NotNil(t, headline)
	assert.NotRegexp(t, `^\d|\d+ of|\d+ gateways?`, headline[1])
}

// An API server that accepts connections and is silent ends no watch. An open page learns of it within the deadline, says since when, and
// waits for it no more.
func TestSilentAPIServer(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Control(t, kubetest.Private())
	s := uitest.New(t, cluster)
	s.Fleet("line", 3, 0)
	r := open(t, cluster.RESTConfig(), s.Namespace)
	r.shows("/", "All 3 gateways are up to date")
	events := r.events("/live")
	assert.Equal(t, "open", <-events)
	time.Sleep(minEventInterval) // the next event can only be that of the silence
	cluster.Pause(t, kubetest.APIServer)
	paused := time.Now()
	select {
	case <-events:
		assert.Less(t, time.Since(paused), askInterval+sites.Deadline+5*time.Second)
	case <-time.After(maxEventInterval - minEventInterval - time.Second):
		require.Fail(t, "no event tells the open page that the API server is silent")
	}
	for _, path := range []string{"/", PathOf(s.Namespace, "line"), PathOf(s.Namespace, "line") + "/gateway?name=line-1"} {
		t.Run(path, func(t *testing.T) {
			began := time.Now()
			page := r.get(path)
			assert.Less(t, time.Since(began), 2*pageWait, "a page must not wait for a server that is known to be silent")
			now, _, _ := strings.Cut(page, "Past syncs")
			isLost(t, now)
			assert.Regexp(t, `(?i)no answer for \d+s; what is shown is from \d\d:\d\d:\d\d\.`, page)
			assert.Contains(t, page, `data-link="Not live: the API server does not answer"`)
		})
	}
	cluster.Resume(t, kubetest.APIServer)
	r.shows("/", "Live, read-only")
	s.Confirm()
	r.shows("/", "All 3 gateways are up to date")
}

// A server that is silent from the start shows no fleets as if there were none, and the page does not wait for it.
func TestSilentFromTheStart(t *testing.T) {
	t.Parallel()
	r := open(t, &rest.Config{Host: silentServer(t)}, "plant")
	began := time.Now()
	page := r.get("/")
	assert.Less(t, time.Since(began), 2*pageWait)
	assert.Contains(t, page, "Reading the fleets")
	assert.NotContains(t, page, "calm")
	page = r.shows("/", "The fleets are not known")
	isLost(t, page)
	assert.Contains(t, page, "No answer; nothing was read yet.")
}

// An API server that rejects the credentials does not count as one that answers.
func TestRejectedCredentials(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Control(t)
	own := cluster.RESTConfig()
	r := open(t, &rest.Config{Host: own.Host, BearerToken: "expired", TLSClientConfig: rest.TLSClientConfig{CAData: own.CAData, CAFile: own.CAFile}}, "plant")
	page := r.shows("/", "The API server rejects your credentials")
	isLost(t, page)
}

// U6 of docs/internals/threats.md: three clusters: one answers, one becomes silent, one was never there.
func TestSeveralSites(t *testing.T) {
	t.Parallel()
	shared, second, third := kubetest.Control(t), kubetest.Control(t, kubetest.Private()), kubetest.Control(t, kubetest.Private())
	north, south := uitest.New(t, shared), uitest.New(t, second)
	north.Fleet("line", 50, 7)
	north.Agent("line-7", "line-6")
	north.Config("plant", v1alpha1.ReasonSynced, "all 4 objects are applied")
	south.Fleet("line", 3, 0)
	south.Config("plant", v1alpha1.ReasonApplyForbidden, "deployments.apps is forbidden")
	third.Kill(t, kubetest.APIServer)
	const arn = "arn:aws:eks:eu-1:1:cluster/west"
	broken := sites.Site{Context: "broken", Err: assert.AnError}
	r := openSites(t, siteOf(t, "north", north.Agents.Config(), north.Namespace), siteOf(t, arn, second.RESTConfig(), south.Namespace), siteOf(t, "east", third.RESTConfig(), ""), broken)
	page := r.shows("/", "What the gateways of east and broken run is not known")
	isLostHeadline := func(page string) {
		t.Helper()
		assert.Contains(t, page, `class="summary lost"`)
		assert.NotContains(t, page, "Live, read-only")
	}
	isLostHeadline(page)
	r.shows("/", "4/4 ready")
	r.shows("/", "3/4 ready")
	page = r.shows("/", "7 of 53 gateways of the other sites are behind.")
	for _, want := range []string{"east: no answer; nothing was read yet.", "broken: no answer; nothing was read yet.", `data-link="Not live: sites do not answer"`, ">4 sites<", "43 of 50", "3 of 3", "north/line",
		"ApplyForbidden", "deployments.apps is forbidden", "3/4 ready", "4/4 ready", "47m ago", "What to do", "1 ConfigSync needs attention."} {
		assert.Contains(t, page, want)
	}
	assert.Less(t, strings.Index(page, ">east<"), strings.Index(page, ">north<"), "a site that does not answer comes first")

	links := regexp.MustCompile(`href="([^"]*)"`).FindAllStringSubmatch(page, -1)
	assert.Greater(t, len(links), 10)
	for _, m := range links {
		t.Run(m[1], func(t *testing.T) {
			if to := strings.ReplaceAll(m[1], "&amp;", "&"); strings.HasPrefix(to, "/") && !strings.HasPrefix(to, "/live") {
				assert.Less(t, r.send("GET", to, nil).StatusCode, 300, "%s", to)
			}
		})
	}
	west := "/sites/" + url.PathEscape(arn) + PathOf(south.Namespace, "line")
	page = r.get(west)
	for _, want := range []string{"All 3 gateways run main", "stoker status line --namespace " + south.Namespace + " --context " + arn, `<span class="context">` + arn + `</span>`} {
		assert.Contains(t, page, want)
	}
	page = r.get("/sites/north" + PathOf(north.Namespace, "line") + "/gateway?name=line-7")
	assert.Contains(t, page, "views/Tank/view.json", "the agent of that cluster must be asked")
	assert.Contains(t, page, "or now: stoker sync line --namespace "+north.Namespace+" --context north.")
	assert.Contains(t, r.get("/?site=north"), "7 of 50 gateways are behind")
	assert.NotContains(t, r.get("/?site=north"), ">Sites<")
	assert.Equal(t, 404, r.send("GET", "/?site=unheard", nil).StatusCode)
	assert.Equal(t, 404, r.send("GET", "/sites/unheard"+PathOf(north.Namespace, "line"), nil).StatusCode)
	assert.Equal(t, 404, r.send("GET", PathOf(north.Namespace, "line"), nil).StatusCode, "a fleet without its site is ambiguous")

	t.Log("a site that becomes silent does not make the others wait")
	second.Pause(t, kubetest.APIServer)
	r.shows("/", "What the gateways of several sites run is not known", "What the gateways of "+arn)
	began := time.Now()
	page = r.get("/")
	assert.Less(t, time.Since(began), 2*pageWait)
	isLostHeadline(page)
	assert.Regexp(t, regexp.QuoteMeta(arn)+`: no answer for \d+s; what is shown is from \d\d:\d\d:\d\d\.`, page)
	assert.Contains(t, page, "7 of 50 gateways of the other sites are behind.")
	assert.Contains(t, page, "not known, 3")
	isLost(t, r.get(west))
	second.Resume(t, kubetest.APIServer)
	r.shows("/", "gateways of the other sites")
}

// U3 of docs/internals/threats.md: names of contexts, ConfigSyncs of tenants and errors of an API server are text.
func TestHostileSites(t *testing.T) {
	t.Parallel()
	s := uitest.New(t, kubetest.Objects(t))
	s.Fleet("line", 1, 0)
	const script = `<script>alert(1)</script>"'&`
	s.Config("evil", "NotHeardOf", script+"\u202e"+strings.Repeat("x", 900))
	r := openSites(t, siteOf(t, script, s.Agents.Config(), s.Namespace), sites.Site{Context: "b", Err: &url.Error{Op: script, URL: script, Err: assert.AnError}})
	r.shows("/", ">line</a>")
	page := r.shows("/", ">evil<")
	fleet := "/sites/" + url.PathEscape(script) + PathOf(s.Namespace, "line")
	for name, text := range map[string]string{"fleets": page, "site": r.get("/?" + url.Values{"site": {script}}.Encode()), "fleet": r.get(fleet), "gateway": r.get(fleet + "/gateway?name=line-1")} {
		t.Run(name, func(t *testing.T) {
			assert.NotContains(t, text, "<script>alert")
			assert.NotContains(t, text, "\u202e")
			assert.NotContains(t, text, "ZgotmplZ")
			assert.Contains(t, text, "&lt;script&gt;")
			assert.Less(t, len(text), 20_000)
		})
	}
	assert.Contains(t, r.get(fleet), "--context &#39;&lt;script&gt;", "a command to paste must quote the name")
}

// Objects that a newer version wrote belong to their site, too.
func TestUndecodableObjects(t *testing.T) {
	t.Parallel()
	server, err := memory.Start("../../charts/stoker/files/crds")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, server.Close()) })
	north := siteOf(t, "north", server.RESTConfig(), "")
	for kind, name := range map[kube.Kind]string{kube.GatewaySync: "line", kube.ConfigSync: "config"} { // setup: one of each
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": kind.Name, "metadata": map[string]any{"name": name}, "spec": []any{}}}
		_, err := north.Clients.Dynamic.Resource(kind.Resource()).Namespace("plant").Create(t.Context(), o, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	r := openSites(t, north, sites.Site{Context: "south", Err: assert.AnError})
	r.shows("/?q=north/plant/line", "GatewaySync plant/line cannot be read")
	r.shows("/?q=north/plant/config", "ConfigSync plant/config cannot be read")
}

// A user who may not list ConfigSyncs sees which right is missing.
func TestConfigSyncsWithoutRights(t *testing.T) {
	t.Parallel()
	x := &site{Site: sites.Site{Context: "plant"}}
	assert.Empty(t, x.configNote())
	cluster := kubetest.Control(t)
	namespace := cluster.Namespace(t)
	cluster.ApplyYAML(t, namespace, `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: fleets}
rules: [{apiGroups: [stoker.io], resources: [gatewaysyncs, synctargets], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: fleets}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: fleets}
subjects: [{kind: ServiceAccount, name: default, namespace: `+namespace+`}]
`)
	r := open(t, cluster.As(t, namespace, "default", ""), namespace)
	r.shows("/", "list and watch configsyncs.stoker.io")
}

// A change of a ConfigSync reaches the page of all fleets.
func TestConfigSyncEvents(t *testing.T) {
	t.Parallel()
	s := uitest.New(t, kubetest.Objects(t))
	s.Fleet("line", 1, 0)
	r := open(t, s.Agents.Config(), s.Namespace)
	r.shows("/", "All 1 gateway are up to date")
	events := r.events("/live")
	assert.Equal(t, "open", <-events)
	s.Config("plant", v1alpha1.ReasonApplyForbidden, "deployments.apps is forbidden")
	select {
	case <-events:
	case <-time.After(maxEventInterval / 2):
		require.Fail(t, "no event")
	}
	page := r.shows("/", "ApplyForbidden")
	assert.Contains(t, page, "1 ConfigSync</a> needs attention.")
	assert.NotContains(t, page, "calm")
	client, err := kube.ConnectTo(s.Cluster.RESTConfig(), "test")
	require.NoError(t, err)
	require.NoError(t, kube.ConfigSyncs(client.Dynamic, s.Namespace).Delete(t.Context(), "plant", metav1.DeleteOptions{}))
}
