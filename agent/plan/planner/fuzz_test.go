package planner_test

import (
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/plan/planner"
	"stoker.io/stoker/agent/plan/plantest"
)

// world turns a fuzzer's bytes into decisions: which files git has, and what the gateway does.
type world struct {
	choices   []byte
	rendering bool
}

// next returns the next decision, a number below n.
func (w *world) next(n int) int {
	if len(w.choices) == 0 {
		return 0
	}
	c := int(w.choices[0])
	w.choices = w.choices[1:]
	return c % n
}

// gitPaths has files and directories of the same name, a complete resource, and an excluded file.
var gitPaths = []string{
	"p/a", "p/a/b", "p/a/c/d", "p/a.txt", "p/v/resource.json", "p/v/thumbnail.png", "p/v/view.json", "p/v/sub/x",
	"p/v-2/resource.json", "p/v-2/code.py", "p/skip/me", "q/a", "q/v/view.json", "q/v/resource.json",
}

// diskPaths are the destinations of gitPaths and other paths.
var diskPaths = []string{
	"projects/p/a", "projects/p/a/b", "projects/p/a/c/d", "projects/p/a.txt", "projects/p/v/resource.json",
	"projects/p/v/thumbnail.png", "projects/p/v/view.json", "projects/p/v/sub/x", "projects/p/v-2/resource.json",
	"projects/p/v-2/code.py", "projects/p/skip/me", "projects/p/v/v/view.json", "config/view.json",
	"config/resource.json", "projects/p/own", "projects/p/v/own", "projects/p/a/own", "other/own", "config/own",
	"projects/p/.resources/x",
}

// content returns values that may differ only in noise: the modification in resource.json, or white space in other JSON.
func (w *world) content(path string) string {
	n := w.next(6)
	switch path[strings.LastIndexByte(path, '/')+1:] {
	case resource.File:
		return []string{
			`{"a":1,"attributes":{"lastModification":1}}`, `{"a":1,"attributes":{"lastModification":2}}`,
			`{"attributes":{}, "a":1}`, `{"a":2,"attributes":{"lastModification":1}}`, `{"a":2,"attributes":{}}`, `torn`,
		}[n]
	case "view.json":
		return []string{`{"a":1}`, `{"a": 1}`, `{"b":1}`, `{"b":1 }`, `{}`, `torn`}[n]
	}
	return string(rune('a' + n))
}

// commit chooses the files of a commit. No file has the name of a directory.
func (w *world) commit() plantest.Files {
	files := make(plantest.Files)
	for _, path := range gitPaths {
		if w.next(3) == 0 {
			continue
		}
		taken := false
		for other := range files {
			taken = taken || strings.HasPrefix(path, other+"/") || strings.HasPrefix(other, path+"/")
		}
		if !taken {
			f := plantest.File{}
			if w.rendering && w.next(2) == 1 {
				f.Content = w.renderedContent(path)
			} else {
				f.Content = w.content(path)
			}
			if w.next(8) == 1 {
				f.Mode = plan.Executable
			}
			files[path] = f
		}
	}
	return files
}

// edit changes the disk as a gateway might.
func (w *world) edit(disk *plantest.Disk) {
	for range w.next(6) {
		path := diskPaths[w.next(len(diskPaths))]
		if at, _, _ := disk.Blocked(path); at != "" {
			continue
		}
		if st, _ := disk.Stat(path); st.Kind == plan.Dir {
			continue
		}
		switch w.next(6) {
		case 0:
			disk.Remove(path)
		case 1:
			disk.Remove(path)
			disk.Put(path, plan.Link)
		case 2:
			if st, _ := disk.Stat(path); st.Kind == plan.File {
				disk.Chmod(path, !st.Exec)
			}
		case 3:
			if st, _ := disk.Stat(path); st.Kind == plan.File {
				disk.Touch(path)
			}
		default:
			disk.Write(path, w.content(path))
		}
	}
}

