package sync_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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

// family delivers a parent project, its child, its grandchild and an unrelated project.
func family(t *testing.T, policy v1alpha1.DesignerSessionPolicy) *bench {
	b := newBench(t, simulator.Options{})
	b.target.Profile.DesignerSessionPolicy = policy
	b.push(append(firstCommit(),
		gitserver.Write("projects/base/project.json", project("", true)),
		gitserver.Write("projects/child/project.json", project("base", true)),
		gitserver.Write("projects/grandchild/project.json", project("child", false)),
		gitserver.Write("projects/stranger/project.json", project("", false)))...)
	b.synced()
	return b
}

func (b *bench) designer(user, project string) string {
	b.t.Helper()
	id, err := b.gw.Designers.Open(user, project)
	require.NoError(b.t, err)
	return id
}

const theme = "projects/base/com.inductiveautomation.perspective/views/theme/view.json"

func TestDesignerHoldsProjects(t *testing.T) {
	for _, c := range []struct {
		name, open string
		scope      v1alpha1.DesignerSessionScope
		edit       gitserver.Edit
		held       bool
	}{
		{"the project itself", "base", "", gitserver.Write(theme, `{}`), true},
		{"a child of a changed parent", "child", "", gitserver.Write(theme, `{}`), true},
		{"a grandchild of a changed parent", "grandchild", "", gitserver.Write(theme, `{}`), true},
		{"not the parent of a changed child", "base", "", gitserver.Write("projects/child/x.json", `{}`), false},
		{"not an unrelated project", "stranger", "", gitserver.Write(theme, `{}`), false},
		{"not a Designer without a project", "", "", gitserver.Write(theme, `{}`), false},
		{"not the configuration", "base", "", gitserver.Write(db+"/config.json", `{"url":"x"}`), false},
		{"an unrelated project, scope gateway", "stranger", v1alpha1.DesignerScopeGateway, gitserver.Write(theme, `{}`), true},
		{"the configuration, scope gateway", "", v1alpha1.DesignerScopeGateway, gitserver.Write(db+"/config.json", `{"url":"x"}`), true},
		{"not a file outside the mappings", "base", v1alpha1.DesignerScopeGateway, gitserver.Write("README.md", "x"), false},
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
			b.gw.Requests.Reset()
			r := b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonDesignerSessionActive)
			assert.Equal(t, good, r.Commit)
			assert.Contains(t, r.Message, "maria")
			assert.NotContains(t, r.Message, "192.0.2.10", "the address of a user is private")
			assert.Zero(t, b.gw.Requests.Count(scanProjects)+b.gw.Requests.Count("POST /data/api/v1/scan-lock/projects"), "the agent does not take the scan lock")

			b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonDesignerSessionActive)
			require.NoError(t, b.gw.Designers.Close(id))
			b.synced()
		})
	}
}

// stages counts how often the engine stages files.
func (b *bench) stages() *int {
	n := 0
	b.engine.Progress = func(step string, done, _ int) {
		if step == "stage" && done == 1 {
			n++
		}
	}
	return &n
}

// While a sync is held, the agent stages and validates its files only once.
func TestHeldSyncStagesOnce(t *testing.T) {
	for reason, hold := range map[v1alpha1.Reason]func(b *bench) gitserver.Edit{
		v1alpha1.ReasonDesignerSessionActive: func(b *bench) gitserver.Edit {
			b.designer("maria", "base")
			return gitserver.Write(theme, `{}`)
		},
		v1alpha1.ReasonConflictDetected: func(b *bench) gitserver.Edit {
			b.target.Profile.ConflictPolicy = v1alpha1.ConflictHold
			b.put(view, `{"mine": 1}`)
			return gitserver.Write(view, `{"two": 2}`)
		},
		v1alpha1.ReasonMassDeletion: func(*bench) gitserver.Edit { return gitserver.Delete("projects/stranger/project.json") },
	} {
		t.Run(string(reason), func(t *testing.T) {
			b := family(t, v1alpha1.DesignerWait)
			staged := b.stages()
			b.push(hold(b), gitserver.Write("projects/line/added.json", "{}"))
			said := b.ended(v1alpha1.GatewayHeld, reason).Message
			for range 3 {
				assert.Equal(t, said, b.ended(v1alpha1.GatewayHeld, reason).Message)
			}
			assert.Equal(t, 1, *staged)
			b.push(gitserver.Write("projects/line/added.json", `{"broken":`))
			b.ended(v1alpha1.GatewayError, v1alpha1.ReasonConfigSyntaxError)
		})
	}
}

