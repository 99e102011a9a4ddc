// Package fleet tests whole fleets. One real agent process per gateway runs against a real API server, a
// real git server and simulated gateways.
package fleet

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/ui/uitest"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/status"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/fleet/plant"
)

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "6"); err != nil { // these tests mostly wait
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	plant.Main(m)
}

// What a user sees of gateways that are behind, and why: lines that fit a terminal.
func TestKubectlColumns(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Control(t)
	s := uitest.New(t, cluster)
	s.Fleet("packaging", 12, 0)
	s.Fleet("filling", 50, 7)
	s.Rollout("bottling", v1alpha1.RolloutWaiting)
	s.Rollout("brewing", v1alpha1.RolloutSoaking)
	s.Rollout("kegging", v1alpha1.RolloutAborted)
	away := s.Fleet("utilities", 3, 0)
	client, err := dynamic.NewForConfig(cluster.RESTConfig())
	require.NoError(t, err)
	away.Status = *status.WithoutLead(status.Leaderless{GatewaySync: away, Now: time.Now()})
	_, err = kube.GatewaySyncs(client, s.Namespace).Update(t.Context(), away, metav1.UpdateOptions{}, "status")
	require.NoError(t, err)
	drift := int32(2)
	for name, is := range map[string]v1alpha1.SyncReportStatus{
		"filling-6":  {Gateway: "filling-7", Phase: v1alpha1.GatewayHeld, Reason: v1alpha1.ReasonDesignerSessionActive, Message: "Designer session of maria on project filling"},
		"filling-13": {Gateway: "filling-14", Phase: v1alpha1.GatewayError, Reason: v1alpha1.ReasonWaitingForCommissioning, Drift: v1alpha1.DriftFiles{Files: drift}},
	} { // setup: reports of agents
		is.Format, is.Ref, is.Commit = 1, "release/2026.11", uitest.Old
		is.Started = &metav1.Time{Time: time.Now().Add(-26 * time.Hour).Truncate(time.Second)}
		_, err := kube.SyncReports(client, s.Namespace).Create(t.Context(), &v1alpha1.SyncReport{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: is}, metav1.CreateOptions{})
		require.NoError(t, err)
	}

	admin := office(t, cluster, map[string]string{})
	admin.Type(t, "kubectl config set-context --current --namespace "+s.Namespace)
	lines := func(command string) map[string]string {
		said := admin.Type(t, command)
		t.Log("\n" + said)
		found := map[string]string{}
		for line := range strings.Lines(said) {
			name, _, _ := strings.Cut(line, " ")
			found[name] = strings.TrimRight(line, " \n")
		}
		return found
	}
	have := lines("kubectl get gs")
	for name, want := range map[string]string{
		"NAME":      "STATUS",
		"packaging": "Synced",
		"filling":   "filling-14: GatewayForbidden; 6 more",
		"bottling":  "stage plant: ApprovalNeeded",
		"brewing":   "stage canary: RolloutSoaking",
		"kegging":   "stage canary: CanaryStageFailed",
		"utilities": "AgentsAway",
	} {
		t.Run(name, func(t *testing.T) {
			line := have[name]
			assert.True(t, strings.HasSuffix(line, " "+want), line)
			assert.LessOrEqual(t, len(line), 120)
		})
	}
	assert.Contains(t, lines("kubectl get gs -o wide")["bottling"], "waits for the approval plant@")
	reports := lines("kubectl get gsr")
	for name, want := range map[string]string{"filling-6": "Held DesignerSessionActive release/2026.11", "filling-13": "Error WaitingForCommissioning release/2026.11 2"} {
		t.Run(name, func(t *testing.T) {
			assert.Contains(t, strings.Join(strings.Fields(reports[name]), " "), want)
			assert.LessOrEqual(t, len(reports[name]), 120)
		})
	}
	assert.Contains(t, lines("kubectl get gsr -o wide")["filling-6"], "Designer session of maria")
	description, _ := admin.Try(t, "kubectl describe gs bottling")
	assert.Contains(t, description, "Summary:")
}

// What users should know of a gateway reaches the GatewaySync: they need not read the log of its agent.
func TestGatewayNotes(t *testing.T) {
	t.Parallel()
	p := plant.New(t, 2)
	p.Start()
	p.Converges("first", p.First)
	one := p.Gateways()[0]
	row := func() v1alpha1.DiscoveredGateway {
		for _, g := range p.Status().DiscoveredGateways {
			if g.Name == one.Name {
				return g
			}
		}
		return v1alpha1.DiscoveredGateway{}
	}
	noted := func(what string) bool {
		return slices.ContainsFunc(row().Notes, func(n string) bool { return strings.Contains(n, what) })
	}
	assert.Empty(t, row().Notes)

	one.Simulator.Restarts.SetPending("module Vision was installed")
	second := p.Push("second")
	p.Converges("second", second)
	p.Eventually("the note about the pending restart", func() bool { return noted("must be restarted for changes to take effect: module Vision was installed") })
	who := newPerson(t, p)
	said := who.types(0, "status", "site")
	assert.Contains(t, said, "NOTE")
	assert.Contains(t, said, "module Vision was installed")
	one.Simulator.Restarts.SetPending()
	p.Converges("third", p.Push("third"))
	p.Eventually("no note", func() bool { return len(row().Notes) == 0 })

	// A user changes a file that the next commit changes, too, and git wins.
	require.NoError(t, os.WriteFile(one.Path("projects/line/project.json"), []byte(`{"title": "mine", "enabled": true}`), 0o600))
	p.Converges("fourth", p.Push("fourth"))
	p.Eventually("the row counts the saved file", func() bool { return row().FilesSaved == 1 })
	p.Eventually("an Event about the pod, and one about the GatewaySync", func() bool {
		return events(t, p, v1alpha1.EventGatewayFilesReplaced, "replaced 1 file that a user had changed on "+one.Name) == 2
	})
	assert.Zero(t, events(t, p, v1alpha1.EventGatewayFilesReplaced, p.Gateways()[1].Name))
}
