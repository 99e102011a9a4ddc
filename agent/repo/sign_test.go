package repo

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/pieces"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/gitserver"
)

const signingName = "spec.bidirectional.signing: key id of Secret sign"

// signingKeys returns a key of each supported kind.
func signingKeys(t testing.TB) map[string]repotest.SigningKey {
	return map[string]repotest.SigningKey{
		"ssh ed25519":     repotest.NewSSHKey(t, "ed25519", ""),
		"ssh ecdsa":       repotest.NewSSHKey(t, "ecdsa", ""),
		"ssh rsa":         repotest.NewSSHKey(t, "rsa", ""),
		"openpgp ed25519": repotest.NewOpenPGPKey(t, "", nil),
		"openpgp rsa":     repotest.NewOpenPGPKey(t, "", &packet.Config{RSABits: 2048}),
	}
}

func TestSignedCommit(t *testing.T) {
	s := newSite(t)
	s.Push("base", repotest.Views(2))
	store := openStore(t, t.TempDir())
	res, _ := pull(t, store, s.remote(), "main")
	root, err := store.RootTree(res.Commit)
	require.NoError(t, err)
	keys := signingKeys(t)
	for name, key := range keys {
		t.Run(name, func(t *testing.T) {
			d, err := NewDraft(store, root, []Edit{{Path: "a", Content: pieces.Of([]byte(name))}})
			require.NoError(t, err)
			person := Person{Name: "Stoker", Mail: "stoker@stoker.invalid", When: time.Now()}
			trimmed := repotest.Token(strings.TrimSpace(key.Private)) // as it is read from a Secret
			commit, err := d.MakeCommit(res.Commit, person, person, "Change\n\nBody\n\nName: value\n", NewSigner(key.Format, signingName, trimmed))
			require.NoError(t, err)
			unpack(t, s, d)
			s.Git("fsck", "--strict", "--no-dangling", commit.String())
			assert.Equal(t, "Change\n\nBody\n\nName: value\n", s.Git("log", "-1", "--format=%B", commit.String()))
			text := s.Git("cat-file", "commit", commit.String()) + "\n"
			require.NoError(t, key.Check(text))
			require.Error(t, key.Check(strings.Replace(text, "Body", "body", 1)), "another message")
			for other, k := range keys {
				if other != name && k.Format == key.Format {
					require.Error(t, k.Check(text), "the key %s", other)
				}
			}
			require.NoError(t, key.Verify(t, s.Dir, commit.String()))
		})
	}
	t.Run("git rejects another key", func(t *testing.T) {
		d, err := NewDraft(store, root, []Edit{{Path: "a", Content: pieces.Of([]byte("b"))}})
		require.NoError(t, err)
		person := Person{Name: "Stoker", Mail: "stoker@stoker.invalid", When: time.Now()}
		commit, err := d.MakeCommit(res.Commit, person, person, "Change\n", NewSigner("ssh", signingName, repotest.Token(keys["ssh rsa"].Private)))
		require.NoError(t, err)
		unpack(t, s, d)
		require.Error(t, keys["ssh ed25519"].Verify(t, s.Dir, commit.String()))
	})
}

func TestDocumentedSigningKey(t *testing.T) {
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("no ssh-keygen on this machine")
	}
	lines := document.Open(t)
	s := newSite(t)
	shell := document.NewShell(t, s.Dir, nil)
	for c := range lines.Of("docs/how-to/signed-commits.md") {
		shell.Type(t, c.Text)
	}
	private, err := os.ReadFile(filepath.Join(shell.Dir, "signing"))
	require.NoError(t, err)
	commit, err := appendSignature(fmt.Sprintf("tree %s\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n", s.RawTree()), "Change\n",
		NewSigner(v1alpha1.SigningSSH, signingName, repotest.Token(string(private))))
	require.NoError(t, err)
	id := repotest.RunGit(t, s.Dir, []byte(commit), "hash-object", "-t", "commit", "-w", "--stdin")
	shell.Type(t, "git -c gpg.ssh.allowedSignersFile=allowed_signers verify-commit "+strings.TrimSpace(string(id)))
}