// If another conflict changes a held plan, the agent stages and validates it again.
func TestHeldSyncRestagesNewPlan(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.target.Profile.ConflictPolicy = v1alpha1.ConflictHold
	b.delivered()
	b.push(gitserver.Write(view, `{"two": 2}`), gitserver.Write(db+"/config.json", `{"url": "two"}`))
	staged := b.stages()
	for _, path := range []string{view, db + "/config.json"} {
		b.put(path, `{"mine": 1}`)
		for range 2 {
			b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonConflictDetected)
		}
	}
	assert.Equal(t, 2, *staged)
	b.target.Profile.ConflictPolicy = v1alpha1.ConflictGitWins
	b.synced()
	assert.Equal(t, `{"two": 2}`, b.read(view))
}

func TestDesignerPolicyFail(t *testing.T) {
	b := family(t, v1alpha1.DesignerFail)
	id := b.designer("maria", "base")
	b.push(gitserver.Write(theme, `{}`))
	b.ended(v1alpha1.GatewayError, v1alpha1.ReasonDesignerSessionActive)
	assert.Empty(t, b.read(theme))
	require.NoError(t, b.gw.Designers.Close(id))
	b.synced()

	b.designer("maria", "base")
	b.put(theme, `{"mine": 1}`)
	b.target.Repair = true
	b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonDesignerSessionActive)
}

func TestDesignerPolicyProceed(t *testing.T) {
	b := family(t, v1alpha1.DesignerProceed)
	b.designer("maria", "child")
	b.push(gitserver.Write(theme, `{}`))
	r := b.synced()
	require.Len(t, r.Notes, 1, "%q", r.Notes)
	assert.Contains(t, r.Notes[0], "maria on project child, which inherits from base")
}

// openedLate returns a bench whose user opens a Designer after the first check for one, and the id of the session.
func openedLate(t *testing.T) (*bench, string) {
	b := family(t, v1alpha1.DesignerWait)
	b.push(gitserver.Write(theme, `{}`))
	b.gw.Requests.Reset()
	b.fault(simulator.Fault{Route: "GET /data/api/v1/designers", Status: 200, Body: `{"items":[],"metadata":{"total":0,"matching":0}}`, Times: 1})
	return b, b.designer("maria", "base")
}

// The check under the lock finds the session, and the scan releases the lock.
func TestDesignerOpensUnderLock(t *testing.T) {
	b, id := openedLate(t)
	r := b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonDesignerSessionActive)
	assert.NotEqual(t, b.target.Commit, r.Commit)
	assert.Empty(t, b.read(theme))
	assert.Equal(t, 1, b.gw.Requests.Count("POST /data/api/v1/scan-lock/projects"))
	assert.Equal(t, 1, b.gw.Requests.Count(scanProjects), "the scan releases the lock")
	assert.NoFileExists(t, b.data+"/.stoker/note-unloaded", "no pending scan for files that were not written")
	require.NoError(t, b.gw.Designers.Close(id))
	b.synced()
}

// If the agent cannot list the Designer sessions, it must not assume that there are none.
func TestDesignersCannotBeListed(t *testing.T) {
	refuse := func(status int) func(b *bench) {
		return func(b *bench) {
			b.fault(simulator.Fault{Route: "GET /data/api/v1/designers", Status: status})
		}
	}
	noToken := func(b *bench) { b.conn.HasAPIToken = false }
	for _, c := range []struct {
		name   string
		policy v1alpha1.DesignerSessionPolicy
		spoil  func(b *bench)
		edit   gitserver.Edit
		phase  v1alpha1.GatewaySyncState
		reason v1alpha1.Reason
	}{
		{"proceed: synced", v1alpha1.DesignerProceed, refuse(403), gitserver.Write(theme, `{}`), v1alpha1.GatewaySynced, v1alpha1.ReasonSynced},
		{"wait: forbidden", v1alpha1.DesignerWait, refuse(403), gitserver.Write(theme, `{}`), v1alpha1.GatewayError, v1alpha1.ReasonGatewayForbidden},
		{"wait: gateway fails", v1alpha1.DesignerWait, refuse(500), gitserver.Write(theme, `{}`), v1alpha1.GatewayError, v1alpha1.ReasonGatewayUnreachable},
		{"wait: no such route", v1alpha1.DesignerWait, refuse(404), gitserver.Write(theme, `{}`), v1alpha1.GatewayError, v1alpha1.ReasonProfilesInvalid},
		{"fail: no such route", v1alpha1.DesignerFail, refuse(404), gitserver.Write(theme, `{}`), v1alpha1.GatewayError, v1alpha1.ReasonProfilesInvalid},
		{"wait: no token", v1alpha1.DesignerWait, noToken, gitserver.Write(theme, `{}`), v1alpha1.GatewayError, v1alpha1.ReasonProfilesInvalid},
		{"wait: configuration only", v1alpha1.DesignerWait, noToken, gitserver.Write(db+"/config.json", `{"url":"x"}`), v1alpha1.GatewaySynced, v1alpha1.ReasonSynced},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := family(t, c.policy)
			b.push(c.edit)
			c.spoil(b)
			b.ended(c.phase, c.reason)
		})
	}
}

