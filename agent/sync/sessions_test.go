package sync_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

func project(parent string, inheritable bool) string {
	yes := "false"
	if inheritable {
		yes = "true"
	}
	return `{"title":"","description":"","parent":"` + parent + `","enabled":true,"inheritable":` + yes + `}`
}

// family delivers a parent, its child, its grandchild and a stranger.
func family(t *testing.T, policy v1alpha1.DesignerSessionPolicy) *bench {
	b := newBench(t, simulator.Options{})
	b.target.Profile.DesignerSessionPolicy = policy
	b.push(append(first(),
		gitserver.Write("projects/base/project.json", project("", true)),
		gitserver.Write("projects/child/project.json", project("base", true)),
		gitserver.Write("projects/grandchild/project.json", project("child", false)),
		gitserver.Write("projects/stranger/project.json", project("", false)))...)
	b.synced()
	return b
}

func (b *bench) designer(user, project string) string {
	b.t.Helper()
	id, err := b.gw.OpenDesigner(user, project)
	require.NoError(b.t, err)
	return id
}

const theme = "projects/base/com.inductiveautomation.perspective/views/theme/view.json"

func TestADesignerHoldsWhatItShows(t *testing.T) {
	for _, c := range []struct {
		name, open string
		scope      v1alpha1.DesignerSessionScope
		edit       gitserver.Edit
		held       bool
	}{
		{"the project itself", "base", "", gitserver.Write(theme, `{}`), true},
		{"a child, when its parent changes", "child", "", gitserver.Write(theme, `{}`), true},
		{"a grandchild", "grandchild", "", gitserver.Write(theme, `{}`), true},
		{"not the parent, when a child changes", "base", "", gitserver.Write("projects/child/x.json", `{}`), false},
		{"not a stranger", "stranger", "", gitserver.Write(theme, `{}`), false},
		{"not a Designer without a project", "", "", gitserver.Write(theme, `{}`), false},
		{"not the configuration", "base", "", gitserver.Write(db+"/config.json", `{"url":"x"}`), false},
		{"a stranger, of the whole gateway", "stranger", v1alpha1.DesignerScopeGateway, gitserver.Write(theme, `{}`), true},
		{"the configuration, of the whole gateway", "", v1alpha1.DesignerScopeGateway, gitserver.Write(db+"/config.json", `{"url":"x"}`), true},
		{"nothing that is not mapped", "base", v1alpha1.DesignerScopeGateway, gitserver.Write("README.md", "x"), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := family(t, v1alpha1.DesignerWait)
			b.target.Profile.DesignerSessionScope = c.scope
			good := b.target.Commit
			id := b.designer("maria", c.open)
			b.push(c.edit)
			if !c.held {
				b.synced()
				return
			}
			b.gw.ResetRequests()
			r := b.ended(sync.Held, v1alpha1.ReasonDesignerSessionActive)
			assert.Equal(t, good, r.Commit)
			assert.Contains(t, r.Message, "maria")
			assert.NotContains(t, r.Message, "192.0.2.10", "whose address it is, is nobody's business")
			assert.Zero(t, b.gw.Count("POST /data/api/v1/scan/projects")+b.gw.Count("POST /data/api/v1/scan-lock/projects"), "nobody is locked out")

			b.ended(sync.Held, v1alpha1.ReasonDesignerSessionActive)
			require.NoError(t, b.gw.CloseDesigner(id))
			b.synced()
		})
	}
}

// What was staged and checked once is not staged again at each look while somebody works.
func TestAHeldSyncStagesOnce(t *testing.T) {
	b := family(t, v1alpha1.DesignerWait)
	b.designer("maria", "base")
	staged := 0
	b.engine.Progress = func(step string, _, total int) {
		if step == "stage" && total > 0 {
			staged++
		}
	}
	b.push(gitserver.Write(theme, `{}`))
	for range 3 {
		b.ended(sync.Held, v1alpha1.ReasonDesignerSessionActive)
	}
	assert.Equal(t, 1, staged)
	b.push(gitserver.Write(theme, `{"broken":`))
	b.ended(sync.Error, v1alpha1.ReasonConfigSyntaxError)
}

func TestFailIsAnErrorAndGoesOnWhenTheDesignerIsClosed(t *testing.T) {
	b := family(t, v1alpha1.DesignerFail)
	id := b.designer("maria", "base")
	b.push(gitserver.Write(theme, `{}`))
	b.ended(sync.Error, v1alpha1.ReasonDesignerSessionActive)
	assert.Empty(t, b.read(theme))
	require.NoError(t, b.gw.CloseDesigner(id))
	b.synced()
}

func TestProceedWritesAndNotesWhoWasThere(t *testing.T) {
	b := family(t, v1alpha1.DesignerProceed)
	b.designer("maria", "child")
	b.push(gitserver.Write(theme, `{}`))
	r := b.synced()
	require.Len(t, r.Notes, 1, "%q", r.Notes)
	assert.Contains(t, r.Notes[0], "maria on project child, which inherits from base")
}

