package agents

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/kube/podexec/podexectest"
)

// What the agent serves must be what the command line reads.
func TestAgentStateRoundTrip(t *testing.T) {
	commit, err := plan.ParseID(strings.Repeat("ab", 20))
	require.NoError(t, err)
	at := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	counts := sync.Counts{Added: 1, Modified: 2, Deleted: 3, Total: 40}
	sent := loop.State{
		GatewayName: "line", Ref: "main", Commit: commit, Target: commit,
		Problems: []loop.Problem{{Reason: v1alpha1.ReasonGitTimeout, Message: "no answer"}},
		Plan:     []string{"+ projects/a/x.json"},
		Drift:    &disk.Drift{Files: 1, Paths: []disk.Drifted{{Path: "projects/a/x.json", What: disk.Modified}}},
		Report:   &sync.Report{Started: at, Duration: time.Second, Files: counts, Projects: []string{"a"}, Notes: []string{"skipped"}},
		Snapshots: []loop.Snapshot{{Stored: v1alpha1.StoredBoth,
			Snapshot: disk.Snapshot{ID: "line-20261124-120000", Time: at, Ref: "main", Commit: commit, To: commit, Files: 2, Bytes: 3, Backup: true}}},
		Proposal: &v1alpha1.Proposal{State: v1alpha1.ProposalOpen, URL: "https://git.example.com/1"},
		History:  []loop.HistoryEntry{{At: at, Ref: "main", Commit: commit, Phase: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced, Message: "done", Duration: "1s", Files: counts}},
	}
	raw, err := json.Marshal(sent)
	require.NoError(t, err)
	var s State
	require.NoError(t, json.Unmarshal(raw, &s))
	want := State{
		Gateway: "line", Ref: "main", Commit: commit, Target: commit, Problems: []Problem{{v1alpha1.ReasonGitTimeout, "no answer"}}, Plan: sent.Plan,
		Drift: s.Drift, Proposal: sent.Proposal,
		Report:    Report{Files: counts, Notes: []string{"skipped"}},
		Snapshots: []Snapshot{{ID: "line-20261124-120000", Time: at, Ref: "main", Commit: commit, To: commit, Files: 2, Bytes: 3, Stored: v1alpha1.StoredBoth, Backup: true}},
		History:   []PastSync{{at, "main", commit, v1alpha1.GatewaySynced, v1alpha1.ReasonSynced, "done", "1s", counts}},
	}
	assert.Equal(t, want, s)
	require.NotNil(t, s.Drift)
	assert.Equal(t, 1, s.Drift.Files)
	require.Len(t, s.Drift.Paths, 1)
	assert.Equal(t, "projects/a/x.json", s.Drift.Paths[0].Path)
	assert.Equal(t, "modified", s.Drift.Paths[0].What)
	assert.Equal(t, "line", Agent{gateway: "line"}.Snapshots(s)[0].Gateway)
	assert.Empty(t, Agent{gateway: "other"}.Snapshots(s))
}

// U5 of docs/internals/threats.md: a pod cannot choose where the reader's token goes, nor what the reader's client reads.
func TestRedirectingPodIsRefused(t *testing.T) {
	var stolen, paths []string
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { stolen = append(stolen, r.Header.Get("Authorization")) }))
	t.Cleanup(thief.Close)
	var location string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.URL.Path)
		if strings.Contains(r.URL.Path, "/proxy/") {
			http.Redirect(w, r, location, http.StatusFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"line-0","namespace":"plant"},"spec":{"containers":[{"name":"stoker-agent"}]}}`))
	}))
	t.Cleanup(server.Close)
	clients, err := kube.ConnectTo(&rest.Config{Host: server.URL, BearerToken: "reader"}, "test")
	require.NoError(t, err)
	agent, err := Of(t.Context(), clients.Core, "plant", v1alpha1.DiscoveredGateway{Name: "line", PodName: "line-0"})
	require.NoError(t, err)
	for name, ask := range map[string]func() error{
		"state": func() error { _, err := agent.State(t.Context()); return err },
		"audit": func() error { _, err := agent.Audit(t.Context()); return err },
		"diff":  func() error { _, err := agent.Diff(t.Context(), "line-20261124-120000"); return err },
	} {
		for where, to := range map[string]string{"another host": thief.URL, "no scheme": strings.TrimPrefix(thief.URL, "http:"), "up": "../../../../secrets"} {
			t.Run(name+"/"+where, func(t *testing.T) {
				location, paths, stolen = to, nil, nil
				err := ask()
				require.ErrorContains(t, err, "pod line-0 in namespace plant answers with a redirect (HTTP 302), which is not followed")
				assert.Len(t, paths, 1)
				assert.Empty(t, stolen)
			})
		}
	}
}

// U4 of docs/internals/threats.md: the error says which right is missing.
func TestTextErrors(t *testing.T) {
	pod := `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"line-0","namespace":"plant"},"spec":{"containers":[{"name":"stoker-agent"}]}}`
	for name, c := range map[string]struct {
		pod, want string
		exec      http.HandlerFunc
	}{
		"no right": {pod, "the text of files needs the right to create pods/exec in namespace plant: pods/exec \"line-0\" is forbidden: ann", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			status := apierrors.NewForbidden(corev1.Resource("pods/exec"), "line-0", errors.New("ann")).Status()
			status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
			assert.NoError(t, json.NewEncoder(w).Encode(status))
		}},
		"an old agent": {pod, "is too old to show the text of files: update it", func(w http.ResponseWriter, r *http.Request) {
			podexectest.Serve(w, r, func([]string, io.Writer, io.Writer) int { return 2 })
		}},
		"a failure": {pod, "the agent of pod line-0 cannot show the text: agent: there is no report", func(w http.ResponseWriter, r *http.Request) {
			podexectest.Serve(w, r, func(_ []string, _, stderr io.Writer) int {
				_, _ = io.WriteString(stderr, "agent: there is no report\n")
				return 1
			})
		}},
		"no agent": {strings.Replace(pod, "stoker-agent", "gateway", 1), "pod line-0 has no agent", nil},
		"endless": {pod, "run text-diff in the agent of pod line-0: too large", func(w http.ResponseWriter, r *http.Request) {
			podexectest.Serve(w, r, func(_ []string, stdout, _ io.Writer) int {
				for range 1 << 10 {
					if _, err := io.WriteString(stdout, strings.Repeat("x", 1<<15)); err != nil {
						break
					}
				}
				return 0
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "/exec") {
					c.exec(w, r)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, c.pod)
			}))
			t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
			clients, err := kube.ConnectTo(&rest.Config{Host: server.URL}, "test")
			require.NoError(t, err)
			agent, err := Of(t.Context(), clients.Core, "plant", v1alpha1.DiscoveredGateway{Name: "line", PodName: "line-0"})
			require.NoError(t, err)
			_, err = agent.TextDrift(t.Context(), clients, []string{"a"})
			require.ErrorContains(t, err, c.want)
			_, err = agent.TextOfSync(t.Context(), clients, "id", nil)
			require.ErrorContains(t, err, c.want)
		})
	}
}