// A commit that brings the API key is written although the agent cannot list the Designers. Otherwise it would wait for itself.
func TestCommitDeliversToken(t *testing.T) {
	b := family(t, v1alpha1.DesignerWait)
	b.fault(simulator.Fault{Route: "GET /data/api/v1/designers", Status: 401})
	b.push(append(withToken(), gitserver.Write(theme, `{}`))...)
	r := b.synced()
	require.NotEmpty(t, r.Notes)
	assert.Contains(t, r.Notes[0], "grants the access that the check needs")
}

func TestDesignersOfStoppedGateway(t *testing.T) {
	b := family(t, v1alpha1.DesignerWait)
	b.designer("maria", "base")
	b.set(simulator.Down)
	b.push(gitserver.Write(theme, `{}`))
	b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	assert.Equal(t, `{}`, b.read(theme))
	b.set(simulator.Running)
	b.synced()
}

// The agent waits for the scan that releases the lock only for the grace period.
func TestLockOfFailedApply(t *testing.T) {
	b, _ := openedLate(t)
	require.NoError(t, b.gw.Scans.Fault("projects", simulator.ScanFault{NeverEnds: true}))
	b.engine.Grace = 100 * time.Millisecond
	began := time.Now()
	r := b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonDesignerSessionActive)
	assert.Less(t, time.Since(began), 10*time.Second)
	require.Len(t, r.Notes, 1)
	assert.Contains(t, r.Notes[0], "expires by itself")
}

// people simulates users in the histories of TestPairSyncedHasCommit (standby_test.go). They work on the gateways and on their volumes.
type people struct {
	now   time.Time
	edits int
	// fresh marks the nodes that lost the agent's records and have not completed a sync since. inherited lists, per node, the resources not in
	// git that were there at that sync, which the agent takes for the gateway's own.
	inherited [2][]string
	fresh     [2]bool
}

// invite adds users to a history. If mirror, the active node deletes files that are not in git.
func (h *history) invite(mirror bool) {
	h.people = &people{now: time.Now()}
	for _, b := range h.nodes {
		b.engine.Now = func() time.Time { return h.people.now }
		if mirror {
			b.target.Profile.Prune, b.target.Profile.ExcludePatterns = v1alpha1.PruneMirror, own(h.t, b)
		}
	}
}

// own returns exclude patterns for the gateway's own resources in core.
func own(t *testing.T, b *bench) []string {
	t.Helper()
	list := v1alpha1.BuiltinExcludes()
	require.NoError(t, fs.WalkDir(os.DirFS(b.data), "config/resources/core", func(path string, e fs.DirEntry, err error) error {
		if dir := filepath.Dir(path); e != nil && e.Name() == "resource.json" && dir != db {
			list = append(list, dir+"/")
		}
		return err
	}))
	return list
}

// live performs one random action of a user.
func (h *history) live() {
	switch k := h.dice.IntN(6); {
	case k < 2:
		h.edit()
	case k < 3:
		h.make()
	case k < 4:
		h.renew()
	default:
		h.rest()
	}
}

// edit changes a file of git on the active node, except with policy hold, which would stop all syncs.
func (h *history) edit() {
	b := h.nodes[h.active]
	if b.target.Profile.ConflictPolicy == v1alpha1.ConflictHold {
		return
	}
	dir := slices.Sorted(maps.Keys(resources))[h.dice.IntN(len(resources))]
	if path := dir + "/" + resources[dir]; dir != external && b.read(path) != "" {
		h.people.edits++
		b.put(path, fmt.Sprintf(`{"mine":%d}`, h.people.edits))
		require.NoError(h.t, h.Replicate())
		h.say("%s is edited", path)
	}
}

// edited reports whether a user wrote content.
func (h *history) edited(content string) bool {
	return h.people != nil && strings.HasPrefix(content, `{"mine":`)
}

// make creates a view that is never in git.
func (h *history) make() {
	b, dir := h.nodes[h.active], fmt.Sprintf("projects/line/com.inductiveautomation.perspective/views/own%d", h.dice.IntN(2))
	require.NoError(h.t, os.MkdirAll(filepath.Join(b.data, dir), 0o755))
	b.put(dir+"/resource.json", listing("view.json"))
	b.put(dir+"/view.json", `{"mine":0}`)
	require.NoError(h.t, h.Replicate())
	h.say("%s is made", dir)
}

