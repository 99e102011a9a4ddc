package fleet

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/fleet/plant"
)

// formatOne builds the agent of the commit before SyncTargets had steps, from the history of this repository.
func formatOne(t *testing.T) (binary string) {
	t.Helper()
	git := func(args ...string) *exec.Cmd {
		return exec.Command("git", append([]string{"-C", "../.."}, args...)...)
	}
	list, err := git("log", "--format=%H", "-STargetFormat int32 = 2", "--", "api/v1alpha1/synctarget_types.go").Output()
	commits := strings.Fields(string(list))
	if err != nil || len(commits) == 0 {
		t.Skip("the history of this repository has no agent of format 1: clone it with all commits")
	}
	dir := t.TempDir()
	archive := filepath.Join(dir, "tree.tar")
	for _, cmd := range []*exec.Cmd{
		git("archive", "--output", archive, commits[len(commits)-1]+"^"),
		exec.Command("tar", "-xf", archive, "-C", dir),
	} {
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", cmd, out)
	}
	require.NoError(t, os.Remove(archive))
	binary = filepath.Join(dir, "agent-of-format-1")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", binary, "./agent") // the paths count for the build cache otherwise
	build.Dir = dir
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	return binary
}

// An agent from before rollouts keeps its gateway as it is while a step is closed, and follows when all are open. In a step before the
// last it holds up the rollout until its pod has a newer agent.
func TestAgentFromBeforeRollouts(t *testing.T) {
	t.Parallel()
	kubetest.NotShort(t) // before an agent is built
	old := formatOne(t)
	p := plant.New(t, 4, func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Strategy: v1alpha1.StrategyCanary, Stages: []v1alpha1.Stage{
			{Name: "dev", Gateways: []string{"gw-0"}}, {Name: "pilot", Gateways: []string{"gw-1"}}, {Name: "prod", Gateways: []string{"gw-2"}},
		}}
	})
	gw := p.Gateways()
	gw[0].Start()
	p.Eventually("a newer agent leads", func() bool { return p.Lead() == gw[0] })
	gw[1].StartProgram(old)
	gw[2].Start()
	gw[3].StartProgram(old)
	p.Converges("first", p.First)

	second := p.Push("second")
	row := func(n int) v1alpha1.DiscoveredGateway { return p.Status().DiscoveredGateways[n] }
	const why = "PodRestartNeeded: the SyncTarget needs an agent of format 2, this one knows 1"
	for _, n := range []int{1, 3} {
		p.Eventually(gw[n].Name+" is left alone", func() bool { return strings.Contains(row(n).Message, why) })
	}
	p.Eventually("the rollout waits for it", func() bool {
		r := p.Status().Rollout
		return r != nil && r.Stage == "pilot" && strings.Contains(r.Message, "waits for gw-1")
	})
	assert.Equal(t, v1alpha1.FormatRollout, p.Target().MinFormat)
	for n, title := range []string{"second", "first", "first", "first"} {
		assert.Equal(t, title, gw[n].Title(), gw[n].Name)
	}

	require.NoError(t, gw[1].Agent.End(t, syscall.SIGTERM))
	gw[1].Start()
	p.Converges("second", second)
	assert.EqualValues(t, 1, p.Target().MinFormat, "with all steps open, older agents may follow")
	assert.Contains(t, gw[3].Agent.Log.String(), "needs an agent of format 2", "the log must be that of the older agent")
}
