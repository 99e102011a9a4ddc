// Package hostile runs the HTTP clients of the product that have a credential against the same hostile server.
package hostile

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/registry/remote"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/archive/azure"
	"stoker.io/stoker/agent/archive/gcs"
	"stoker.io/stoker/agent/archive/s3"
	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/review"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/bundle"
	"stoker.io/stoker/internal/giturl"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/secret"
)

// TestMain lets many tests run at once: they wait for answers that never come.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "24"); err != nil {
		panic(err)
	}
	folder, err := os.MkdirTemp("", "stoker-logins-")
	if err == nil {
		err = os.Setenv("DOCKER_CONFIG", folder)
	}
	if err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(folder)
	os.Exit(code)
}

// credential is what no error may show and no other host may get.
const credential = "S3CR3T-of-the-client"

// client sends one request with the credential to the server at an address.
type client func(ctx context.Context, t *testing.T, address string) error

func token() (secret.String, error) { return secret.New(credential), nil }

// clients are the HTTP clients of the product that have a credential. Add each new one here.
var clients = map[string]client{
	"git": func(ctx context.Context, t *testing.T, address string) error {
		u, err := repo.ParseURL(address + "/plant.git")
		require.NoError(t, err)
		r, err := repo.NewRemote(u, repo.Auth{Token: token}, repo.RemoteOptions{})
		require.NoError(t, err)
		defer func() { assert.NoError(t, r.Close()) }()
		_, err = r.Refs(ctx)
		return err
	},
	"registry": func(ctx context.Context, t *testing.T, address string) error {
		u, err := repo.ParseURL(strings.NewReplacer("https://", "oci://", "http://", "oci+http://").Replace(address) + "/plants/line")
		require.NoError(t, err)
		r, err := repo.NewRemote(u, repo.Auth{Token: token}, repo.RemoteOptions{})
		require.NoError(t, err)
		defer func() { assert.NoError(t, r.Close()) }()
		tag, err := repo.ParseRef("main")
		require.NoError(t, err)
		_, err = r.Resolve(ctx, tag)
		return err
	},
	"push to a registry": func(ctx context.Context, t *testing.T, address string) error {
		u, err := url.Parse(address)
		require.NoError(t, err)
		logIn(t, u.Host)
		client, err := bundle.Client()
		require.NoError(t, err)
		repository, err := remote.NewRepository(u.Host + "/plants/line")
		require.NoError(t, err)
		repository.Client, repository.PlainHTTP = client, u.Scheme == "http"
		return bundle.Explain("line", repository.Push(ctx, content.NewDescriptorFromBytes("text/plain", []byte("x")), strings.NewReader("x")))
	},
	"GitHub App": func(ctx context.Context, t *testing.T, address string) error {
		u, err := repo.ParseURL(address + "/plant.git")
		require.NoError(t, err)
		key, err := privateKey()
		require.NoError(t, err)
		r, err := repo.NewRemote(u, repo.Auth{App: &repo.GitHubApp{AppID: 1, InstallationID: 2, APIBaseURL: address, Key: func() (secret.String, error) { return secret.New(key), nil }}}, repo.RemoteOptions{})
		require.NoError(t, err)
		defer func() { assert.NoError(t, r.Close()) }()
		_, err = r.Refs(ctx)
		return err
	},
	"gateway": func(ctx context.Context, t *testing.T, address string) error {
		c, err := ignition.New(ignition.Config{URL: address, Key: token})
		require.NoError(t, err)
		defer c.Close()
		_, err = c.Info(ctx)
		return err
	},
	"validation webhook": func(ctx context.Context, _ *testing.T, address string) error {
		w := &review.Webhook{URL: address, Client: httpclient.Client{Loopback: true}, Key: token}
		_, err := w.Send(ctx, review.Request{UID: "1"})
		return err
	},
	"address of a user": func(ctx context.Context, _ *testing.T, address string) error {
		answer, err := httpclient.Client{Loopback: true}.Do(ctx, http.MethodPost, address, http.Header{"Authorization": {"Bearer " + credential}}, nil)
		if err == nil && answer.Status != http.StatusOK {
			err = fmt.Errorf("status %d", answer.Status)
		}
		return err
	},
	"s3": stored(func(address string) (archive.Store, error) {
		return s3.New(&v1alpha1.SnapshotStorage{Endpoint: address, Bucket: "plant", Region: "us-east-1", PathStyle: true}, func() (secret.String, error) {
			return secret.New("aws_access_key_id=plant\naws_secret_access_key=" + credential), nil
		})
	}),
	"gcs": stored(func(address string) (archive.Store, error) {
		key, err := privateKey()
		if err != nil {
			return nil, err
		}
		account, err := json.Marshal(map[string]string{"type": "service_account", "client_email": "stoker@plants.example.com", "token_uri": address + "/token",
			"private_key": key})
		if err != nil {
			return nil, err
		}
		return gcs.New(&v1alpha1.SnapshotStorage{Endpoint: address, Bucket: "plant"}, func() (secret.String, error) { return secret.New(string(account)), nil })
	}),
	"azure": stored(func(address string) (archive.Store, error) {
		return azure.New(&v1alpha1.SnapshotStorage{Endpoint: address, Account: "plants", Bucket: "plant"}, func() (secret.String, error) {
			return secret.New("?sv=2021-12-02&se=2099-12-01T00%3A00%3A00Z&sr=c&sp=racwdl&sig=" + credential), nil
		})
	}),
	"forge github": forged(giturl.GitHub), "forge gitlab": forged(giturl.GitLab), "forge gitea": forged(giturl.Gitea),
	"forge bitbucket": forged(giturl.Bitbucket), "forge azuredevops": forged(giturl.AzureDevOps),
	apiServer: func(ctx context.Context, t *testing.T, address string) error {
		c, err := kube.ConnectTo(&rest.Config{Host: address, BearerToken: credential}, "test")
		require.NoError(t, err)
		_, err = kube.GatewaySyncs(c.Dynamic, "plant").Get(ctx, "line")
		return err
	},
}

