package repo_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/ociregistry"
)

// cosignKey returns a key pair as cosign generate-key-pair makes it.
func cosignKey(t *testing.T) (private *ecdsa.PrivateKey, public string) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	require.NoError(t, err)
	return private, string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// F24: only an artifact that one of the keys has signed is delivered.
func TestSignedArtifact(t *testing.T) {
	key, public := cosignKey(t)
	other, otherPublic := cosignKey(t)
	type signer = func(s *ociregistry.Server, digest, earlier string)
	with := func(format string, key *ecdsa.PrivateKey, predicate string) signer {
		return func(s *ociregistry.Server, digest, _ string) { s.Sign(format, key, digest, predicate) }
	}
	both := func(signers ...signer) signer {
		return func(s *ociregistry.Server, digest, earlier string) {
			for _, sign := range signers {
				sign(s, digest, earlier)
			}
		}
	}
	// moved signs the earlier artifact, and serves its signature for this one.
	moved := func(suffix string, format string) signer {
		return func(s *ociregistry.Server, digest, earlier string) {
			s.Sign(format, key, earlier, "")
			s.Before = func(_ http.ResponseWriter, r *http.Request) bool {
				r.URL.Path = strings.Replace(r.URL.Path, "/sha256-"+digest[7:]+suffix, "/sha256-"+earlier[7:]+suffix, 1)
				return false
			}
		}
	}
	// changed serves the signature of a key with a payload that has more than was signed.
	changed := func(s *ociregistry.Server, digest, _ string) {
		s.Sign(ociregistry.CosignPayload, key, digest, "")
		s.Before = func(w http.ResponseWriter, r *http.Request) bool {
			payload := strings.Contains(r.URL.Path, "/blobs/") && !strings.Contains(r.URL.Path, ociregistry.Digest(ociregistry.Files(t, line)))
			if payload {
				_, _ = io.WriteString(w, `{"critical":{"type":"cosign container image signature","image":{"docker-manifest-digest":"`+digest+`"}},"optional":{}}`)
			}
			return payload
		}
	}
	for name, c := range map[string]struct {
		sign signer
		mode v1alpha1.VerifyMode
		keys string
		says string // "" if it is delivered
	}{
		"bundle":                     {with(ociregistry.CosignBundle, key, ""), "", public, ""},
		"payload":                    {with(ociregistry.CosignPayload, key, ""), "", public, ""},
		"another key":                {with(ociregistry.CosignBundle, other, ""), "", public, "is not signed by one of the keys"},
		"one of two keys":            {with(ociregistry.CosignBundle, other, ""), "", public + otherPublic, ""},
		"changed payload":            {changed, "", public, "is not signed by one of the keys"},
		"both formats, one by a key": {both(with(ociregistry.CosignBundle, other, ""), with(ociregistry.CosignPayload, key, "")), "", public, ""},
		"no signature":               {both(), "", public, "has no signature of cosign; it is not delivered: sign it with cosign sign --key"},
		"statement about it":         {with(ociregistry.CosignBundle, key, "https://spdx.dev/Document"), "", public, "has no signature of cosign"},
		"bundle of another":          {moved("", ociregistry.CosignBundle), "", public, "has no signature of cosign"},
		"payload of another":         {moved(".sig", ociregistry.CosignPayload), "", public, "has no signature of cosign"},
		"tags":                       {with(ociregistry.CosignBundle, key, ""), v1alpha1.VerifyTag, public, "use Head"},
		"no key of cosign":           {with(ociregistry.CosignBundle, key, ""), "", repotest.NewSSHKey(t, "ed25519", "").Public, "has no public key of cosign"},
		"half a key":                 {with(ociregistry.CosignBundle, key, ""), "", public[:100], "a key has no end"},
		"private key":                {with(ociregistry.CosignBundle, key, ""), "", strings.ReplaceAll(public, "PUBLIC", "PRIVATE"), "line 1 is not the start of a public key"},
	} {
		t.Run(name, func(t *testing.T) {
			server := ociregistry.Start(t)
			earlier := server.Push("1.0", ociregistry.Files(t, map[string]string{"a": "earlier"}), nil)
			c.sign(server, server.Push("main", ociregistry.Files(t, line), nil), earlier)
			a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
			commit, _ := a.fetch("main")
			keys := c.keys
			v := repo.NewVerifier(v1alpha1.GitVerify{Mode: c.mode}, "the keys", func() ([]byte, error) { return []byte(keys), nil })
			err := a.store.Verify(t.Context(), v, a.remote, commit, "main")
			if c.says != "" {
				assert.True(t, failure.Is(err, v1alpha1.ReasonSignatureInvalid), "%v", err)
				assert.ErrorContains(t, err, c.says)
				return
			}
			require.NoError(t, err)
			server.Requests()
			require.NoError(t, a.store.Verify(t.Context(), v, a.remote, commit, "main"))
			assert.Empty(t, server.Requests(), "it was verified before")
			_, keys = cosignKey(t)
			assert.ErrorContains(t, a.store.Verify(t.Context(), v, a.remote, commit, "main"), "is not signed by one of the keys", "keys that are removed count at once")
		})
	}
}