// Somebody opens a Designer while the files are staged: the look under the lock finds it, and the lock is released.
func TestADesignerThatOpensAtTheLastMomentIsSeenUnderTheLock(t *testing.T) {
	b := family(t, v1alpha1.DesignerWait)
	good := b.target.Commit
	b.push(gitserver.Write(theme, `{}`))
	b.gw.ResetRequests()
	none := `{"items":[],"metadata":{"total":0,"matching":0}}`
	require.NoError(t, b.gw.Fault(simulator.Fault{Route: "GET /data/api/v1/designers", Status: 200, Body: none, Times: 1}))
	id := b.designer("maria", "base")
	r := b.ended(sync.Held, v1alpha1.ReasonDesignerSessionActive)
	assert.Equal(t, good, r.Commit)
	assert.Empty(t, b.read(theme))
	assert.Equal(t, 1, b.gw.Count("POST /data/api/v1/scan-lock/projects"))
	assert.Equal(t, 1, b.gw.Count("POST /data/api/v1/scan/projects"), "the scan releases the lock")
	note, err := os.ReadDir(b.data + "/.stoker")
	require.NoError(t, err)
	for _, f := range note {
		assert.NotEqual(t, "note-owed", f.Name(), "nothing is owed for what was not written")
	}
	require.NoError(t, b.gw.CloseDesigner(id))
	b.synced()
}

// Not to know who is there is not to be alone.
func TestWhoIsThereCannotBeAskedFor(t *testing.T) {
	refuse := func(status int) func(b *bench) {
		return func(b *bench) {
			require.NoError(b.t, b.gw.Fault(simulator.Fault{Route: "GET /data/api/v1/designers", Status: status}))
		}
	}
	for _, c := range []struct {
		name   string
		policy v1alpha1.DesignerSessionPolicy
		spoil  func(b *bench)
		edit   gitserver.Edit
		phase  sync.Phase
		reason v1alpha1.Reason
	}{
		{"proceed goes on", v1alpha1.DesignerProceed, refuse(403), gitserver.Write(theme, `{}`), sync.Synced, v1alpha1.ReasonSynced},
		{"wait does not, where it may not ask", v1alpha1.DesignerWait, refuse(403), gitserver.Write(theme, `{}`), sync.Error, v1alpha1.ReasonGatewayForbidden},
		{"wait does not, where nobody answers", v1alpha1.DesignerWait, refuse(500), gitserver.Write(theme, `{}`), sync.Error, v1alpha1.ReasonGatewayUnreachable},
		{"wait cannot, where there is no list", v1alpha1.DesignerWait, refuse(404), gitserver.Write(theme, `{}`), sync.Error, v1alpha1.ReasonProfilesInvalid},
		{"fail cannot either", v1alpha1.DesignerFail, refuse(404), gitserver.Write(theme, `{}`), sync.Error, v1alpha1.ReasonProfilesInvalid},
		{"wait cannot without a token", v1alpha1.DesignerWait, func(b *bench) { b.peers.Token = false }, gitserver.Write(theme, `{}`), sync.Error, v1alpha1.ReasonProfilesInvalid},
		{"nobody asks for a change of the configuration", v1alpha1.DesignerWait, refuse(403), gitserver.Write(db+"/config.json", `{"url":"x"}`), sync.Synced, v1alpha1.ReasonSynced},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := family(t, c.policy)
			b.push(c.edit)
			c.spoil(b)
			b.ended(c.phase, c.reason)
		})
	}
}

// Else a first commit, which brings the token that we need to ask, would wait for itself.
func TestACommitThatBringsTheTokenIsNotHeldForTheWantOfIt(t *testing.T) {
	b := family(t, v1alpha1.DesignerWait)
	require.NoError(t, b.gw.Fault(simulator.Fault{Route: "GET /data/api/v1/designers", Status: 401}))
	const token = "config/resources/core/ignition/api-token/ci"
	b.push(gitserver.Write(theme, `{}`), gitserver.Write(token+"/config.json", `{"profile":{},"settings":{}}`),
		gitserver.Write(token+"/resource.json", `{"scope":"A","version":1,"restricted":false,"overridable":true,"files":["config.json"],"attributes":{}}`))
	r := b.synced()
	require.NotEmpty(t, r.Notes)
	assert.Contains(t, r.Notes[0], "brings what it takes to ask")
}

func TestAGatewayThatIsStoppedHasNoDesigners(t *testing.T) {
	b := family(t, v1alpha1.DesignerWait)
	b.designer("maria", "base")
	require.NoError(t, b.gw.SetState(simulator.Down))
	b.push(gitserver.Write(theme, `{}`))
	b.ended(sync.Applied, v1alpha1.ReasonWaitingForGateway)
	assert.Equal(t, `{}`, b.read(theme))
	require.NoError(t, b.gw.SetState(simulator.Running))
	b.synced()
}

// A stop is not waited for longer than the grace that a sync has for its end.
func TestTheLockOfAFailedApplyIsNotWaitedForWithoutEnd(t *testing.T) {
	b := family(t, v1alpha1.DesignerWait)
	b.push(gitserver.Write(theme, `{}`))
	none := `{"items":[],"metadata":{"total":0,"matching":0}}`
	require.NoError(t, b.gw.Fault(simulator.Fault{Route: "GET /data/api/v1/designers", Status: 200, Body: none, Times: 1}))
	b.designer("maria", "base")
	require.NoError(t, b.gw.FaultScans("projects", simulator.ScanFault{NeverEnds: true}))
	b.engine.Grace = 100 * time.Millisecond
	began := time.Now()
	r := b.ended(sync.Held, v1alpha1.ReasonDesignerSessionActive)
	assert.Less(t, time.Since(began), 10*time.Second)
	require.Len(t, r.Notes, 1)
	assert.Contains(t, r.Notes[0], "lapses by itself")
}
