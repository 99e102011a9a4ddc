package planner_test

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/planner"
	"stoker.io/stoker/agent/plan/plantest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// caseless is a volume that ignores case, such as SMB.
type caseless struct{ *plantest.Disk }

func (d caseless) real(path string) string {
	for p := range d.Files() {
		if strings.EqualFold(p, path) {
			return p
		}
	}
	return path
}

func (d caseless) Stat(path string) (plan.Stat, error) { return d.Disk.Stat(d.real(path)) }

func (d caseless) BlobID(path string) (plan.ID, error) { return d.Disk.BlobID(d.real(path)) }

func (d caseless) Read(path string, limit int64) ([]byte, error) {
	return d.Disk.Read(d.real(path), limit)
}

const (
	upper = "projects/p/views/Main/view.json"
	lower = "projects/p/views/main/view.json"
)

func TestCaseRename(t *testing.T) {
	for _, policy := range []plan.ConflictPolicy{plan.GitWins, plan.GatewayWins} {
		for content, want := range map[string]plan.Op{"same": plan.Adopt, "new": plan.Update} {
			t.Run(policyNames[policy]+", "+content+" content", func(t *testing.T) {
				bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
					s := newScene(t, nil)
					s.rules.Conflict = policy
					s.sync(plantest.Pairs("projects/p/project.json", "{}", upper, "same"))
					c, err := s.plan(plantest.Pairs("projects/p/project.json", "{}", lower, content), mode, func(in *planner.Input) { in.State = caseless{s.disk} })
					require.NoError(t, err)
					assert.Nil(t, c.Held)
					assert.Equal(t, map[string]plan.Op{upper: plan.Release, lower: want}, done(c))
					assert.Equal(t, 2, c.Total)

					c = s.sync(plantest.Pairs("projects/p/project.json", "{}", lower, content), mode)
					assert.Equal(t, map[string]plan.Op{upper: plan.Delete, lower: plan.Create}, done(c), "on a volume that distinguishes case")
				})
			})
		}
	}
}

// A commit that changes only the case of a file's name is not a conflict unless the gateway changed the file. Under hold, a false
// conflict would stop all syncs.
func TestCaseRenameOfEditedFile(t *testing.T) {
	for name, c := range map[string]struct {
		there, git string // content on the gateway, at the old name, and in the commit, at the new name; it was 1 in both
		want       plan.Op
		held       []string
	}{
		"unchanged on the gateway, changed in git": {"1", "2", plan.Update, nil},
		"changed on the gateway and in git":        {"by hand", "2", plan.Update, []string{lower}},
		"changed on the gateway, not in git":       {"by hand", "1", plan.Update, []string{lower}},
		"changed on the gateway as in git":         {"2", "2", plan.Adopt, nil},
	} {
		for prune, rule := range map[string]plan.Prune{"owned": plan.PruneOwned, "none": plan.PruneNone} {
			t.Run(name+", prune "+prune, func(t *testing.T) {
				bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
					s := newScene(t, nil)
					s.rules.Conflict, s.rules.Prune = plan.Hold, rule
					s.sync(plantest.Pairs("projects/p/project.json", "{}", upper, "1"))
					if c.there != "1" {
						s.disk.Write(upper, c.there)
					}
					got, err := s.plan(plantest.Pairs("projects/p/project.json", "{}", lower, c.git), mode, func(in *planner.Input) { in.State = caseless{s.disk} })
					require.NoError(t, err)
					assert.Equal(t, map[string]plan.Op{upper: plan.Release, lower: c.want}, done(got))
					if c.held == nil {
						assert.Nil(t, got.Held)
						return
					}
					require.NotNil(t, got.Held)
					assert.Equal(t, v1alpha1.ReasonConflictDetected, got.Held.Reason)
					assert.Contains(t, got.Held.Message, "different versions of 1 file")
					assert.Equal(t, c.held, got.Held.Paths)
				})
			})
		}
	}
}

