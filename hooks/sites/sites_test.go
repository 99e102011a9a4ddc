package sites

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"

	"stoker.io/stoker/internal/kube"
)

func TestContexts(t *testing.T) {
	config := api.Config{CurrentContext: "ops", Clusters: map[string]*api.Cluster{"n": {Server: "https://n"}, "s": {Server: "https://s"}}, Contexts: map[string]*api.Context{
		"north": {Cluster: "n"}, "north-line": {Cluster: "n", Namespace: "line"}, "ops": {Cluster: "n", AuthInfo: "ops"}, "south": {Cluster: "s"}, "lost": {Cluster: "unheard"}, "all": {Cluster: "s", AuthInfo: "b"},
	}}
	for name, c := range map[string]struct {
		value          string
		same           bool
		names, skipped string
		fails          string
	}{
		"one":                     {"north", false, "north", "", ""},
		"two":                     {"south, north", false, "south north", "", ""},
		"twice":                   {"south,south", false, "south", "", ""},
		"same cluster, by name":   {"north,ops", false, "north ops", "", ""},
		"all":                     {"all", false, "all lost north-line ops", "north south", ""},
		"all, of all namespaces":  {"all", true, "all lost ops", "north north-line south", ""},
		"unknown":                 {"north,unheard", false, "", "", `no context "unheard"`},
		"empty":                   {"north,", false, "", "", `no context ""`},
		"all, in a list of names": {"all,north", false, "all north", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			names, skipped, err := chosen(config, c.value, c.same)
			if c.fails != "" {
				assert.ErrorContains(t, err, c.fails)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.names, strings.Join(names, " "))
			assert.Equal(t, c.skipped, strings.Join(skipped, " "))
		})
	}
	t.Run("none", func(t *testing.T) {
		_, _, err := chosen(api.Config{}, allContexts, false)
		assert.ErrorContains(t, err, "has no context")
	})
	t.Run("too many", func(t *testing.T) {
		many := api.Config{Contexts: map[string]*api.Context{}}
		for i := range maxSites + 1 { // setup: one more than the bound
			many.Contexts[fmt.Sprint(i)] = &api.Context{Cluster: fmt.Sprint(i)}
		}
		_, _, err := chosen(many, allContexts, false)
		assert.ErrorContains(t, err, "65 contexts")
	})
}

// U6 of docs/internals/threats.md: a token of the command line is for one cluster.
func TestFlagsOfOneCluster(t *testing.T) {
	flags := genericclioptions.NewConfigFlags(true)
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.AddFlags(set)
	require.NoError(t, set.Set("namespace", "line"))
	require.NoError(t, set.Set("as", "ann"))
	require.NoError(t, checkFlags(set))
	set.VisitAll(func(f *pflag.Flag) {
		t.Run(f.Name, func(t *testing.T) {
			if f.Changed || strings.HasPrefix(f.Name, "as-") {
				return
			}
			before := f.Value.String()
			require.NoError(t, set.Set(f.Name, map[bool]string{true: "true", false: "x"}[f.Value.Type() == "bool"]))
			switch err := checkFlags(set); f.Name {
			case "kubeconfig", "request-timeout", "cache-dir", "disable-compression":
				assert.NoError(t, err)
			default:
				assert.ErrorContains(t, err, "leave out --"+f.Name)
			}
			require.NoError(t, f.Value.Set(before))
			f.Changed = false
		})
	})
	other := flagsFor(flags, "north")
	assert.Equal(t, []string{"north", "line", "ann"}, []string{*other.Context, *other.Namespace, *other.Impersonate})
	assert.Empty(t, *other.BearerToken)
}

func siteOf(t *testing.T, name string, config *rest.Config) Site {
	t.Helper()
	clients, err := kube.ConnectTo(config, "test")
	require.NoError(t, err)
	return Site{Context: name, Namespace: "plant", Clients: clients}
}

// Each site has a deadline of its own, also if a program of its kubeconfig that gets the credentials does not end.
func TestReadDoesNotWaitForOthers(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	answering := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"apiVersion": "stoker.io/v1alpha1", "kind": "GatewaySyncList", "metadata": {"resourceVersion": "1"}, "items": []}`))
	}))
	defer answering.Close()
	rejecting := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	defer rejecting.Close()
	program := filepath.Join(t.TempDir(), "login") // runs longer than Deadline
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\nexec sleep 12\n"), 0o700))
	stuck := &rest.Config{Host: answering.URL, ExecProvider: &api.ExecConfig{APIVersion: "client.authentication.k8s.io/v1", Command: program, InteractiveMode: api.NeverExecInteractiveMode}}
	began := time.Now()
	got := Read(t.Context(), []Site{siteOf(t, "north", &rest.Config{Host: answering.URL}), siteOf(t, "silent", &rest.Config{Host: "http://" + silent.Addr().String()}), siteOf(t, "stuck", stuck),
		siteOf(t, "gone", &rest.Config{Host: "http://127.0.0.1:1"}), siteOf(t, "rejects", &rest.Config{Host: rejecting.URL}), {Context: "broken", Err: assert.AnError}})
	assert.Less(t, time.Since(began), Deadline+5*time.Second)
	for i, want := range []string{"", "no answer within 10s", "no answer within 10s", "no answer: ", "the API server rejects your credentials: log in again", "no answer: " + assert.AnError.Error()} {
		t.Run(got[i].Context, func(t *testing.T) {
			if want == "" {
				require.NoError(t, got[i].Err)
				require.NoError(t, got[i].Leads.Err)
				return
			}
			require.Error(t, got[i].Err)
			assert.Contains(t, Problem(got[i].Err, kube.GatewaySync), want)
		})
	}
	_, silentSites, rejected := Gaps(got)
	assert.Equal(t, 5, silentSites)
	assert.False(t, rejected)
	_, _, rejected = Gaps(got[4:5])
	assert.True(t, rejected)
}

func TestGaps(t *testing.T) {
	forbidden := apierrors.NewForbidden(kube.ConfigSync.Resource().GroupResource(), "", nil)
	a := Answer{Site: Site{Context: "no\x1b[31mrth"}, ConfigErr: forbidden}
	a.Leads.Err = context.DeadlineExceeded
	notes, silent, _ := Gaps([]Answer{a, {ConfigErr: apierrors.NewNotFound(kube.ConfigSync.Resource().GroupResource(), "")}})
	assert.Zero(t, silent)
	require.Len(t, notes, 2, "a cluster without ConfigSyncs has nothing to hide")
	assert.Contains(t, notes[0], "SyncTargets cannot be read, so it takes up to 5m0s to notice that no agent leads any more of no?[31mrth")
	assert.Contains(t, notes[1], "ConfigSyncs of no?[31mrth are not shown: you may not list ConfigSyncs: the ClusterRole stoker-view grants the right")
}
