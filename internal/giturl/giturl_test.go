package giturl

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
		{
			"https://dev.azure.com/north/Line/_git/Line", "https://north@dev.azure.com/north/_git/Line", "git@ssh.dev.azure.com:v3/north/Line/Line",
			"https://North.visualstudio.com/DefaultCollection/Line/_git/Line", "north@vs-ssh.visualstudio.com:v3/north/Line/Line",
		},
		{"https://dev.azure.com/north/Area/_git/Line", "https://north.visualstudio.com/Area/_git/Line"},
		{"https://git.example.com/v3/north/Line/Line"},
		{"https://north.visualstudio.com/Collection/Line/_git/Line"},
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
			assert.False(t, Same(bad, bad))
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

var from, to = strings.Repeat("a", 40), strings.Repeat("b", 40)

func TestProviderOf(t *testing.T) {
	for repository, want := range map[string]string{
		"https://github.com/o/r.git": GitHub, "git@github.com:o/r.git": GitHub, "https://x.ghe.com/o/r": GitHub, "https://gitlab.com/a/b/c.git": GitLab,
		"https://codeberg.org/o/r": Gitea, "ssh://git@bitbucket.org/o/r.git": Bitbucket, "https://dev.azure.com/o/p/_git/r": AzureDevOps,
		"git@ssh.dev.azure.com:v3/o/p/r": AzureDevOps, "https://o.visualstudio.com/p/_git/r": AzureDevOps, "ssh://git@ssh.github.com:443/o/r.git": GitHub,
		"https://git.example.com/o/r": "", "/srv/git/r": "", "": "",
	} {
		t.Run(repository, func(t *testing.T) { assert.Equal(t, want, ProviderOf(repository)) })
	}
}

// A and B stand for the commits from and to.
func TestLinks(t *testing.T) {
	for name, c := range map[string]struct{ repository, provider, commit, compare string }{
		"github":           {"https://github.com/o/r.git", "", "https://github.com/o/r/commit/A", "https://github.com/o/r/compare/A..B"},
		"github by ssh":    {"git@github.com:o/r.git", "", "https://github.com/o/r/commit/A", "https://github.com/o/r/compare/A..B"},
		"github at 443":    {"ssh://git@ssh.github.com:443/o/r.git", "", "https://github.com/o/r/commit/A", "https://github.com/o/r/compare/A..B"},
		"gitlab":           {"https://gitlab.com/a/b/c.git", "", "https://gitlab.com/a/b/c/-/commit/A", "https://gitlab.com/a/b/c/-/compare/A...B?straight=true"},
		"own gitlab":       {"ssh://git@git.example.com:2222/a/c", GitLab, "https://git.example.com/a/c/-/commit/A", "https://git.example.com/a/c/-/compare/A...B?straight=true"},
		"own gitea":        {"http://user:S3CR3T@git.example.com:3000/a/c.git", Gitea, "http://git.example.com:3000/a/c/commit/A", "http://git.example.com:3000/a/c/compare/A..B"},
		"bitbucket":        {"git@bitbucket.org:w/r.git", "", "https://bitbucket.org/w/r/commits/A", "https://bitbucket.org/w/r/branches/compare/B..A#diff"},
		"azure":            {"https://dev.azure.com/o/My%20Plant/_git/r", "", "https://dev.azure.com/o/My%20Plant/_git/r/commit/A", "https://dev.azure.com/o/My%20Plant/_git/r/branchCompare?baseVersion=GCA&targetVersion=GCB&_a=files"},
		"azure by ssh":     {"git@ssh.dev.azure.com:v3/o/p/r", "", "https://dev.azure.com/o/p/_git/r/commit/A", "https://dev.azure.com/o/p/_git/r/branchCompare?baseVersion=GCA&targetVersion=GCB&_a=files"},
		"visualstudio":     {"https://o.visualstudio.com/p/_git/r", "", "https://o.visualstudio.com/p/_git/r/commit/A", "https://o.visualstudio.com/p/_git/r/branchCompare?baseVersion=GCA&targetVersion=GCB&_a=files"},
		"script in a path": {`https://github.com/o/"><script>alert(1)<script>`, "", "https://github.com/o/%22%3E%3Cscript%3Ealert%281%29%3Cscript%3E/commit/A", "https://github.com/o/%22%3E%3Cscript%3Ealert%281%29%3Cscript%3E/compare/A..B"},
		"query in a path":  {"git@github.com:o/r?x=y#z", "", "https://github.com/o/r%3Fx=y%23z/commit/A", "https://github.com/o/r%3Fx=y%23z/compare/A..B"},
		"unknown host":     {"https://git.example.com/a/c", "", "", ""},
		"provider none":    {"https://git.example.com/a/c", "none", "", ""},
		"a folder":         {"/srv/git/a", GitHub, "", ""},
		"no owner":         {"https://github.com/r", "", "", ""},
		"script":           {"javascript://github.com/%0aalert(1)/x", GitHub, "", ""},
		"script by ssh":    {"javascript:alert(1)/x", GitHub, "https://javascript/alert%281%29/x/commit/A", "https://javascript/alert%281%29/x/compare/A..B"},
		"parents":          {"https://github.com/../x", "", "", ""},
		"escaped parents":  {"https://github.com/%2e%2e/x", "", "", ""},
		"control":          {"git@github.com:o/a\nb", "", "", ""},
		"host as the user": {"https://github.com@evil.example/o/r", "", "", ""},
		"backslash host":   {`git@github.com\evil.example:o/r`, GitHub, "", ""},
		"quote in a host":  {`git@git"x:o/r`, GitHub, "", ""},
		"azure, no _git":   {"https://dev.azure.com/o/p/x/r", "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			short := strings.NewReplacer(from, "A", to, "B")
			w := WebOf(c.repository, c.provider)
			assert.Equal(t, c.commit, short.Replace(w.Commit(from)))
			assert.Equal(t, c.compare, short.Replace(w.Compare(from, to)))
		})
	}
	w := WebOf("https://github.com/o/r", "")
	for _, bad := range []string{"", "main", "../" + from, from[1:], strings.Repeat("g", 40), strings.Repeat("0", 40)} {
		t.Run("not a commit "+bad, func(t *testing.T) {
			assert.Empty(t, w.Commit(bad))
			assert.Empty(t, w.Compare(bad, to))
			assert.Empty(t, w.Compare(to, bad))
		})
	}
	assert.Empty(t, w.Compare(from, from))
}