func TestCaseRenameUnderMirror(t *testing.T) {
	s := newScene(t, map[string]string{"projects/p/project.json": "{}", upper: "1", "projects/p/views/Mine/view.json": "1"})
	s.rules.Prune = plan.PruneMirror
	ignoreCase := func(in *planner.Input) { in.State = caseless{s.disk} }
	files := plantest.Pairs("projects/p/project.json", "{}", lower, "1", "config/x", "1")
	c := s.sync(files, ignoreCase)
	assert.NotContains(t, done(c), upper)
	assert.Equal(t, plan.Adopt, done(c)[lower])
	assert.Equal(t, plan.Delete, done(c)["projects/p/views/Mine/view.json"])
	for f, err := range s.input(files).Desired.Unwanted(s.manifest, caseless{s.disk}) {
		require.NoError(t, err)
		assert.NotEqual(t, upper, f.Path, "it is the desired file under its old name, and no new file of a user")
	}
	for _, mode := range []func(*planner.Input){nothing, full} {
		assert.NotContains(t, done(s.sync(files, ignoreCase, mode)), upper, "the next plan does not delete the file either")
	}
}

// A volume may ignore case and distinguish Unicode normalization. Then two files can have names that other volumes treat as equal.
func TestTwoSpellingsUnderMirror(t *testing.T) {
	const desired, same, other = "projects/p/A\u0308/view.json", "projects/p/a\u0308/view.json", "projects/p/\u00e4/view.json"
	for name, owned := range map[string]bool{"owned": true, "not owned": false} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, map[string]string{"projects/p/project.json": "{}", other: "2"})
			if owned {
				s.sync(plantest.Pairs("projects/p/project.json", "{}", same, "1"))
			} else {
				s.disk.Write(same, "1")
			}
			s.rules.Prune = plan.PruneMirror
			next := plantest.Pairs("projects/p/project.json", "{}", desired, "1")
			ignored := func(in *planner.Input) { in.State = caseless{s.disk} }
			c := s.sync(next, ignored)
			assert.NotEqual(t, plan.Delete, done(c)[same], "it is the desired file")
			assert.Equal(t, plan.Adopt, done(c)[desired])
			assert.Equal(t, plan.Delete, done(c)[other])
			s.disk.Write(other, "3")
			assert.Equal(t, map[string]plan.Op{other: plan.Delete}, done(s.sync(next, ignored)))
		})
	}
}

const (
	mountedFile = "config/resources/core/ignition/database-connection/erp/config.json"
	sibling     = "config/resources/core/ignition/database-connection/erp/resource.json"
	mountedDir  = "config/resources/external/keys"
)

// The gateway mounts a file and a directory over paths that the agent synced before. From then on, the agent releases the files there,
// leaves them alone in every commit, and reports the mounts. When the mounts are gone, the agent syncs the paths again.
func TestMountIsNotSynced(t *testing.T) {
	for name, prune := range map[string]plan.Prune{"owned": plan.PruneOwned, "mirror": plan.PruneMirror} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
				s := newScene(t, nil)
				s.rules.Prune = prune
				one := plantest.Pairs(mountedFile, "placeholder", sibling, "{}", mountedDir+"/a", "a", mountedDir+"/b", "b", mountedDir+"s", "s", "projects/p/x", "1")
				s.sync(one)
				old := s.rules.Fingerprint()

				s.rules.Mounts = plan.NewMounts([]string{mountedDir, mountedFile, "jar-cache", mountedDir + "/a"})
				require.NotEqual(t, old, s.rules.Fingerprint(), "a new or removed mount changes the rules, so the next plan compares every file")
				c := s.sync(one)
				assert.Equal(t, map[string]plan.Op{mountedFile: plan.Release, mountedDir + "/a": plan.Release, mountedDir + "/b": plan.Release}, done(c))
				assert.Equal(t, []string{mountedFile, mountedDir}, c.Mounted)
				require.Len(t, c.Warnings, 2)
				assert.Contains(t, c.Warnings[0], mountedFile+" is not synced")
				assert.Contains(t, c.Warnings[0], "exclude the path")
				assert.Contains(t, c.Summary(), "not synced because the gateway has mounts there: "+mountedFile+", "+mountedDir)

				c = s.sync(plantest.Pairs(mountedFile, "other", sibling, `{"version": 2}`, mountedDir+"/a", "A", mountedDir+"s", "s", "projects/p/x", "1"), mode)
				assert.Equal(t, map[string]plan.Op{sibling: plan.Update}, done(c))
				c = s.sync(plantest.Pairs(sibling, `{"version": 2}`, mountedDir+"s", "s", "projects/p/x", "2"), mode)
				assert.Equal(t, map[string]plan.Op{"projects/p/x": plan.Update}, done(c), "git has deleted the mounted files, and the agent does not")
				assert.Empty(t, c.Mounted)
				c = s.sync(plantest.Pairs(mountedFile, "third", sibling, `{"version": 2}`, mountedDir+"s", "s", "projects/p/x", "3"), mode)
				assert.Equal(t, map[string]plan.Op{"projects/p/x": plan.Update}, done(c))
				c = s.sync(plantest.Pairs(mountedFile, "third", sibling, `{"version": 2}`, mountedDir+"s", "s", "projects/p/x", "4"), mode)
				assert.Equal(t, []string{mountedFile}, c.Mounted, "reported for every commit, even if it does not change the mounted file")
				assert.Equal(t, map[string]plan.Op{"projects/p/x": plan.Update}, done(c))
				s.has(mountedFile, "placeholder")
				s.has(mountedDir+"/b", "b")
				assert.Empty(t, s.lost)

				s.rules.Mounts = plan.Mounts{}
				c = s.sync(plantest.Pairs(mountedFile, "third", sibling, `{"version": 2}`, mountedDir+"/a", "a", mountedDir+"s", "s", "projects/p/x", "4"), approve)
				assert.Equal(t, plan.Update, change(t, c, mountedFile).Op, "without the mount, the file is like any file that the agent does not own")
				assert.Equal(t, plan.Adopt, change(t, c, mountedDir+"/a").Op)
				s.has(mountedFile, "third")
			})
		})
	}
}