// logins are those of docker login, by host.
var logins struct {
	sync.Mutex
	hosts map[string]map[string]string
}

// logIn stores the credential for a host as docker login does.
func logIn(t *testing.T, host string) {
	t.Helper()
	logins.Lock()
	defer logins.Unlock()
	if logins.hosts == nil {
		logins.hosts = map[string]map[string]string{}
	}
	logins.hosts[host] = map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte("git:" + credential))}
	text, err := json.Marshal(map[string]any{"auths": logins.hosts})
	require.NoError(t, err)
	name := filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json")
	require.NoError(t, os.WriteFile(name+".new", text, 0o600)) // other tests read the file
	require.NoError(t, os.Rename(name+".new", name))
}

// privateKey returns a new RSA key in PEM.
func privateKey() (string, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return "", err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), err
}

// apiServer is the name of the client of the API server. The tests of endless answers and of echoes skip it, because client-go neither bounds
// nor hides answers: Stoker trusts the API server.
const apiServer = "API server"

// stored returns a client of object storage.
func stored(open func(address string) (archive.Store, error)) client {
	return func(ctx context.Context, t *testing.T, address string) error {
		s, err := open(address)
		require.NoError(t, err)
		_, err = s.List(ctx, "line/")
		return err
	}
}

// forged returns a client of a host of pull requests.
func forged(provider string) client {
	return func(ctx context.Context, t *testing.T, address string) error {
		repository := address + "/plants/line.git"
		if provider == giturl.AzureDevOps {
			repository = address + "/plants/line/_git/line"
		}
		f, err := forge.New(provider, forge.Config{Repository: repository, APIBaseURL: address, Token: func(context.Context) (secret.String, error) { return token() }})
		require.NoError(t, err)
		_, err = f.Open(ctx, "main")
		return err
	}
}

// behaviors are what the server does instead of giving a complete answer.
var behaviors = map[string]http.HandlerFunc{
	"headers without end": func(w http.ResponseWriter, _ *http.Request) {
		raw(w, func(c net.Conn) error {
			_, err := io.WriteString(c, "X-Endless: "+strings.Repeat("x", 1<<16)+"\r\n")
			return err
		})
	},
	"body without end": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "[")
		for chunk := []byte(strings.Repeat(`{"a":"b"},`, 1<<12)); ; {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	},
	"one text without end": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/xml")
		_, _ = io.WriteString(w, "<")
		for chunk := bytes.Repeat([]byte("x"), 1<<16); ; {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	},
	"silence": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	"no more than a byte at a time": func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, " "); err != nil || http.NewResponseController(w).Flush() != nil {
				return
			}
			select {
			case <-r.Context().Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	},
}

