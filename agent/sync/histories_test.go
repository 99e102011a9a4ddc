package sync_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// Commits, syncs, failovers and pauses of the replication occur in random order, without manual edits. A node that reports Synced
// or Standby must have the files of that commit and name any resource that is not in git. No sync may fail or be held.
//
// The second group adds volumes that lose the agent's records or all files, users who edit files and create views, and prune
// mirror. A file may differ from git only because of a user's edit, never because it is an older version. No node may wait forever.
func TestPairSyncedHasCommit(t *testing.T) {
	t.Parallel() // it waits for the gateway most of the time
	if os.Getenv(flipEnv) != "" {
		t.Skip("takes long, and runs without flipped unknowns")
	}
	policies := []v1alpha1.ConflictPolicy{v1alpha1.ConflictGitWins, v1alpha1.ConflictHold, v1alpha1.ConflictGatewayWins}
	alone, among := []uint64{2, 14, 15, 28, 34, 58}, []uint64{0, 1, 2, 3, 4, 5}
	if testing.Short() { // one of each policy
		alone, among = []uint64{14, 15, 28}, []uint64{0, 4, 5}
	}
	for _, seed := range alone {
		policy := policies[seed%3]
		t.Run(fmt.Sprintf("%d %s", seed, policy), func(t *testing.T) { newHistory(t, seed, policy).run(40) })
	}
	for _, seed := range among {
		policy := policies[seed%3]
		t.Run(fmt.Sprintf("%d %s with users", seed, policy), func(t *testing.T) {
			h := newHistory(t, seed, policy)
			h.invite(seed >= 3)
			h.run(40)
			h.settle()
		})
	}
}

type history struct {
	pair
	t      *testing.T
	dice   *rand.Rand
	nodes  [2]*bench
	looked [2]bool // synced since the last failover
	want   map[string]string
	log    []string

	people *people // nil without users
	active int     // the node with config access
}

func newHistory(t *testing.T, seed uint64, policy v1alpha1.ConflictPolicy) *history {
	h := &history{pair: newPair(t, simulator.Options{}), t: t, dice: rand.New(rand.NewPCG(seed, 7)), looked: [2]bool{true, true}, want: map[string]string{}}
	h.nodes = [2]*bench{h.master, h.backup}
	for _, b := range h.nodes {
		b.target.Profile.ConflictPolicy = policy
	}
	h.commit(map[string]string{
		"projects/line/project.json":         project("", false),
		"config/resources/core/kept.txt":     "keeps the source",
		"config/resources/external/kept.txt": "keeps this source, too",
		view:                                 `{"n":0}`,
		viewDir + "/resource.json":           listing("view.json"),
	})
	h.master.synced()
	h.backup.standby()
	return h
}

func listing(file string) string {
	return `{"scope":"G","version":1,"restricted":false,"overridable":true,"files":["` + file + `"],"attributes":{}}`
}

func (h *history) say(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

func (h *history) run(steps int) {
	for range steps {
		if h.people != nil && h.dice.IntN(3) == 0 {
			h.live()
			continue
		}
		switch k := h.dice.IntN(12); {
		case k < 4:
			h.change()
		case k < 10:
			h.sync(h.dice.IntN(2))
		case k < 11 && h.looked == [2]bool{true, true}:
			h.Failover(true)
			h.looked = [2]bool{}
			h.active = 1 - h.active
			h.say("failover")
		case k == 11:
			paused := h.dice.IntN(2) == 0
			h.Pause(paused)
			require.NoError(h.t, h.Replicate())
			h.say("copying paused: %t", paused)
		}
	}
}

// resources maps the resources that come and go to their data file.
var resources = map[string]string{
	viewDir: "view.json",
	"projects/line/com.inductiveautomation.perspective/views/two": "view.json",
	db: "config.json", external: "config.json",
}

// change creates, changes or deletes one of the resources in git.
func (h *history) change() {
	dir := slices.Sorted(maps.Keys(resources))[h.dice.IntN(len(resources))]
	file := resources[dir]
	edits := map[string]string{dir + "/" + file: "", dir + "/resource.json": ""}
	if h.dice.IntN(4) > 0 {
		edits[dir+"/"+file], edits[dir+"/resource.json"] = fmt.Sprintf(`{"n":%d}`, h.dice.IntN(4)), listing(file)
	}
	if h.dice.IntN(3) == 0 {
		edits["projects/line/README.md"] = fmt.Sprint(len(h.log))
	}
	h.commit(edits)
}

// commit pushes contents; "" deletes the file.
func (h *history) commit(edits map[string]string) {
	var list []gitserver.Edit
	for _, path := range slices.Sorted(maps.Keys(edits)) {
		content := edits[path]
		_, there := h.want[path]
		switch {
		case content != "":
			h.want[path] = content
			list = append(list, gitserver.Write(path, content))
		case there:
			delete(h.want, path)
			list = append(list, gitserver.Delete(path))
		}
	}
	if len(list) == 0 {
		return
	}
	id := h.push(list...)
	h.say("%s: %v", id.Short(), edits)
}

func (h *history) sync(node int) *sync.Report {
	b := h.nodes[node]
	b.target.Repair = h.dice.IntN(5) == 0
	r := b.sync()
	h.looked[node] = true
	h.say("node %d (repair %t): %s", node, b.target.Repair, r)
	if r.Phase == v1alpha1.GatewayPending {
		return r
	}
	require.Contains(h.t, []v1alpha1.GatewaySyncState{v1alpha1.GatewaySynced, v1alpha1.GatewayStandby}, r.Phase, h)
	require.Equal(h.t, b.target.Commit, r.Commit, h)
	for path, content := range h.want {
		got := b.read(path)
		if strings.HasSuffix(path, "resource.json") && got != "" {
			continue // the gateway signs this file
		}
		if h.edited(got) {
			continue
		}
		require.Equal(h.t, content, got, "node %d, %s\n%s", node, path, h)
	}
	for dir, file := range resources {
		path := dir + "/" + file
		if got := b.read(path); h.want[path] == "" && got != "" && !h.edited(got) && !h.inherited(node, dir) {
			require.Contains(h.t, r.Message, dir, "node %d does not report %s, which is not in git\n%s", node, path, h)
		}
	}
	h.met(node)
	return r
}

func (h *history) String() string { return strings.Join(h.log, "\n") }
