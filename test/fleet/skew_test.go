package fleet

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/fleet/plant"
	"stoker.io/stoker/test/program"
)

// together is the oldest commit whose agents and commands work beside those of this tree. It stands for the last release until there is one.
// Before it, reports and targets had other fields; see the formats in docs/reference/compatibility.md.
const together = "3c03957b834f"

// lastRelease returns the tag of the last release before this commit, or together.
func lastRelease(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("git", "tag", "--list", "v*", "--merged", "HEAD", "--no-contains", "HEAD", "--sort=-version:refname").Output()
	require.NoError(t, err)
	if tags := strings.Fields(string(out)); len(tags) > 0 {
		return tags[0]
	}
	return together
}

// While a release is installed, old and new agents of a GatewaySync work together, whichever of them leads, and so do commands.
func TestVersionSkew(t *testing.T) {
	t.Parallel()
	release := lastRelease(t)
	old := map[string]string{"agent": program.BuildAt(t, release, "agent"), "hooks": program.BuildAt(t, release, "hooks")}
	now := map[string]string{"agent": program.Build(t, "agent"), "hooks": program.Build(t, "hooks")}
	for name, c := range map[string]struct{ lead, follower, command string }{
		"old lead":    {old["agent"], now["agent"], now["hooks"]},
		"new lead":    {now["agent"], old["agent"], now["hooks"]},
		"old command": {now["agent"], now["agent"], old["hooks"]},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := plant.New(t, 2)
			who := newPerson(t, p)
			who.binary = c.command
			gw := p.Gateways()
			gw[0].StartProgram(c.lead)
			p.Eventually("the first agent leads", func() bool { return p.Lead() == gw[0] })
			gw[1].StartProgram(c.follower)
			requests(t, p, who)
			assert.Equal(t, gw[0], p.Lead(), "the lead must not have changed")
			commit := p.Status().LastGood.Commit

			t.Run("the other agent leads", func(t *testing.T) {
				require.NoError(t, gw[0].Agent.End(t, syscall.SIGTERM))
				p.Eventually("the second agent leads", func() bool { return p.Lead() == gw[1] })
				gw[0].StartProgram(c.follower)
				p.Converges("fourth", commit)
				last := p.Push("last")
				p.Converges("last", last)
			})
		})
	}
}
