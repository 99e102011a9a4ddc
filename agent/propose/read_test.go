package propose

import (
	"errors"
	"io"
	"io/fs"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// unreadable is a disk whose files can be hashed, and not read.
type unreadable struct {
	plan.State
	err error
}

func (u unreadable) CopyFile(io.Writer, string) error { return u.err }

func TestBuildReadErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		err      error
		changing bool
	}{
		"removed":     {fs.ErrNotExist, true},
		"not allowed": {fs.ErrPermission, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := savedScene(t)
			b := s.base()
			b.State = unreadable{s.disk, tc.err}
			_, err := Build(b, []string{view + "view.json"}, generous, noGuard)
			require.Error(t, err)
			assert.Equal(t, tc.changing, errors.Is(err, errChanging), "%v", err)
		})
	}
	for name, text := range map[string]string{"changed": `{"v":3}`, "grown": `{"v":2} `, "shorter": `{"v":2`} {
		t.Run(name+" while the files are read", func(t *testing.T) {
			s := savedScene(t)
			b := s.base()
			b.State = stale{s.disk, text}
			_, err := Build(b, []string{view + "view.json"}, generous, noGuard)
			assert.ErrorIs(t, err, errChanging)
		})
	}
}

// stale is a disk whose files change after they were hashed.
type stale struct {
	plan.State
	text string
}

func (s stale) CopyFile(w io.Writer, _ string) error {
	_, err := io.WriteString(w, s.text)
	return err
}

// TestBuildMemory: a proposal that exceeds its limits holds no more content than they allow.
func TestBuildMemory(t *testing.T) {
	for name, limits := range map[string]Limits{
		"bytes": {FileBytes: 1 << 20, TotalBytes: 5000, Files: 100},
		"files": {FileBytes: 1 << 20, TotalBytes: 1 << 20, Files: 5},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, withView(t, `{"v":1}`))
			var added []string
			for i := range 50 {
				p := "projects/line/scripts/" + string(rune('A'+i)) + ".py"
				s.disk.Write(p, strings.Repeat("x", 1000))
				added = append(added, p)
			}
			x := newBuilder(s.base(), limits, noGuard)
			for _, u := range x.units(added) {
				require.NoError(t, x.addUnit(u))
			}
			assert.Len(t, x.out.Files, 50)
			assert.Len(t, x.content, 5)
			assert.Len(t, x.edits, 5)
			x.checkLimits()
			require.Len(t, x.out.Refused, 1)
			assert.Equal(t, v1alpha1.ReasonLimitExceeded, x.out.Refused[0].Reason)
		})
	}
}

// TestCompareLargeJSON: git's version of a small file is not read into memory if it is large.
func TestCompareLargeJSON(t *testing.T) {
	files := withView(t, `{"v":1}`)
	const page = "com.inductiveautomation.perspective/page-config/config.json"
	files["site/projects/line/"+page] = `{"pages":{}` + strings.Repeat(" ", resource.MaxCompared) + "}"
	s := newScene(t, files)
	s.disk.Write("projects/line/"+page, `{"pages":{}}`)
	x := newBuilder(s.base(), generous, noGuard)
	c, differs, err := x.compare("projects/line/" + page)
	require.NoError(t, err)
	assert.True(t, differs)
	assert.False(t, c.noise, "a file that is too large to compare counts as changed, even if it is equivalent JSON")
}

// TestLongGatewayName: an agent recognizes its own commits after a restart.
func TestLongGatewayName(t *testing.T) {
	g := newPlant(t).gateway("a")
	g.settings.Gateway = strings.Repeat("g", 230)
	g.proposes(`{"v":2}`)
	require.Equal(t, v1alpha1.ProposalOpen, g.state())
	g.restart()
	g.save(`{"v":3}`)
	g.settle(2 * minute)
	assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
}

// TestUnreadableTip: a failure to read the tip of the branch does not make it that of another author.
func TestUnreadableTip(t *testing.T) {
	pl, g := opened(t)
	g.restart()
	g.textErr = failure.New(v1alpha1.ReasonGitUnreachable, "connection reset")
	g.save(`{"v":3}`)
	g.settle(time.Hour)
	assert.Nil(t, g.textErr)
	assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
	assert.Equal(t, "2", pl.repo.Git("rev-list", "--count", "main..gateway-changes/plants/a"))
}

// TestOtherBranch: the record of a proposal ends when the spec names another branch, so that "agent proposal show" does not list it.
func TestOtherBranch(t *testing.T) {
	_, g := opened(t)
	g.settings.Branch = "gateway-changes/other"
	g.undo()
	g.settle(time.Hour)
	require.Empty(t, g.state())
	recorded, err := LoadSummary(g.notes)
	require.NoError(t, err)
	assert.Empty(t, recorded.State)
	assert.Empty(t, recorded.Changes)
}

func TestOneLine(t *testing.T) {
	for text, want := range map[string]string{
		"short":           "short",
		"twelve bytes":    "twelve bytes",
		"thirteen bytes":  "thirteen …",
		"zwölf Übergänge": "zwölf Ü…",
		"a\nb\x1b[31mc":   "ab[31mc",
	} {
		t.Run(want, func(t *testing.T) { assert.Equal(t, want, oneLine(text, 12)) })
	}
}