// renew removes the agent's records from the standby node, and sometimes all replicated files, too.
func (h *history) renew() {
	node := 1 - h.active
	b, all := h.nodes[node], h.dice.IntN(2) == 0
	lost := []string{".stoker", external, "config/resources/external/kept.txt", "projects/line/README.md"}
	if all {
		lost = append(lost, "projects/line", db, "config/resources/core/kept.txt")
	}
	for _, path := range lost {
		require.NoError(h.t, os.RemoveAll(filepath.Join(b.data, path)))
	}
	require.NoError(h.t, h.Replicate())
	h.looked[node], h.people.fresh[node], h.people.inherited[node] = false, true, nil
	h.say("the volume of node %d is new, with all files: %t", node, all)
}

// rest lets six minutes pass without a push and with working replication. A node that still waits afterwards must have a resource
// that is to be deleted.
func (h *history) rest() {
	h.Pause(false)
	require.NoError(h.t, h.Replicate())
	h.sync(h.active)
	h.sync(1 - h.active)
	h.people.now = h.people.now.Add(6 * time.Minute)
	h.say("six minutes later")
	r := h.sync(1 - h.active)
	leftover := func(dir string) bool {
		return h.want[dir+"/resource.json"] == "" && strings.Contains(r.Message, "("+dir+"/")
	}
	if r.Phase != v1alpha1.GatewayStandby {
		require.True(h.t, slices.ContainsFunc(slices.Collect(maps.Keys(resources)), leftover), h)
	}
}

// met updates the inherited resources of a node after a complete sync.
func (h *history) met(node int) {
	if h.people == nil {
		return
	}
	p, b := h.people, h.nodes[node]
	for dir, file := range resources {
		switch there := h.want[dir+"/"+file] == "" && b.read(dir+"/"+file) != ""; {
		case !there:
			p.inherited[node] = slices.DeleteFunc(p.inherited[node], func(d string) bool { return d == dir })
		case p.fresh[node]:
			p.inherited[node] = append(p.inherited[node], dir)
		}
	}
	p.fresh[node] = false
}

func (h *history) inherited(node int, dir string) bool {
	return h.people != nil && (h.people.fresh[node] || slices.Contains(h.people.inherited[node], dir))
}

// settle ends a history: it deletes resources that are no longer in git and renews the standby node while users edit. After a rest,
// no node may wait.
func (h *history) settle() {
	h.Pause(false)
	h.edit()
	h.make()
	h.renew()
	for dir, file := range resources {
		if b := h.nodes[h.active]; h.want[dir+"/"+file] == "" {
			require.NoError(h.t, os.RemoveAll(filepath.Join(b.data, dir)))
		}
	}
	h.rest()
	h.rest()
	require.Equal(h.t, v1alpha1.GatewaySynced, h.sync(h.active).Phase, h)
	require.Equal(h.t, v1alpha1.GatewayStandby, h.sync(1-h.active).Phase, h)
}

// A Designer saves a view between the plan, which repairs only view.json, and its replacement. If the sync kept the resource.json
// of that save, a gateway that compares only resource.json would keep the Designer's view.
func TestDesignerSaveDuringRepair(t *testing.T) {
	const git = `{"one": 1}`
	b := newBench(t, simulator.Options{Unknowns: simulator.Unknowns{SkipUnchanged: true}})
	b.push(append(firstCommit(), gitserver.Write(view, git), gitserver.Write(viewDir+"/resource.json", sealedJSON(t, "view.json", git)))...)
	b.synced()
	id, err := b.gw.Designers.Open("anna", "line")
	require.NoError(t, err)
	b.put(view, `{"by": "hand"}`)
	saves := 0
	b.at("apply", func() {
		saves++
		assert.NoError(t, b.gw.Designers.SaveResource(t.Context(), id, strings.TrimPrefix(viewDir, "projects/line/"),
			map[string][]byte{"view.json": fmt.Appendf(nil, `{"anna": %d}`, saves)}, true))
	})
	b.target.Repair = true
	r := b.synced()
	assert.Equal(t, 2, saves, "the sync plans again, with resource.json: %s", r)
	assert.Len(t, r.Notes, 1, "one note: %v", r.Notes)
	assert.Equal(t, git, b.read(view))
	is := sha256.Sum256([]byte(git))
	assert.Equal(t, hex.EncodeToString(is[:]), b.gw.Data.Loaded(viewDir)["view.json"], "the gateway has loaded the file on the disk")
	saved := b.lost()
	assert.Len(t, saved, 2, "both files of the last save; the Designer replaced the earlier one")
	assert.Equal(t, `{"anna": 2}`, saved[view])
	assert.Contains(t, saved, viewDir+"/resource.json")
}
