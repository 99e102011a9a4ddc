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

// people simulates users who work on the gateways of a history and on their volumes.
type people struct {
	now   time.Time
	edits int
	// inherited lists, per node, resources not in git that were there at the first complete sync without records. fresh marks nodes
	// that have not had such a sync.
	inherited [2][]string
	fresh     [2]bool
}

// invite adds users to a history.
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
	require.NoError(t, os.WriteFile(filepath.Join(b.data, view), []byte(`{"by": "hand"}`), 0o644))
	saves := 0
	b.engine.Progress = func(step string, _, _ int) {
		if step != "apply" {
			return
		}
		saves++
		assert.NoError(t, b.gw.Designers.SaveResource(t.Context(), id, strings.TrimPrefix(viewDir, "projects/line/"),
			map[string][]byte{"view.json": fmt.Appendf(nil, `{"anna": %d}`, saves)}, true))
	}
	b.target.Repair = true
	r := b.synced()
	assert.Equal(t, 2, saves, "the sync plans again, with resource.json: %s", r)
	assert.Len(t, r.Notes, 1, "one note: %v", r.Notes)
	assert.Equal(t, git, b.read(view))
	is := sha256.Sum256([]byte(git))
	assert.Equal(t, hex.EncodeToString(is[:]), b.gw.Data.Loaded(viewDir)["view.json"], "the gateway has loaded the file on the disk")
	d, err := b.engine.Open()
	require.NoError(t, err)
	lost, err := d.LostAndFound()
	require.NoError(t, err)
	var saved []string
	for _, l := range lost {
		content, err := os.ReadFile(filepath.Join(b.data, ".stoker/lost+found", l.File))
		require.NoError(t, err)
		saved = append(saved, filepath.Base(l.Path)+" "+string(content[:min(len(content), 11)]))
	}
	slices.Sort(saved)
	assert.Len(t, saved, 2, "both files of the last save; the Designer replaced the earlier one")
	assert.Contains(t, saved, `view.json {"anna": 2}`)
	assert.True(t, slices.ContainsFunc(saved, func(s string) bool { return strings.HasPrefix(s, "resource.json ") }), "%v", saved)
}