// F32: a commit of git cannot pass for an artifact by its text, when the store was one of git before.
func TestForgedArtifactCommit(t *testing.T) {
	key, public := cosignKey(t)
	server := ociregistry.Start(t)
	server.Sign(ociregistry.CosignBundle, key, server.Push("main", ociregistry.Files(t, line), nil), "")
	a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
	genuine, _ := a.fetch("main")
	clone := gitserver.NewRepo(t, filepath.Join(t.TempDir(), "line.git"))
	clone.Commit("x", gitserver.Write("run.sh", "evil"))
	tree := clone.Git("rev-parse", "main^{tree}")
	text := clone.Git("--git-dir", a.store.Dir(), "cat-file", "commit", genuine.String()) + "\n"
	_, rest, _ := strings.Cut(text, "\n")
	file := filepath.Join(t.TempDir(), "commit")
	require.NoError(t, os.WriteFile(file, []byte("tree "+tree+"\n"+rest), 0o600))
	forged, err := plan.ParseID(clone.Git("hash-object", "-t", "commit", "-w", file))
	require.NoError(t, err)
	clone.Git("update-ref", "refs/heads/main", forged.String())
	u, err := repo.ParseURL(clone.Dir)
	require.NoError(t, err)
	git, err := repo.NewRemote(u, repo.Auth{}, repo.RemoteOptions{})
	require.NoError(t, err)
	defer func() { assert.NoError(t, git.Close()) }()
	_, err = a.store.Fetch(t.Context(), git, forged, "refs/heads/main")
	require.NoError(t, err)

	fresh := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{}) // has resolved nothing
	v := repo.NewVerifier(v1alpha1.GitVerify{}, "the keys", func() ([]byte, error) { return []byte(public), nil })
	err = a.store.Verify(t.Context(), v, fresh.remote, forged, "main")
	assert.ErrorContains(t, err, "is not that of the artifact")
	assert.NoError(t, a.store.Verify(t.Context(), v, fresh.remote, genuine, "main"))
}

// A signature that arrives after the artifact is found.
func TestArtifactIsSignedLater(t *testing.T) {
	key, public := cosignKey(t)
	server := ociregistry.Start(t)
	digest := server.Push("main", ociregistry.Files(t, line), nil)
	a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
	commit, _ := a.fetch("main")
	v := repo.NewVerifier(v1alpha1.GitVerify{}, "the keys", func() ([]byte, error) { return []byte(public), nil })
	require.ErrorContains(t, a.store.Verify(t.Context(), v, a.remote, commit, "main"), "has no signature of cosign")
	server.Sign(ociregistry.CosignBundle, key, digest, "")
	assert.NoError(t, a.store.Verify(t.Context(), v, a.remote, commit, "main"))
}