// renderedContent returns templates, values that patches change, and signatures.
func (w *world) renderedContent(path string) string {
	n := w.next(6)
	switch path[strings.LastIndexByte(path, '/')+1:] {
	case resource.File:
		return []string{
			`{"files":["view.json"],"attributes":{"lastModificationSignature":"00"}}`,
			`{"files":["view.json","x"],"attributes":{"lastModification":{{json .Ref}},"lastModificationSignature":"01"}}`,
			`{"files":["code.py"],"a":1,"attributes":{"lastModificationSignature":"02"}}`, `{"files":["view.json"],"attributes":{}}`,
			`{"a":"{{.GatewayName}}","attributes":{}}`, `{"a":2}`,
		}[n]
	case "view.json":
		return []string{`{"a":1}`, `{"a":{{json .Commit}}}`, `{"b": {{json .Namespace}}}`, `{"b":"x"}`, `{}`, `{"a": "{{.Ref}}"}`}[n]
	}
	return []string{"a", "{{.GatewayName}}", "{{.Commit}}", "{{\x00", "{{if eq .Ref \"main\"}}b{{else}}{{.Vars}}{{end}}", "c"}[n]
}

// rules returns a function that returns the rules for a commit.
func (w *world) rules(t testing.TB) func(commit plan.ID) plan.Rules {
	var mappings []plan.Mapping
	for _, m := range []plan.Mapping{
		{Source: "p", Destination: "projects/p"},
		{Source: "q", Destination: "projects/p"},
		{Source: "q", Destination: "projects/p/v"},
		{Source: "p/v", Destination: "config"},
	} {
		if len(mappings) == 0 || w.next(3) == 1 {
			mappings = append(mappings, m)
		}
	}
	patterns := []string{"**/.resources/**"}
	if w.next(2) == 1 {
		patterns = append(patterns, "projects/*/skip/")
	}
	excludes, err := plan.NewExcludes(patterns)
	require.NoError(t, err)
	rules, err := plan.NewRules(plan.Rules{
		Mappings: mappings, Excludes: excludes,
		Conflict: []plan.ConflictPolicy{plan.GitWins, plan.GitWins, plan.Hold, plan.GatewayWins}[w.next(4)],
		Prune:    []plan.Prune{plan.PruneOwned, plan.PruneOwned, plan.PruneNone, plan.PruneMirror}[w.next(4)],
		Facts:    plan.Facts{GatewayName: []string{"a", "b"}[w.next(2)], Namespace: "n"},
	})
	require.NoError(t, err)
	if !w.rendering {
		return func(plan.ID) plan.Rules { return rules }
	}
	return w.renderingRules(rules)
}

// renderingRules adds templates, patches and a name to rules.
func (w *world) renderingRules(rules plan.Rules) func(commit plan.ID) plan.Rules {
	var template, patched, byCommit [4]bool
	for i := range rules.Mappings {
		template[i], patched[i], byCommit[i] = w.next(3) > 0, w.next(3) == 1, w.next(2) == 1
	}
	return func(commit plan.ID) plan.Rules {
		r := rules
		r.Facts.Commit, r.Facts.Ref = commit.String(), []string{"main", "other"}[commit[0]%2]
		r.Mappings = slices.Clone(rules.Mappings)
		for i := range r.Mappings {
			m := &r.Mappings[i]
			m.Template = template[i]
			set := plan.Setting{Path: "c", Value: r.Facts.GatewayName}
			if byCommit[i] {
				set.Value, set.Volatile = r.Facts.Ref, "{{.Ref}}"
			}
			if patched[i] {
				m.Patches = []plan.Patch{{Files: "**/{view,resource}.json", Set: []plan.Setting{set}}}
			}
		}
		return r
	}
}

// FuzzPlan applies random changes by git and the gateway. After each sync, the desired tree must be in place and other files
// unchanged. No bytes that only the gateway had may be lost, and the next plan must be empty.
func FuzzPlan(f *testing.F) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 64 {
		seed := make([]byte, 200)
		for i := range seed {
			seed[i] = byte(random.Uint32())
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, choices []byte) {
		play(t, &world{choices: choices})
		play(t, &world{choices: choices, rendering: true})
	})
}