// raw takes over the connection of a request, and writes an answer without end.
func raw(w http.ResponseWriter, write func(net.Conn) error) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	_, err = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
	for err == nil {
		err = write(c)
	}
}

// Clients get a context with a short deadline if the server never ends its answer, and otherwise with a long one.
const short, long = time.Second, 10 * time.Second

// begin runs a client against a server, and returns its error. The test fails if the client takes ten times its deadline.
func begin(t *testing.T, run client, address string, deadline time.Duration) error {
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	began := time.Now()
	err := run(ctx, t, address)
	assert.Less(t, time.Since(began), 10*deadline)
	return err
}

// C17, F23: no answer holds a client for long or fills its memory.
func TestAnswersWithoutEnd(t *testing.T) {
	for name, run := range clients {
		if name == apiServer {
			continue
		}
		for behavior, handler := range behaviors {
			t.Run(name+"/"+behavior, func(t *testing.T) {
				t.Parallel()
				var sent atomic.Int64
				server := httptest.NewUnstartedServer(handler)
				server.Listener = counted{server.Listener, &sent}
				server.Start()
				defer server.CloseClientConnections()
				assert.Error(t, begin(t, run, server.URL, short))
				assert.Less(t, sent.Load(), int64(256<<20), "the client must stop reading")
			})
		}
	}
}

// F9, U5: a client must not take its credential to another host, nor repeat what a server echoes.
func TestCredentialStaysWithServer(t *testing.T) {
	for name, run := range clients {
		for _, status := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
			t.Run(fmt.Sprintf("%s/redirect %d", name, status), func(t *testing.T) {
				t.Parallel()
				other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					t.Errorf("a request for %s went to the other host", r.URL.Path)
				}))
				defer other.Close()
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL+r.URL.Path, status) }))
				defer server.Close()
				err := begin(t, run, server.URL, long)
				require.Error(t, err)
				notShown(t, err)
			})
		}
		for _, status := range []int{http.StatusOK, http.StatusUnauthorized, http.StatusForbidden, http.StatusUnprocessableEntity, http.StatusInternalServerError} {
			if name == apiServer {
				continue
			}
			t.Run(fmt.Sprintf("%s/echo %d", name, status), func(t *testing.T) {
				t.Parallel()
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { echo(w, r, status) }))
				defer server.Close()
				if err := begin(t, run, server.URL, long); err != nil {
					notShown(t, err)
				}
			})
		}
		t.Run(name+"/unknown certificate", func(t *testing.T) {
			t.Parallel()
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a request was sent") }))
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			server.StartTLS()
			defer server.Close()
			err := begin(t, run, server.URL, long)
			require.Error(t, err)
			notShown(t, err)
		})
	}
}

// echo answers with all that the request contained, as JSON with the usual names for messages.
func echo(w http.ResponseWriter, r *http.Request, status int) {
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	query, _ := url.QueryUnescape(r.URL.RawQuery)
	text := fmt.Sprint(r.Header, string(body), query)
	answer, _ := json.Marshal(map[string]any{"message": text, "error": map[string]string{"message": text}, "error_description": text, "reason": text})
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Www-Authenticate", "Basic realm="+strconv.Quote(text))
	w.WriteHeader(status)
	_, _ = w.Write(answer)
}

// notShown checks that an error does not show the credential in any form in which it was sent.
func notShown(t *testing.T, err error) {
	t.Helper()
	for _, form := range []string{credential, base64.StdEncoding.EncodeToString([]byte("git:" + credential)), base64.StdEncoding.EncodeToString([]byte(":" + credential)), "eyJ"} { // a JSON Web Token begins with that
		assert.NotContains(t, err.Error(), form)
	}
}

// counted counts what a server sends.
type counted struct {
	net.Listener
	sent *atomic.Int64
}

func (l counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return countedConn{c, l.sent}, err
}

type countedConn struct {
	net.Conn
	sent *atomic.Int64
}

func (c countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.sent.Add(int64(n))
	return n, err
}
