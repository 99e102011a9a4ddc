package scenario

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/gitserver"
)

// F24: the page on signed commits, with an author's own git and the real agent.
func TestSignedCommitsPage(t *testing.T) {
	for _, name := range []string{"ssh-keygen", "gpg"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("no %s on this machine", name)
		}
	}
	p := newPlant(t, withoutGateway)
	first := p.repo.Commit("first", site()...)
	p.start()
	p.synced(first)

	clone := filepath.Join(p.dir, "clone")
	home, err := os.MkdirTemp("", "gpg") // the path of a socket is short
	require.NoError(t, err)
	t.Cleanup(func() {
		end := exec.Command("gpgconf", "--kill", "all") // gpg leaves its agent running
		end.Env = append(os.Environ(), "GNUPGHOME="+home)
		assert.NoError(t, end.Run())
		assert.NoError(t, os.RemoveAll(home))
	})
	author := document.NewShell(t, p.dir, nil, "GNUPGHOME="+home, "GIT_AUTHOR_NAME=You", "GIT_AUTHOR_EMAIL=you@example.com",
		"GIT_COMMITTER_NAME=You", "GIT_COMMITTER_EMAIL=you@example.com")
	author.Type(t, "git clone --quiet "+p.repo.Dir+" clone")
	author.Dir = clone
	require.NoError(t, os.WriteFile(filepath.Join(clone, "file"), []byte("one"), 0o600))
	author.Type(t, "git add file")
	for c := range document.Open(t).Of("docs/how-to/signed-commits.md") {
		author.Type(t, c.Text)
	}
	keys, err := os.ReadFile(filepath.Join(clone, "allowed_signers"))
	require.NoError(t, err)
	openpgp, err := os.ReadFile(filepath.Join(clone, "openpgp.asc"))
	require.NoError(t, err)

	signed := strings.TrimSpace(author.Type(t, "git rev-parse HEAD"))
	p.secret("authors/keys", string(keys)+string(openpgp))
	p.spec.git = "    verify: {keysSecretRef: {name: authors, key: keys}}\n"
	p.saveSpec()
	p.synced(signed)

	p.repo.Commit("unsigned", gitserver.Write(inGit+viewPath, view("bad")))
	held := p.reason("SignatureInvalid")
	assert.Equal(t, "Error", held.Phase)
	assert.Equal(t, signed, held.Commit)
	assert.Equal(t, view("one"), p.read(viewPath))

	p.secret("authors/keys", string(openpgp))
	p.spec.git = "    verify: {mode: Tag, keysConfigMapRef: {name: authors, key: keys}, formats: [openpgp]}\n"
	p.spec.ref = "v1.0.0"
	p.saveSpec()
	p.synced(signed) // the tag of the page, signed with gpg
	p.spec.ref = "v1.1.0"
	p.repo.AnnotatedTag("v1.1.0", p.repo.Head())
	p.saveSpec()
	p.reason("SignatureInvalid")
	assert.Equal(t, view("one"), p.read(viewPath))
	p.stop()
}
