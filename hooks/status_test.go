package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/program"
)

const lineAndPlant = `
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: line}
spec: {git: {repo: "https://git.example.com/plant.git", ref: main}}
---
apiVersion: stoker.io/v1alpha1
kind: ConfigSync
metadata: {name: plant}
spec: {source: {git: {repoURL: "https://git.example.com/config.git", branch: main}}}
`

// running is the status of a GatewaySync whose only gateway runs the commit.
const running = `{observedGeneration: 1, gatewaysReady: 1/1, target: {ref: main, commit: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa},
conditions: [{type: Ready, status: "True", reason: Synced, message: "1 of 1 gateways runs aaaaaaa", lastTransitionTime: "2026-01-01T00:00:00Z"}],
discoveredGateways: [{name: line-1, podName: line-1-0, syncStatus: Synced, reason: Synced, syncedCommit: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa}]}`

// One site answers, the cluster of one was stopped, and one rejects the user. The command hides none of them.
func TestStatusOfSeveralSites(t *testing.T) {
	t.Parallel()
	north, gone := kubetest.Control(t), kubetest.Control(t, kubetest.Private())
	namespace := north.Namespace(t)
	north.ApplyYAML(t, namespace, lineAndPlant)
	require.NoError(t, lead(t.Context(), north, namespace, "line", running))
	gone.Kill(t, kubetest.APIServer)
	config := api.NewConfig()
	// setup: one file for both
	for name, from := range map[string]string{"north": north.Kubeconfig(), "gone": gone.Kubeconfig()} {
		one, err := clientcmd.LoadFromFile(from)
		require.NoError(t, err)
		require.NoError(t, api.FlattenConfig(one))
		c := one.Contexts[one.CurrentContext]
		config.Clusters[name], config.AuthInfos[name] = one.Clusters[c.Cluster], one.AuthInfos[c.AuthInfo]
		config.Contexts[name] = &api.Context{Cluster: name, AuthInfo: name, Namespace: namespace}
	}
	config.AuthInfos["expired"] = &api.AuthInfo{Token: "expired"}
	config.Contexts["expired"] = &api.Context{Cluster: "north", AuthInfo: "expired", Namespace: "other"}
	config.Contexts["north-again"] = &api.Context{Cluster: "north", AuthInfo: "expired", Namespace: namespace}
	config.CurrentContext = "north"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*config, file))
	// expects runs a command line, and expects an exit code.
	expects := func(code int, line string) (stdout, stderr string) {
		t.Helper()
		var out, said strings.Builder
		began := time.Now()
		got := run(t.Context(), append([]string{"stoker", "--kubeconfig", file}, strings.Fields(strings.TrimPrefix(line, "stoker "))...), &out, &said)
		assert.Equal(t, code, got, "%s\n%s\n%s", line, &out, &said)
		assert.Less(t, time.Since(began), 20*time.Second)
		return out.String(), said.String()
	}

	out, said := expects(exit.Retry, "status --contexts all")
	assert.Regexp(t, `(?m)^SITE +NAMESPACE +NAME +REF +COMMIT +GATEWAYS `, out)
	assert.Regexp(t, `(?m)^expired +other +- .* Unknown .* the API server rejects your credentials: log in again$`, out)
	assert.Regexp(t, `(?m)^gone +`+namespace+` +- .* Unknown .* no answer: .*refused$`, out)
	assert.Regexp(t, `(?m)^north +`+namespace+` +line +main +aaaaaaa +1/1 `, out)
	assert.Regexp(t, `(?m)^SITE +NAMESPACE +CONFIGSYNC .*\nnorth +`+namespace+` +plant +- +- +Unknown .* no run yet`, out)
	assert.Contains(t, said, "Context north-again is left out")
	assert.Contains(t, said, "2 sites did not answer: what the gateways there run is not known")

	out, _ = expects(exit.Retry, "status line --contexts north,gone")
	assert.Regexp(t, `(?s)^Site: +north\n.*\nGateways: +1 of 1 run it\n.*\nline-1 .*\nSite: +gone\nUnknown: +no answer: `, out)
	expects(exit.Forbidden, "status --contexts north,expired")
	out, said = expects(exit.Done, "status --contexts north")
	assert.Regexp(t, `^NAME +REF .*\nline .*\n\nCONFIGSYNC .*\nplant `, out)
	assert.Empty(t, said)
	one, _ := expects(exit.Done, "status")
	age := regexp.MustCompile(`\b[0-9]+s( +)`)
	assert.Equal(t, age.ReplaceAllString(out, ""), age.ReplaceAllString(one, ""), "one context is shown in the same way")
	out, _ = expects(exit.Retry, "status --contexts gone,north -o json")
	var data struct{ Sites []map[string]any }
	require.NoError(t, json.Unmarshal([]byte(out), &data))
	assert.Contains(t, data.Sites[0]["error"], "no answer")
	assert.Nil(t, data.Sites[0]["fleets"])

	for c := range document.Open(t).Of("docs/how-to/ui.md") {
		out, _ = expects(exit.Retry, c.Text)
		assert.Regexp(t, `^COMMIT +REF +GATEWAYS +FLEETS\naaaaaaa +- +`, out)
		assert.Regexp(t, `(?m)^unknown +- +\? +no answer: .*refused: gone$`, out)
	}

	held := strings.Replace(running, "syncStatus: Synced, reason: Synced", "syncStatus: Held, reason: ApprovalNeeded", 1)
	require.NoError(t, lead(t.Context(), north, namespace, "line", held))
	for line, context := range map[string]string{"status line": "", "status line --context north": " --context north", "status line --contexts north": " --context north"} {
		t.Run(line, func(t *testing.T) {
			out, _ := expects(exit.Done, line)
			assert.Contains(t, out, "; now: stoker approve line --namespace "+namespace+context+"\n")
		})
	}

	for line, want := range map[string]string{
		"status --context gone":                     "the API server does not answer",
		"status line --context gone":                "the API server does not answer",
		"get --context gone":                        "the API server does not answer",
		"status --context expired":                  "rejected the credentials",
		"status --contexts north,unheard":           `no context "unheard"`,
		"status --contexts all --context north":     "leave out --context",
		"status --contexts all --token x":           "leave out --token",
		"status line --watch --contexts north,gone": "--watch shows one GatewaySync",
		"status other --contexts north":             "there is no GatewaySync other",
		"status --by name":                          "use commit",
		"status --behind":                           "use NAME, and leave out --by",
		"status line --behind --by commit":          "use NAME, and leave out --by",
		"ui line --contexts all":                    "cannot be used together",
		"status --contexts all --namespace nil":     "1 site did not answer",
	} {
		t.Run(line, func(t *testing.T) {
			var said strings.Builder
			code := run(t.Context(), append([]string{"stoker", "--kubeconfig", file}, strings.Fields(line)...), &said, &said)
			assert.NotEqual(t, exit.Done, code)
			assert.Contains(t, said.String(), want)
		})
	}
}

