package gitserver_test

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gitserver"
)

func capabilities(t *testing.T, srv *gitserver.Server) []string {
	t.Helper()
	res, err := http.Get(advertisement(srv))
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	_, caps, found := strings.Cut(string(body), "\x00")
	require.True(t, found)
	caps, _, _ = strings.Cut(caps, "\n")
	return strings.Fields(caps)
}

func TestRefusedFeaturesAreNotAdvertised(t *testing.T) {
	srv, _, _ := start(t, gitserver.Options{})
	all := []string{"thin-pack", "shallow", "deepen-since", "filter", "allow-tip-sha1-in-want", "allow-reachable-sha1-in-want"}
	assert.Subset(t, capabilities(t, srv), all)
	srv.Refuse(gitserver.Thin, gitserver.Shallow, gitserver.Filter, gitserver.SHAWants)
	left := capabilities(t, srv)
	assert.NotContains(t, left, all)
	for _, c := range all {
		t.Run(c, func(t *testing.T) {
			assert.NotContains(t, left, c)
		})
	}
	assert.Contains(t, left, "side-band-64k")
	srv.Refuse()
	assert.Subset(t, capabilities(t, srv), all)
}

func TestRefusedThinPack(t *testing.T) {
	for _, c := range []struct {
		name    string
		refuse  []gitserver.Feature
		atLeast int64
		below   int64
	}{
		{"thin", nil, 100, 2000},
		{"not thin", []gitserver.Feature{gitserver.Thin}, 10_000, 50_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv, repo, _ := start(t, gitserver.Options{})
			clone := filepath.Join(t.TempDir(), "clone.git")
			out, err := git(t, "clone", "-q", "--bare", srv.URL("site.git"), clone)
			require.NoError(t, err, out)
			repo.Commit("edit", gitserver.Write("big.txt", bigText()+"one more line\n"))
			srv.Refuse(c.refuse...)
			srv.Forget()
			out, err = git(t, "-C", clone, "fetch", "-q", srv.URL("site.git"), "main")
			require.NoError(t, err, out)
			assert.GreaterOrEqual(t, srv.Stats().PackBytes, c.atLeast)
			assert.Less(t, srv.Stats().PackBytes, c.below)
		})
	}
}

func TestRefusedShallow(t *testing.T) {
	srv, _, _ := start(t, gitserver.Options{})
	srv.Refuse(gitserver.Shallow)
	_, err := git(t, "clone", "-q", "--depth=1", srv.URL("site.git"), filepath.Join(t.TempDir(), "a"))
	require.Error(t, err)
	out, err := git(t, "clone", "-q", srv.URL("site.git"), filepath.Join(t.TempDir(), "b"))
	require.NoError(t, err, out)
}

func TestRefusedShallowForInsistingClient(t *testing.T) {
	srv, _, second := start(t, gitserver.Options{})
	srv.Refuse(gitserver.Shallow)
	body := "0032want " + second + "\n000cdeepen 1" + "0000" + "0009done\n"
	res, err := http.Post(srv.URL("site.git")+"/git-upload-pack", "application/x-git-upload-pack-request", strings.NewReader(body))
	require.NoError(t, err)
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	assert.Contains(t, string(answer), "ERR upload-pack")
}

func TestRefusedSHAWants(t *testing.T) {
	srv, repo, second := start(t, gitserver.Options{})
	first := repo.Git("rev-parse", second+"^")
	repo.AnnotatedTag("v1", second)
	srv.Refuse(gitserver.SHAWants)
	clone := filepath.Join(t.TempDir(), "c.git")
	_, err := git(t, "init", "-q", "--bare", clone)
	require.NoError(t, err)
	_, err = git(t, "-C", clone, "fetch", "-q", srv.URL("site.git"), first)
	require.Error(t, err)
	for _, ref := range []string{"main", "refs/tags/v1", second} {
		t.Run(ref, func(t *testing.T) {
			out, err := git(t, "-C", clone, "fetch", "-q", srv.URL("site.git"), ref)
			require.NoError(t, err, out)
		})
	}
}

func TestRefusedFilter(t *testing.T) {
	srv, _, _ := start(t, gitserver.Options{})
	srv.Refuse(gitserver.Filter)
	out, err := git(t, "clone", "-q", "--bare", "--filter=blob:none", srv.URL("site.git"), filepath.Join(t.TempDir(), "c.git"))
	require.NoError(t, err, out) // git warns and continues without it
	assert.Greater(t, srv.Stats().PackBytes, int64(10000))
}

func TestMultiAckDetailedOnly(t *testing.T) {
	srv, repo, _ := start(t, gitserver.Options{})
	head := repo.Commit("first", gitserver.Write("a", "a"))
	srv.Refuse(gitserver.SingleAck)
	ask := func(capabilities string) string {
		want := "want " + head + capabilities + "\n"
		body := fmt.Sprintf("%04x%s00000009done\n", len(want)+4, want)
		res, err := http.Post(srv.URL("site.git")+"/git-upload-pack", "application/x-git-upload-pack-request", strings.NewReader(body))
		require.NoError(t, err)
		defer func() { require.NoError(t, res.Body.Close()) }()
		b, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return string(b)
	}
	assert.Contains(t, ask(" ofs-delta"), "ERR upload-pack: multi_ack_detailed is required")
	assert.Contains(t, ask(" multi_ack_detailed ofs-delta"), "PACK")
}
