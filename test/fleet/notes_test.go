package fleet

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/fleet/plant"
)

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
	p.Eventually("an Event", func() bool {
		return events(t, p, v1alpha1.EventGatewayFilesReplaced, "replaced 1 file that a user had changed on "+one.Name) == 2
	})
	assert.Zero(t, events(t, p, v1alpha1.EventGatewayFilesReplaced, p.Gateways()[1].Name))
}
