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
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/gitserver"
)

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
	attempt := func(address string, a Auth) {
		u, err := ParseURL(address)
		said.hear(err)
		if err != nil {
			return
		}
		r := newRemote(t, u, a, RemoteOptions{Log: said.log, StallWindow: 100 * time.Millisecond, Handshake: time.Second})
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
	for i, fault := range []gitserver.Fault{
		gitserver.Truncate(1 << 40), gitserver.Status(401), gitserver.Status(403), gitserver.Status(404), gitserver.Status(429), gitserver.Status(500),
		gitserver.Status(407), gitserver.Redirect("http://S3CR3T-7:S3CR3T-8@127.0.0.1:1"), gitserver.Truncate(200), gitserver.Stall(50),
	} {
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