// play runs the decisions of w and returns the applied plans.
func play(t *testing.T, w *world) (applied []*plan.Changes) {
	objects, disk, manifest := plantest.NewObjects(), plantest.NewDisk(nil), &plantest.Manifest{}
	rules, cache := w.rules(t), desired.NewCache()
	var previous *desired.Tree
	known := map[string]bool{"": true} // contents that git has or had
	for range 4 {
		w.edit(disk)
		files := w.commit()
		for _, f := range files {
			known[f.Content] = true
		}
		if w.next(4) == 1 {
			rules = w.rules(t)
		}
		if w.next(4) == 1 {
			cache = desired.NewCache()
		}
		commit := objects.Commit(files)
		desired, err := cache.NewTree(objects, commit, rules(commit))
		require.NoError(t, err)
		in := planner.Input{
			Desired: desired, Previous: previous, Manifest: manifest, State: disk, AllowMassDeletion: true,
			From: manifest.Head.Commit, To: desired.Root(), Repair: w.next(4) == 1, Verify: w.next(8) == 1,
		}
		changes, err := planner.Compute(in)
		if err != nil || changes.Held != nil {
			continue // other tests cover refused and held plans
		}
		for want, err := range desired.Walk() {
			require.NoError(t, err)
			var b strings.Builder
			_, err = desired.WriteBlob(&b, want.ID)
			require.NoError(t, err)
			known[b.String()] = true
		}
		before := disk.Files()
		next, lost := plantest.Apply(t, changes, desired.Rules(), desired, disk, manifest)
		if t.Failed() {
			t.Fatalf("%s", changes)
		}
		c := check{t: t, in: in, changes: changes, before: before, disk: disk, lost: lost, known: known, next: next}
		c.desired()
		c.foreign()
		c.coherent()
		c.lostBytes()
		c.second()
		manifest, previous = next, desired
		applied = append(applied, changes)
	}
	return applied
}

// check compares the disk and the manifest after an applied plan with what they must be.
type check struct {
	t            *testing.T
	in           planner.Input
	changes      *plan.Changes
	before, lost map[string]string
	known        map[string]bool
	disk         *plantest.Disk
	next         *plantest.Manifest
}

// desired checks that every desired file is on disk, unless the gateway's version may stay.
func (c *check) desired() {
	kept := make(map[string]bool)
	for _, x := range c.changes.List {
		kept[x.Path] = x.Op == plan.Keep
	}
	drifted := 0
	for want, err := range c.in.Desired.Walk() {
		require.NoError(c.t, err)
		content, ok := c.disk.Content(want.Path)
		if kept[want.Path] || ok && plantest.BlobID([]byte(content)) == want.ID {
			continue
		}
		if ok && c.noise(want, content) {
			continue
		}
		rec, ours := c.next.Records[want.Path]
		if !ours && !c.changes.Full {
			continue // kept by an earlier sync and not compared since
		}
		st, _ := c.disk.Stat(want.Path)
		if changed := st.Mtime != rec.Mtime; changed && (!c.in.Repair || c.in.Desired.Rules().Conflict == plan.GatewayWins) {
			drifted++
			continue
		}
		c.t.Fatalf("%s is not as in git but %q\n%s", want.Path, content, c.changes)
	}
	if c.changes.Full && drifted < c.changes.Drifted-c.chmods() {
		c.t.Fatalf("%d files drifted, the plan says %d\n%s", drifted, c.changes.Drifted, c.changes)
	}
}

// chmods counts the files with drift only in their mode.
func (c *check) chmods() int {
	n := 0
	for path, rec := range c.next.Records {
		if st, _ := c.disk.Stat(path); st.Kind == plan.File && st.Exec != rec.Exec {
			n++
		}
	}
	return n
}

// noise reports whether content differs from git's file only in bytes without meaning.
func (c *check) noise(want desired.File, content string) bool {
	var git strings.Builder
	_, err := c.in.Desired.WriteBlob(&git, want.ID)
	require.NoError(c.t, err)
	var same bool
	switch {
	case strings.HasSuffix(want.Path, "/"+resource.File):
		same, err = resource.SameButModification([]byte(content), []byte(git.String()))
	case strings.HasSuffix(want.Path, ".json"):
		same, err = resource.SameJSON([]byte(content), []byte(git.String()))
	default:
		same = strings.HasSuffix(want.Path, "/"+resource.Thumbnail)
	}
	return err == nil && same
}

// foreign checks that files that are neither desired nor owned are unchanged.
func (c *check) foreign() {
	wanted := make(map[string]bool)
	for want, err := range c.in.Desired.Walk() {
		require.NoError(c.t, err)
		wanted[want.Path] = true
	}
	for path, content := range c.before {
		_, ours, _ := c.in.Manifest.Get(path)
		mirrored := c.in.Desired.Rules().Prune == plan.PruneMirror && !strings.Contains(path, ".resources/")
		if wanted[path] || ours || mirrored {
			continue
		}
		now, ok := c.disk.Content(path)
		require.True(c.t, ok && now == content, "%s is not owned and was changed\n%s", path, c.changes)
	}
}