func TestFileLink(t *testing.T) {
	const path = "gw/a view/#1?.json"
	for provider, want := range map[string]string{
		GitHub:      "/blob/" + from + "/gw/a%20view/%231%3F.json",
		Gitea:       "/src/commit/" + from + "/gw/a%20view/%231%3F.json",
		GitLab:      "/-/blob/" + from + "/gw/a%20view/%231%3F.json",
		Bitbucket:   "/src/" + from + "/gw/a%20view/%231%3F.json",
		AzureDevOps: "?path=%2Fgw%2Fa+view%2F%231%3F.json&version=GC" + from,
	} {
		t.Run(provider, func(t *testing.T) {
			repository := "https://git.example.com/o/r"
			if provider == AzureDevOps {
				repository = "https://git.example.com/o/_git/r"
			}
			w := WebOf(repository, provider)
			assert.Equal(t, repository+want, w.File(from, path))
			for _, bad := range []string{"", ".", "../x", "/etc", "a//b", "a/../../b"} { // sequence: of one provider
				assert.Empty(t, w.File(from, bad), bad)
			}
			assert.Empty(t, w.File("main", path))
		})
	}
}

// Whatever the address is, a link has the scheme http or https, a plain host, no user, and no quote, bracket, backslash or space.
func FuzzWeb(f *testing.F) {
	f.Add("https://github.com/o/r", GitHub)
	f.Add("git@host:o/\"r", AzureDevOps)
	f.Fuzz(func(t *testing.T, repository, provider string) {
		for _, link := range []string{WebOf(repository, provider).Commit(from), WebOf(repository, provider).Compare(from, to), WebOf(repository, provider).File(from, "a/"+provider)} { // sequence: the links of one input
			if link == "" {
				continue
			}
			u, err := url.Parse(link)
			require.NoError(t, err)
			assert.Contains(t, []string{"https", "http"}, u.Scheme)
			assert.Nil(t, u.User)
			assert.Regexp(t, `^[-a-z0-9.]+(:[0-9]+)?$`, u.Host)
			assert.NotContains(t, link, "/../")
			assert.False(t, strings.ContainsAny(link, "<>\"'` \\()\n\t"), link)
		}
	})
}