// Objects that a newer version wrote are shown, and the command fails.
func TestUndecodableObjects(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind, items := "SyncTarget", ""
		switch path.Base(r.URL.Path) {
		case "gatewaysyncs":
			kind, items = v1alpha1.KindGatewaySync, "line"
		case "configsyncs":
			kind, items = v1alpha1.KindConfigSync, "plant"
		}
		if items != "" {
			items = fmt.Sprintf(`{"apiVersion": "stoker.io/v1alpha1", "kind": %q, "metadata": {"name": %q, "namespace": "plant"}, "spec": []}`, kind, items)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"apiVersion": "stoker.io/v1alpha1", "kind": "%sList", "metadata": {"resourceVersion": "1"}, "items": [%s]}`, kind, items)
	}))
	t.Cleanup(server.Close)
	file := kubeconfigOf(t, server.URL)
	for line, want := range map[string]string{
		"status":                   `(?s)line .* Unknown .*\nplant .* Unknown `,
		"status -o name":           `^gatewaysync.stoker.io/line\nconfigsync.stoker.io/plant\n`,
		"status -o json":           `(?s)"name": "line",\s+"phase": "Unknown".*"name": "plant",\s+"ready": "Unknown"`,
		"status line --contexts c": `(?s)^Site: +c\nUnknown: +GatewaySync plant/line cannot be read: [^\n]*\nstoker: `,
		"status --by commit":       `^COMMIT .*\nunknown +- +[?] +the GatewaySync cannot be read: plant/line\nstoker: `,
		"get":                      `^stoker: GatewaySync plant/line cannot be read: [^\n]*\n$`,
		"config status":            `ConfigSync plant/plant cannot be read`,
	} {
		t.Run(line, func(t *testing.T) {
			var said strings.Builder
			assert.Equal(t, exit.Failed, run(t.Context(), append([]string{"stoker", "--kubeconfig", file}, strings.Fields(line)...), &said, &said))
			assert.Regexp(t, want, said.String())
			assert.NotContains(t, said.String(), "No GatewaySync")
		})
	}
}

// If the server accepts connections and is silent, a command ends after ten seconds, and its error names the server.
func TestSilentAPIServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	file := kubeconfigOf(t, "http://"+l.Addr().String())
	for _, line := range []string{"status", "status line", "status --by commit", "get", "get line"} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			var said strings.Builder
			began := time.Now()
			assert.Equal(t, exit.Retry, run(t.Context(), append([]string{"stoker", "--kubeconfig", file}, strings.Fields(line)...), &said, &said))
			assert.Contains(t, said.String(), "the API server does not answer")
			assert.Contains(t, said.String(), l.Addr().String())
			assert.Less(t, time.Since(began), queryTimeout)
		})
	}
}

func TestWatchedStatus(t *testing.T) {
	t.Parallel()
	var args []string
	lines := document.Open(t)
	for _, page := range []string{"docs/how-to/ui.md", "docs/reference/cli.md"} { // setup: both show the same command
		for c := range lines.Of(page) {
			args = strings.Fields(c.Text)
			require.Equal(t, []string{"stoker", "status", "line", "--watch"}, args)
		}
	}
	cluster := kubetest.Control(t)
	namespace := cluster.Namespace(t)
	cluster.ApplyYAML(t, namespace, `
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: line}
spec: {git: {repo: "https://git.example.com/plant.git", ref: main}}
`)
	require.NoError(t, lead(t.Context(), cluster, namespace, "line", broken))
	var out, talk program.Log
	ctx, stop := context.WithCancel(t.Context())
	code := make(chan int, 1)
	go func() {
		code <- newCLI(&out, &talk).run(ctx, "stoker", append(args[1:], "--kubeconfig", cluster.Kubeconfig(), "-n", namespace))
	}()
	says := func(what string) {
		t.Helper()
		require.Eventually(t, func() bool { return strings.Contains(out.String(), what) }, time.Minute, 10*time.Millisecond, "%s\n%s\n%s", what, &out, &talk)
	}
	says(" line Failed, 0 of 1 gateways run main at aaaaaaa: ")
	says(" line-1 (pod line-1-0) Error/TemplateFailed: no such field\n")
	require.NoError(t, lead(t.Context(), cluster, namespace, "line", repaired))
	says(" line Succeeded, 1 of 1 gateways run main at aaaaaaa")
	says(" line-1 (pod line-1-0) Synced at aaaaaaa\n")
	assert.Equal(t, 4, strings.Count(out.String(), "\n"), "each change must print one line: %s", &out)
	stop()
	select {
	case got := <-code:
		assert.Equal(t, exit.Done, got, talk.String())
	case <-time.After(time.Minute):
		require.Fail(t, "the command did not end")
	}

	var none program.Log
	assert.Equal(t, exit.Failed, newCLI(&out, &none).run(t.Context(), "stoker", []string{"status", "other", "--watch", "--kubeconfig", cluster.Kubeconfig(), "-n", namespace}))
	assert.Contains(t, none.String(), "there is no GatewaySync other")
	assert.Equal(t, exit.Usage, newCLI(&out, &none).run(t.Context(), "stoker", []string{"status", "line", "--watch", "-o", "json"}))
}