// coherent checks resource.json when a sync writes another file of its resource. It must be git's version byte for byte, or be
// signed for the files on disk.
func (c *check) coherent() {
	if c.in.Desired.Rules().Conflict == plan.GatewayWins {
		return
	}
	for _, x := range c.changes.List {
		if x.Op != plan.Create && x.Op != plan.Update && x.Op != plan.Delete {
			continue
		}
		path := x.Path[:strings.LastIndexByte(x.Path, '/')+1] + resource.File
		want, ok, err := c.in.Desired.Lookup(path)
		require.NoError(c.t, err)
		content, there := c.disk.Content(path)
		if ok && there && plantest.BlobID([]byte(content)) != want.ID && !c.fits(path, content) {
			c.t.Fatalf("%s was written, but %s is not git's\n%s", x.Path, path, c.changes)
		}
	}
}

// fits reports whether the signature of a resource.json matches the files on disk.
func (c *check) fits(path, content string) bool {
	s, err := resource.ParseSigned([]byte(content))
	if err != nil || len(s.Files()) == 0 {
		return false
	}
	sum, err := s.Signature(resource.Form83, func(w io.Writer, name string) error {
		beside, _ := c.disk.Content(strings.TrimSuffix(path, resource.File) + name)
		_, err := io.WriteString(w, beside)
		return err
	})
	return err == nil && sum == s.Stored()
}

// lostBytes checks that bytes that git never had are still on disk or in lost+found, except for noise.
func (c *check) lostBytes() {
	for path, content := range c.before {
		if now, ok := c.disk.Content(path); ok && now == content || c.known[content] || c.lost[path] == content {
			continue
		}
		if strings.HasSuffix(path, "/"+resource.Thumbnail) || c.knownMeaning(path, content) {
			continue
		}
		c.t.Fatalf("%s had %q, which is lost\n%s", path, content, c.changes)
	}
}

// knownMeaning reports whether JSON means the same as a version that git has or had.
func (c *check) knownMeaning(path, content string) bool {
	for known := range maps.Keys(c.known) {
		same, err := resource.SameButModification([]byte(known), []byte(content))
		if err == nil && same && strings.HasSuffix(path, ".json") {
			return true
		}
	}
	return false
}

// second checks that the next plan is empty. After a full plan, this includes the next full plan. An incremental plan leaves the
// gateway's other changes to the next full one.
func (c *check) second() {
	in := c.in
	in.Manifest, in.From = c.next, c.next.Head.Commit
	if in.Desired.Rules().Conflict == plan.GatewayWins {
		in.Repair = false // if git reverts to the last written version, a kept file becomes plain drift
	}
	previous := []*desired.Tree{in.Desired}
	if c.changes.Full {
		previous = append(previous, nil)
	}
	for _, p := range previous {
		in.Previous = p
		again, err := planner.Compute(in)
		require.NoError(c.t, err)
		for _, x := range again.List {
			if x.Op != plan.Keep {
				c.t.Fatalf("the first plan\n%sthe second plan\n%s", c.changes, again)
			}
		}
	}
}

// TestRandomWorlds plays more worlds than a fuzz corpus holds. It checks that most plans are applied and that every kind of change
// occurs.
func TestRandomWorlds(t *testing.T) {
	worlds := 1000
	if testing.Short() {
		worlds = 250
	}
	random := rand.New(rand.NewPCG(3, 4))
	plans, incremental, sum := 0, 0, plan.Counts{}
	rendered := 0
	for i := range worlds {
		choices := make([]byte, 300)
		for i := range choices {
			choices[i] = byte(random.Uint32())
		}
		for _, c := range play(t, &world{choices: choices, rendering: i%2 == 1}) {
			plans++
			rendered += i % 2
			if !c.Full {
				incremental++
			}
			n := c.Counts()
			sum.Added, sum.Modified, sum.Deleted = sum.Added+n.Added, sum.Modified+n.Modified, sum.Deleted+n.Deleted
			sum.Kept, sum.Adopted, sum.Released = sum.Kept+n.Kept, sum.Adopted+n.Adopted, sum.Released+n.Released
			sum.Conflicts += n.Conflicts
		}
	}
	t.Logf("%d plans, %d of them incremental: %s", plans, incremental, sum)
	assert.Greater(t, plans, worlds*2)
	assert.Greater(t, incremental, worlds/4)
	assert.Greater(t, rendered, worlds/4)
	for _, n := range []int{sum.Added, sum.Modified, sum.Deleted, sum.Kept, sum.Adopted, sum.Released, sum.Conflicts} {
		assert.Greater(t, n, worlds/10)
	}
}
