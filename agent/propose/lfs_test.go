package propose

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestBuildRefusesLFS: a commit with the content itself would bring it into git.
func TestBuildRefusesLFS(t *testing.T) {
	for name, c := range map[string]struct {
		at, rules string
		refused   bool
	}{
		"by its extension":     {".gitattributes", "*.png filter=lfs diff=lfs merge=lfs -text\n", true},
		"by a macro":           {".gitattributes", "[attr]large filter=lfs\n*.png large\n", true},
		"in a directory":       {"site/projects/.gitattributes", "line/** filter=lfs\n", true},
		"another extension":    {".gitattributes", "*.jar filter=lfs\n", false},
		"of a directory":       {".gitattributes", "site/ filter=lfs\n\"\"\n\"\" filter=lfs\n", false},
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