func TestUnusableSigningKey(t *testing.T) {
	sshKey, pgpKey := repotest.NewSSHKey(t, "ed25519", ""), repotest.NewOpenPGPKey(t, "", nil)
	lockedSSH, lockedPGP := repotest.NewSSHKey(t, "ed25519", "S3CR3T"), repotest.NewOpenPGPKey(t, "S3CR3T", nil)
	past := func() time.Time { return time.Now().Add(-time.Hour) }
	expired := repotest.NewOpenPGPKey(t, "", &packet.Config{Algorithm: packet.PubKeyAlgoEdDSA, KeyLifetimeSecs: 60, Time: past})
	for name, tc := range map[string]struct {
		format v1alpha1.SigningFormat
		key    string
		says   string
	}{
		"ssh with a passphrase":        {"ssh", lockedSSH.Private, "is protected by a passphrase"},
		"PKCS #8 with a passphrase":    {"ssh", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nUzNDUjNU\n-----END ENCRYPTED PRIVATE KEY-----", "is protected by a passphrase"},
		"ssh, public key":              {"ssh", sshKey.Public, "is a public key"},
		"ssh, OpenPGP key":             {"ssh", pgpKey.Private, "is not an ssh private key"},
		"ssh, other text":              {"ssh", "S3CR3T", "is not an ssh private key"},
		"ssh, first half of a key":     {"ssh", sshKey.Private[:120], "is not an ssh private key"},
		"OpenPGP with a passphrase":    {"openpgp", lockedPGP.Private, "is protected by a passphrase"},
		"OpenPGP, public key":          {"openpgp", pgpKey.Public, "is a public key"},
		"OpenPGP, ssh key":             {"openpgp", sshKey.Private, "is not an armored OpenPGP key"},
		"OpenPGP, other text":          {"openpgp", "S3CR3T", "is not an armored OpenPGP key"},
		"OpenPGP, first half of a key": {"openpgp", pgpKey.Private[:200], "is not an armored OpenPGP key"},
		"OpenPGP, expired":             {"openpgp", expired.Private, "is expired or revoked"},
		"OpenPGP, empty block":         {"openpgp", "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n-----END PGP PRIVATE KEY BLOCK-----", "is not an armored OpenPGP key"},
	} {
		t.Run(name, func(t *testing.T) {
			signature, err := NewSigner(tc.format, signingName, repotest.Token(tc.key))([]byte("commit"))
			repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
			assert.Empty(t, signature)
			require.ErrorContains(t, err, signingName+" "+tc.says)
			require.ErrorContains(t, err, "private key without a passphrase there, as ")
			said := newEverything()
			said.hear(err)
			for line := range strings.Lines(tc.key) {
				if line = strings.TrimSpace(line); len(line) > 4 && !strings.HasPrefix(line, "-----") {
					assert.NotContains(t, said.String(), line[:min(len(line), 16)], "the text of the key")
				}
			}
		})
	}
	t.Run("not readable", func(t *testing.T) {
		failing := func() (secret.String, error) { return secret.New(sshKey.Private), errors.New("id is empty") }
		_, err := NewSigner("ssh", signingName, failing)([]byte("commit"))
		repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
		assert.ErrorContains(t, err, signingName+" cannot be read: id is empty; put an ssh private key")
	})
	t.Run("a rotated key takes effect", func(t *testing.T) {
		text := lockedSSH.Private
		sign := NewSigner("ssh", signingName, func() (secret.String, error) { return secret.New(text), nil })
		_, err := sign([]byte("commit"))
		require.Error(t, err)
		text = sshKey.Private
		_, err = sign([]byte("commit"))
		require.NoError(t, err)
	})
}

// F24: a line of allowed_signers admits a key only if OpenSSH, which git uses, admits it.
func TestAllowedSignersLikeOpenSSH(t *testing.T) {
	keygen, err := exec.LookPath("ssh-keygen")
	if err != nil {
		t.Skip("no ssh-keygen on this machine")
	}
	key := repotest.NewSSHKey(t, "ed25519", "")
	payload, signature := signedBy(t, key)
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	for options, want := range map[string]bool{
		`namespaces="git"`:                   true,
		`namespaces="g?t,!file"`:             true,
		`namespaces="!git,*"`:                false,
		`namespaces="*,!git"`:                false,
		`namespaces="*,!g*"`:                 false,
		`namespaces="!file"`:                 false,
		`namespaces="[g]it"`:                 false,
		`namespaces="file",namespaces="git"`: false,
		`namespaces=git`:                     false,
		`valid-before=20300101000000Z`:       false,
		`valid-before="20300101000000Z`:      false,
		`valid-before="20250101000000Z",valid-before="20300101000000Z"`: false,
		`valid-before="20300101000000Z",valid-before="20250101000000Z"`: false,
		`valid-after="20300101000000Z",valid-after="20250101000000Z"`:   false,
		`valid-after="20250101000000Z",valid-before="20300101000000Z"`:  true,
	} {
		t.Run(options, func(t *testing.T) {
			line, dir := "a@b "+options+" "+strings.TrimSpace(key.Public)+"\n", t.TempDir()
			signers, sig := filepath.Join(dir, "signers"), filepath.Join(dir, "sig")
			require.NoError(t, os.WriteFile(signers, []byte(line), 0o600))
			require.NoError(t, os.WriteFile(sig, signature, 0o600))
			verify := exec.CommandContext(t.Context(), keygen, "-Y", "verify", "-f", signers, "-I", "a@b", "-n", "git", "-s", sig, "-O", "verify-time=20261125120000Z")
			verify.Stdin = bytes.NewReader(payload)
			out, err := verify.CombinedOutput()
			assert.Equal(t, want, err == nil, "OpenSSH: %s", out)
			err = checkKeys(line, payload, signature, now)
			assert.Equal(t, want, err == nil, "the agent: %v", err)
		})
	}
}

// everything collects all output: logs at the lowest level, errors in every format, and printed values.
type everything struct {
	bytes.Buffer
	log *slog.Logger
}

func newEverything() *everything {
	e := &everything{}
	e.log = slog.New(slog.NewJSONHandler(&e.Buffer, &slog.HandlerOptions{Level: slog.LevelDebug - 4, AddSource: true}))
	return e
}

// hear records an error with its whole chain.
func (e *everything) hear(err error) {
	for ; err != nil; err = errors.Unwrap(err) {
		fmt.Fprintf(e, "%v %+v %#v %q\n", err, err, err, err)
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			for _, j := range joined.Unwrap() {
				e.hear(j)
			}
		}
	}
}