func TestMountIgnoresCase(t *testing.T) {
	s := newScene(t, nil)
	s.rules.Mounts = plan.NewMounts([]string{"Config/Resources/core/k", "../outside", ".", "", "/abs", "a\tb"})
	c := s.sync(plantest.Pairs("config/resources/core/K/x", "1", "config/resources/core/kk", "1"))
	assert.Equal(t, map[string]plan.Op{"config/resources/core/kk": plan.Create}, done(c))
	assert.Equal(t, []string{"Config/Resources/core/k"}, c.Mounted)
}

func TestExcludedMountIsNotReported(t *testing.T) {
	s := newScene(t, nil)
	s.rules.Mounts = plan.NewMounts([]string{mountedFile, mountedDir})
	s.rules.Excludes = plantest.Excludes(t, mountedFile, mountedDir+"/")
	c := s.sync(plantest.Pairs(mountedFile, "placeholder", mountedDir+"/a", "a", sibling, "{}", "projects/p/x", "1"))
	assert.Equal(t, map[string]plan.Op{sibling: plan.Create, "projects/p/x": plan.Create}, done(c))
	assert.Empty(t, c.Mounted)
	assert.Empty(t, c.Warnings)
}

// Replacing a directory with a file would also unmount what is mounted in the directory.
func TestFileAboveMountIsRefused(t *testing.T) {
	s := newScene(t, nil)
	s.rules.Mounts = plan.NewMounts([]string{mountedDir + "/deep/in"})
	_, err := s.plan(plantest.Pairs(mountedDir, "a file", "projects/p/x", "1"))
	assert.Equal(t, v1alpha1.ReasonPathCollision, failure.Reason(err, ""))
	require.ErrorContains(t, err, mountedDir)
	require.ErrorContains(t, err, mountedDir+"/deep/in")
	_, err = s.plan(plantest.Pairs(mountedDir+"/deep/on", "a file next to the mount", "projects/p/x", "1"))
	require.NoError(t, err)
}

// The destination of a mapping may be a mount, or be below one.
func TestMappingToMountIsNotSynced(t *testing.T) {
	s := newScene(t, nil)
	s.rules = plantest.Rules(t, plan.Rules{
		Mappings: plantest.Mappings(t, "a.json", mountedFile, "dir", mountedDir+"/in/it", "projects", "projects"),
		Mounts:   plan.NewMounts([]string{mountedFile, mountedDir}),
	})
	c := s.sync(plantest.Pairs("a.json", "{}", "dir/x", "1", "projects/p/x", "1"))
	assert.Equal(t, map[string]plan.Op{"projects/p/x": plan.Create}, done(c))
	assert.ElementsMatch(t, []string{mountedFile, mountedDir}, c.Mounted)
	assert.Contains(t, strings.Join(c.Warnings, "\n"), mountedDir+" is not synced")
}

// The following tests cover resources that a user edited in git without updating the signature. If resource.json is unchanged, a gateway
// may ignore the edit.

