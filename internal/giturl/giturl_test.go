package giturl

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestSameRepository(t *testing.T) {
	groups := [][]string{
		{
			"https://git.example.com/plants/line.git", "https://git.example.com/plants/line", "http://git.example.com:8080/plants/line/",
			"https://user:S3CR3T@Git.Example.com/plants/line.git", "ssh://git@git.example.com:2222/plants/line.git",
			"git@git.example.com:plants/line.git", "git@git.example.com:/plants/line", "git.example.com:plants/line",
			" https://git.example.com/Plants/Line.GIT/ ", "git+ssh://git@git.example.com/plants/line",
		},
		{"https://git.example.com/plants/line2"},
		{"https://git.example.com/plants"},
		{"https://git.example.org/plants/line"},
		{"git@[fd00::1]:plants/line", "ssh://git@[fd00::1]:22/plants/line.git"},
		{"/srv/plants/line.git", "file:///srv/plants/line", "/srv/plants/line/"},
		{"https://git.example.com/.git"},
	}
	for i, group := range groups {
		t.Run(group[0], func(t *testing.T) {
			for j, other := range groups {
				t.Run(other[0], func(t *testing.T) {
					for _, a := range group {
						for _, b := range other {
							assert.Equal(t, i == j, Same(a, b), "%s and %s", a, b)
						}
					}
				})
			}
		})
	}
}

func TestInvalidAddress(t *testing.T) {
	for _, bad := range []string{
		"", " ", "line", "https://", "https:///plants", "https://git.example.com", "https://git.example.com/", "ftp://git.example.com/a", "oci://git.example.com/a",
		"file://git.example.com/a", "git@git.example.com:", ":a", "@:a", "https://.*/", "https://[::1/a", "/", "./a:b", strings.Repeat("a", 3000) + ":b", "https://git.example.com/%zz",
	} {
		t.Run(fmt.Sprintf("%.30q", bad), func(t *testing.T) {
			if bad != "https://.*/" {
				assert.False(t, Same(bad, bad))
			}
			assert.False(t, Same(bad, "https://git.example.com/a"))
		})
	}
}

func FuzzSame(f *testing.F) {
	f.Add("https://git.example.com/a.git", "git@git.example.com:a")
	f.Add("@", ":")
	f.Add("[", "]:a@b")
	f.Fuzz(func(t *testing.T, a, b string) {
		assert.Equal(t, Same(a, b), Same(b, a))
		if Same(a, b) {
			assert.True(t, Same(a, a))
		}
	})
}