// P10 of docs/internals/threats.md: names of files and users do not become directives of a forge or of CI, in the commit, the title and the body.
func TestNamesAreNoDirectives(t *testing.T) {
	var files []File
	for i, name := range []string{"[skip ci]", "***NO_CI***", "fixes #1", "fixes GH-1", "closes https://git.example.com/o/r/issues/1", "@team"} {
		files = append(files, File{Path: "projects/" + name + "/a", Op: Added, Actor: name})
		if i == 0 {
			files = append(files, File{Path: "projects/x/[skip ci]/b", Op: Added, Actor: name})
		}
	}
	files = append(files, File{Path: "projects/x/c", Op: Added, Actor: "bob <ceo@example.com>"})
	id := Identity{"plant", "area-4"}
	for _, actor := range files {
		t.Run(actor.Actor, func(t *testing.T) {
			c := &Changes{Files: append([]File{{Path: "projects/p/" + actor.Actor, Op: Added, Actor: actor.Actor}, actor, actor}, files...)}
			texts := subject(id, &Changes{Files: []File{actor}}) + "\n" + message(id, c, nil, plan.ID{1}) + "\n" + body(id, c, plan.ID{1})
			prose := regexp.MustCompile(`<[a-zA-Z0-9.-]+@area-4\.plant\.invalid>`).ReplaceAllString(texts, "")
			for _, directive := range []string{"[skip", "***", "#1", "GH-1", "https://", " @", "/@", "<ceo", "ceo@"} {
				assert.NotContains(t, prose, directive)
			}
			for line := range strings.Lines(texts) {
				if person, ok := strings.CutPrefix(line, "Co-authored-by: "); ok {
					assert.Regexp(t, `^[^<>]* <[^<>@]*@area-4\.plant\.invalid>\n$`, person)
				}
			}
		})
	}
	known := message(id, &Changes{Files: files}, map[string]string{"@team": "Mia <mia@example.com>"}, plan.ID{1})
	assert.Contains(t, known, "Co-authored-by: Mia <mia@example.com>\n", "a person of the spec")
}

// TestStandby: the other node of a redundant pair has the files for a while, and copies git's version of them.
func TestStandby(t *testing.T) {
	open := func(t *testing.T) (*plant, *gateway) {
		pl, g := opened(t)
		g.standby = true
		g.proposes(`{"v":1}`)
		return pl, g
	}
	t.Run("no proposal is withdrawn", func(t *testing.T) {
		pl, g := open(t)
		g.standby = false
		g.settle(minute)
		assert.Equal(t, v1alpha1.ProposalOpen, g.state())
		assert.Len(t, pl.hub.open(), 1)
	})
	t.Run("a merge ends the proposal", func(t *testing.T) {
		pl, g := open(t)
		pl.merge("merge")
		g.pull()
		g.settle(minute)
		assert.Equal(t, v1alpha1.ProposalMerged, g.state())
	})
	t.Run("no new proposal", func(t *testing.T) {
		pl := newPlant(t)
		g := pl.gateway("a")
		g.standby = true
		g.proposes(`{"v":2}`)
		assert.Empty(t, g.state())
		assert.Empty(t, pl.hub.list)
	})
}

// TestBuildRefusesLFS: a file that git keeps in LFS is refused, because a commit with its content would bring that into git.
func TestBuildRefusesLFS(t *testing.T) {
	for name, c := range map[string]struct {
		at, rules string
		refused   bool
	}{
		"by its extension":     {".gitattributes", "*.png filter=lfs diff=lfs merge=lfs -text\n", true},
		"by a macro":           {".gitattributes", "[attr]large filter=lfs\n*.png large\n", true},
		"in a directory":       {"site/projects/.gitattributes", "line/** filter=lfs\n", true},
		"another extension":    {".gitattributes", "*.jar filter=lfs\n", false},
		"after a bad line":     {".gitattributes", "!x -a\n[attr]\n*.a filter=\x01 -=\n*.png filter=lfs\n", true},
		"only a bad line":      {".gitattributes", "!x -a\n*.jar " + strings.Repeat("a", 1<<17) + "\n", false},
		"a macro elsewhere":    {"site/projects/.gitattributes", "[attr]large filter=lfs\n", false},
		"a directory, no name": {".gitattributes", "site/ filter=lfs\n\"\"\n\"\" filter=lfs\n", false},
		"unset in a directory": {"site/projects/.gitattributes", "*.png -filter\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			files := withView(t, `{"v":1}`)
			files[".gitattributes"] = "*.png text\n"
			if name == "unset in a directory" {
				files[".gitattributes"] = "*.png filter=lfs\n"
			}
			files[c.at] = c.rules
			s := newScene(t, files)
			s.disk.Write("projects/line/com.inductiveautomation.perspective/images/new.png", "a new image")
			out := s.build("projects/line/com.inductiveautomation.perspective/images/new.png")
			if !c.refused {
				assert.Empty(t, out.Refused)
				return
			}
			require.Len(t, out.Refused, 1)
			assert.Contains(t, out.Refused[0].Why, "LFS")
		})
	}
}