// listing returns a resource.json that lists view.json and has a signature.
func listing(version, signature string) string {
	return `{"scope":"A","version":` + version + `,"files":["view.json"],"attributes":{"lastModification":{"actor":"git"},"lastModificationSignature":"` + signature + `"}}`
}

// byHand returns a commit with an edited view, and with a resource.json whose signature does not match it.
func byHand(content string) plantest.Files {
	return plantest.Pairs(view, content, meta, listing("1", "aa"))
}

// validMeta checks that the signature of the resource.json on the scene's disk matches the view, and returns the resource.json.
func (s *scene) validMeta() string {
	s.t.Helper()
	doc, ok := s.disk.Content(meta)
	require.True(s.t, ok)
	r, err := resource.ParseSigned([]byte(doc))
	require.NoError(s.t, err)
	sum, err := r.Signature(resource.Form83, func(w io.Writer, name string) error {
		content, ok := s.disk.Content(strings.TrimSuffix(meta, resource.File) + name)
		assert.True(s.t, ok, name)
		_, err := io.WriteString(w, content)
		return err
	})
	require.NoError(s.t, err)
	assert.Equal(s.t, sum, r.Stored())
	return doc
}

func TestHandEditedViewIsSigned(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newScene(t, nil)
		s.rules.Conflict = plan.Hold
		assert.Empty(t, s.sync(byHand("v1")).Signed, "a new resource is written as in git")
		s.has(meta, listing("1", "aa"))
		seen := map[string]bool{listing("1", "aa"): true}
		// sequence: one edit after the other
		for _, content := range []string{"v2", "v3", "v1"} {
			c := s.sync(byHand(content), mode)
			assert.Equal(t, map[string]plan.Op{view: plan.Update, meta: plan.Update}, done(c), content)
			assert.Equal(t, map[string]plan.ID{meta: plantest.BlobID([]byte(listing("1", "aa")))}, c.Signed)
			doc := s.validMeta()
			assert.False(t, seen[doc], "the gateway has already seen this one: %s", doc)
			seen[doc] = true
			assert.Equal(t, c.Signed[meta], s.manifest.Records[meta].Want)
			assert.Empty(t, s.sync(byHand(content), full).List, "the next plan is empty")
			assert.Empty(t, s.sync(byHand(content), verify).List)
		}
		assert.Empty(t, s.lost)

		t.Run("a new signature of the gateway is not a conflict", func(t *testing.T) {
			s.disk.Write(meta, listing("1", "bb"))
			c := s.sync(plantest.Pairs(view, "v1", meta, listing("2", "cc")), mode)
			assert.Equal(t, map[string]plan.Op{meta: plan.Update}, done(c))
			assert.Zero(t, c.Counts().Conflicts)
			s.has(meta, listing("2", "cc"))
		})
	})
}

func TestForeignViewIsSigned(t *testing.T) {
	s := newScene(t, map[string]string{view: "gateway", meta: listing("1", "aa")})
	c := s.sync(byHand("v1"))
	assert.Equal(t, map[string]plan.Op{view: plan.Update, meta: plan.Update}, done(c))
	s.validMeta()
	assert.Equal(t, map[string]string{view: "gateway", meta: listing("1", "aa")}, s.lost, "lost+found gets the whole resource")
	assert.Empty(t, s.sync(byHand("v1"), full).List)
}

func TestValidSignatureStays(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		unsigned := `{"scope":"A","version":1,"files":["view.json"],"attributes":{}}`
		s := newScene(t, nil)
		s.sync(plantest.Pairs(view, "v1", meta, unsigned))
		assert.Equal(t, map[string]plan.Op{view: plan.Update}, done(s.sync(plantest.Pairs(view, "v2", meta, unsigned), mode)))
		s.sync(plantest.Pairs(view, "v2", meta, listing("1", "aa")), mode)
		s.sync(plantest.Pairs(view, "v3", meta, listing("1", "aa")), mode)
		right := s.validMeta()

		other := newScene(t, nil)
		other.sync(plantest.Pairs(view, "v3", code, "c1", meta, right))
		c := other.sync(plantest.Pairs(view, "v3", code, "c2", meta, right), mode)
		assert.Equal(t, map[string]plan.Op{code: plan.Update}, done(c), "a file that is not part of the resource")
	})
}