// C7: with credentials in every possible place, no log, error or printed value contains any of them, whatever fails.
func TestErrorsContainNoSecrets(t *testing.T) {
	root := t.TempDir()
	gitserver.NewRepo(t, filepath.Join(root, "plant", "site.git")).Commit("first", repotest.Views(20))
	app, appKey, err := gitserver.NewApp(7, 42, "plant", "site")
	require.NoError(t, err)
	api := httptest.NewServer(app)
	defer api.Close()
	web, err := gitserver.Start(root, gitserver.Options{Pushes: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, web.Close()) }()
	signer, sshKey, err := gitserver.NewSSHKey()
	require.NoError(t, err)
	shell, err := gitserver.StartSSH(root, gitserver.SSHOptions{Users: map[string]ssh.PublicKey{"S3CR3T-1": signer.PublicKey()}})
	require.NoError(t, err)
	defer func() { require.NoError(t, shell.Close()) }()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	locked, err := ssh.MarshalPrivateKeyWithPassphrase(private, "S3CR3T-2", []byte("S3CR3T-3"))
	require.NoError(t, err)

	// Secrets may also appear in encoded form.
	wires := []string{"S3CR3T", base64.StdEncoding.EncodeToString([]byte("git:S3CR3T-4"))}
	for _, key := range []string{appKey, sshKey, string(pem.EncodeToMemory(locked))} {
		for _, l := range strings.Split(strings.TrimSpace(key), "\n")[1:3] {
			wires = append(wires, l[:24])
		}
	}
	echo := gitserver.Rewrite(func([]byte) []byte {
		text := "ERR no S3CR3T-4 and no " + wires[1]
		return fmt.Appendf(nil, "%04x%s", len(text)+4, text)
	})
	said := newEverything()
	// Only an answer that stalls must be given up early: on a busy machine, a request that gets no such answer may take long.
	patience := RemoteOptions{Log: said.log, StallWindow: 30 * time.Second, Handshake: 30 * time.Second}
	impatience := RemoteOptions{Log: said.log, StallWindow: 200 * time.Millisecond, Handshake: time.Second}
	options := patience
	attempt := func(address string, a Auth) {
		u, err := ParseURL(address)
		said.hear(err)
		if err != nil {
			return
		}
		r := newRemote(t, u, a, options)
		s := openStoreWith(t, t.TempDir(), StoreOptions{Log: said.log})
		said.log.Debug("values", "url", u, "remote", r, "auth", a, "app", a.App)
		enc, err := json.Marshal(u)
		said.hear(err)
		fmt.Fprintf(said, "%v %+v %#v %s %+v %s\n", u, u, u, u, r, enc)
		said.hear(r.Push(t.Context(), "refs/heads/pushed", plan.ID{}, plan.ID{1}, [][]byte{[]byte("no pack")}))
		_, err = r.PushRefs(t.Context())
		said.hear(err)
		_, err = r.APIToken(t.Context())
		said.hear(err)
		res, err := r.Resolve(t.Context(), parseRef(t, "main"))
		said.hear(err)
		if err != nil {
			return
		}
		_, err = s.FetchTrees(t.Context(), r, res.Commit, res.Ref)
		said.hear(err)
		_, err = s.Fetch(t.Context(), r, res.Commit, res.Ref)
		said.hear(err)
	}

	plain := web.URL("plant/site.git")
	withLogin := strings.Replace(plain, "://", "://S3CR3T-5:S3CR3T-6@", 1)
	tokens := Auth{Token: repotest.Token("S3CR3T-4"), Username: "git"}
	apps := Auth{App: &GitHubApp{AppID: 7, InstallationID: 42, Key: repotest.Token(appKey), APIBaseURL: api.URL}}
	logins := []func(){func() { attempt(plain, tokens) }, func() { attempt(withLogin, Auth{}) }, func() { attempt(plain, apps) }}
	faults := []gitserver.Fault{
		gitserver.Truncate(1 << 40), gitserver.Status(401), gitserver.Status(403), gitserver.Status(404), gitserver.Status(429), gitserver.Status(500),
		gitserver.Status(407), gitserver.Redirect("http://S3CR3T-7:S3CR3T-8@127.0.0.1:1"), gitserver.Truncate(200), gitserver.Stall(50),
	}
	for i, fault := range faults {
		if i == len(faults)-1 {
			options = impatience
		}
		for j, service := range []gitserver.Service{gitserver.Advertisement, gitserver.UploadPack, gitserver.PushAdvertisement, gitserver.ReceivePack} {
			remove := web.Inject(fault.On(service))
			for k, login := range logins {
				if !testing.Short() || k == (i+j)%len(logins) { // in short mode, each fault and each service meets each login once or twice
					login()
				}
			}
			remove()
		}
	}
	options = patience
	for _, service := range []gitserver.Service{gitserver.Advertisement, gitserver.UploadPack, gitserver.PushAdvertisement, gitserver.ReceivePack} {
		remove := web.Inject(echo.On(service)) // the server echoes the token of this attempt
		attempt(plain, tokens)
		remove()
	}
	for _, address := range []string{
		plain + "?token=S3CR3T-9", plain + "#S3CR3T-9", "https://S3CR3T-9:S3CR3T-9@name.invalid/x", "ssh://git:S3CR3T-9@host/x", "https://u:S3CR3T-9@h:bad/",
		"S3CR3T-9", "http://u:S3CR3T-9@127.0.0.1:1/x",
	} {
		attempt(address, tokens)
	}
	attempt(plain, Auth{Token: func() (secret.String, error) { return secret.New("S3CR3T-4"), errors.New("cannot be read") }})
	attempt(plain, Auth{CA: func() ([]byte, error) { return []byte("S3CR3T-10"), nil }})
	known := func() ([]byte, error) { return []byte(shell.KnownHosts()), nil }
	shellURL := shell.URL("S3CR3T-1", "plant/site.git")
	for _, key := range []string{sshKey, appKey, string(pem.EncodeToMemory(locked)), "S3CR3T-11", sshKey[:100]} {
		for _, k := range []func() ([]byte, error){known, hosts(""), hosts("S3CR3T-12"), hosts("@revoked S3CR3T-12 x y"), nil} {
			attempt(shellURL, Auth{Key: repotest.Token(key), KnownHosts: k})
		}
	}
	attempt(shell.URL("S3CR3T-13", "nowhere.git"), Auth{Key: repotest.Token(sshKey), KnownHosts: known})
	for _, bad := range []GitHubApp{
		{AppID: 8, InstallationID: 42, Key: repotest.Token(appKey), APIBaseURL: api.URL}, {AppID: 7, InstallationID: 1, Key: repotest.Token(appKey), APIBaseURL: api.URL},
		{AppID: 7, InstallationID: 42, Key: repotest.Token("S3CR3T-14"), APIBaseURL: api.URL}, {AppID: 7, InstallationID: 42, Key: repotest.Token(sshKey), APIBaseURL: api.URL},
		{AppID: 7, InstallationID: 42, Key: repotest.Token(appKey), APIBaseURL: "http://u:S3CR3T-15@127.0.0.1:1/"},
		{AppID: 7, InstallationID: 42, Key: repotest.Token(appKey), APIBaseURL: "http://127.0.0.1:1/?t=S3CR3T-15"},
	} {
		attempt(plain, Auth{App: &bad})
	}
	chatty := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, r.Header.Get("Authorization")+r.Header.Get("Proxy-Authorization")+" S3CR3T", http.StatusProxyAuthRequired)
	}))
	defer chatty.Close()
	u, err := url.Parse(chatty.URL)
	require.NoError(t, err)
	for _, proxy := range []string{"http://S3CR3T-16:S3CR3T-17@" + u.Host, "http://S3CR3T-16:S3CR3T-17@127.0.0.1:1", "http://u:S3CR3T-17@[::1/"} {
		repotest.ProxyEnvironment(t, map[string]string{"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy})
		attempt("http://git.example:8080/plant/site.git", tokens)
		attempt("https://git.example/plant/site.git", tokens)
		attempt("http://git.example:8080/plant/site.git", Auth{App: &GitHubApp{AppID: 7, InstallationID: 42, Key: repotest.Token(appKey), APIBaseURL: "http://api.example/"}})
	}

	text := said.String()
	require.Greater(t, len(text), 50_000, "the test has collected much output")
	for _, wire := range wires {
		if i := strings.Index(text, wire); i >= 0 {
			assert.Fail(t, "a secret leaked", "%q in: …%s…", wire, text[max(0, i-300):min(len(text), i+60)])
		}
	}
	issued := app.Issued()
	assert.Positive(t, issued)
}

func hosts(text string) func() ([]byte, error) {
	return func() ([]byte, error) { return []byte(text), nil }
}
