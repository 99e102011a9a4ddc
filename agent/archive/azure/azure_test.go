package azure

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/archive/archivetest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// sas is a shared access signature. The signature of a real one has the same characters.
const sas = "?sv=2021-12-02&se=2026-12-01T00%3A00%3A00Z&sr=c&sp=racwdl&sig=S3CR3T%2Bsignature%3D"

func open(t *testing.T, endpoint, text string) archive.Store {
	t.Helper()
	s, err := New(&v1alpha1.SnapshotStorage{Account: "plants", Bucket: "backups", Endpoint: endpoint}, func() (secret.String, error) { return secret.New(text), nil })
	require.NoError(t, err)
	return s
}

// TestSharedKey compares with the example of Microsoft's documentation.
func TestSharedKey(t *testing.T) {
	req, err := http.NewRequest(http.MethodGet, "https://myaccount.blob.core.windows.net/mycontainer?comp=metadata&restype=container&timeout=20", nil)
	require.NoError(t, err)
	req.Header.Set("x-ms-date", "Fri, 26 Jun 2015 23:39:12 GMT")
	req.Header.Set("x-ms-version", "2015-02-21")
	assert.Equal(t, "GET\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\nx-ms-version:2015-02-21\n"+
		"/myaccount/mycontainer\ncomp:metadata\nrestype:container\ntimeout:20", stringToSign("myaccount", req))
}

func TestAddress(t *testing.T) {
	for _, c := range []struct{ name, endpoint, want string }{
		{"Azure", "", "https://plants.blob.core.windows.net/backups/a/b%20c+d"},
		{"another cloud", "plants.blob.core.chinacloudapi.cn", "https://plants.blob.core.chinacloudapi.cn/backups/a/b%20c+d"},
		{"an emulator", "http://azurite:10000", "http://azurite:10000/plants/backups/a/b%20c+d"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := open(t, c.endpoint, sas).(store).request(http.MethodGet, "a/b c+d", nil, nil)
			assert.Equal(t, c.want, r.URL.String())
		})
	}
}

// F23 of docs/internals/threats.md: a server that is hostile or broken.
func TestHostileServer(t *testing.T) {
	answer := func(status int, code, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Ms-Error-Code", code)
			archivetest.Answer(status, body)(w, r)
		}
	}
	signed := func(t *testing.T, server string) archive.Store { return open(t, server, sas) }
	archivetest.RunHostile(t, signed, func(elsewhere string) []archivetest.Hostile {
		return []archivetest.Hostile{
			{"redirect", archivetest.Redirect(http.StatusTemporaryRedirect, elsewhere), archivetest.List, "spec.snapshots.storage.endpoint: the server answers with a redirect (307), which is not followed"},
			{"redirect of an upload", archivetest.Redirect(http.StatusPermanentRedirect, elsewhere), archivetest.Put(10), "redirect (308)"},
			{"huge list", answer(http.StatusOK, "", "<EnumerationResults>"+strings.Repeat("x", 9<<20)), archivetest.List, "has more than 8388608 bytes"},
			{"huge refusal", answer(http.StatusBadRequest, "", strings.Repeat("x", 9<<20)), archivetest.List, "the container backups answers 400"},
			{"long refusal", answer(http.StatusConflict, strings.Repeat("c", 300), "<Error><Message>"+strings.Repeat("é", 300)+"</Message></Error>"), archivetest.Put(1), "answers 409"},
			{"no list", answer(http.StatusOK, "", "<html></html>"), archivetest.List, "did not answer with a list of blobs"},
			{"endless pages", answer(http.StatusOK, "", "<EnumerationResults><Blobs>"+strings.Repeat("<Blob><Name>p/a</Name></Blob>", 1000)+
				"</Blobs><NextMarker>again</NextMarker></EnumerationResults>"), archivetest.List, "more than 10000 objects below p/"},
			{"hang", archivetest.Hang, archivetest.List, "the transfer stalls"},
			{"wrong credentials", answer(http.StatusForbidden, "AuthenticationFailed", ""), archivetest.List, `spec.snapshots.storage.secretRef: the container backups refuses the credentials ("AuthenticationFailed"): check that they are right, have not expired`},
			{"missing container", answer(http.StatusNotFound, "ContainerNotFound", ""), archivetest.Put(blockSize + 1), `spec.snapshots.storage.bucket: there is no container backups ("ContainerNotFound")`},
			{"missing container of a blob", answer(http.StatusNotFound, "ContainerNotFound", ""), archivetest.Get, "there is no container backups"},
			{"missing blob", answer(http.StatusNotFound, "BlobNotFound", ""), archivetest.Get, fs.ErrNotExist.Error()},
			{"echoed signature", func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusBadRequest)
				_, _ = io.WriteString(w, "<Error><Message>"+r.URL.Query().Get("sig")+" "+strings.ReplaceAll(r.URL.RawQuery, "&", " ")+"</Message></Error>")
			}, archivetest.List, "REDACTED"},
			{"not HTTP", func(w http.ResponseWriter, _ *http.Request) {
				conn, _, _ := http.NewResponseController(w).Hijack()
				_ = conn.Close()
			}, func(ctx context.Context, s archive.Store) error { return s.Put(ctx, "a", strings.NewReader("x")) }, "spec.snapshots.storage: "},
		}
	})
	t.Run("endless empty pages", func(t *testing.T) {
		server := httptest.NewServer(answer(http.StatusOK, "", "<EnumerationResults><NextMarker>again</NextMarker></EnumerationResults>"))
		defer server.Close()
		assert.True(t, failure.Is(archivetest.List(t.Context(), open(t, server.URL, sas)), v1alpha1.ReasonLimitExceeded))
	})
	t.Run("source that fails with io.ErrUnexpectedEOF", func(t *testing.T) {
		server := httptest.NewServer(answer(http.StatusCreated, "", ""))
		defer server.Close()
		broken := io.MultiReader(bytes.NewReader(make([]byte, blockSize+1)), failing{io.ErrUnexpectedEOF})
		require.ErrorIs(t, open(t, server.URL, sas).Put(t.Context(), "a", broken), io.ErrUnexpectedEOF)
	})
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestWrongSecret(t *testing.T) {
	for name, text := range map[string]string{"empty": "", "not base64": "S3CR3T-KEY!", "a connection string": "AccountName=plants;AccountKey=S3CR3T=="} {
		t.Run(name, func(t *testing.T) {
			_, err := open(t, "", text).List(t.Context(), "")
			require.ErrorContains(t, err, "the Secret of spec.snapshots.storage.secretRef needs an access key")
			assert.NotContains(t, err.Error(), "S3CR3T")
		})
	}
}

func TestPodIdentity(t *testing.T) {
	var seen, refusal atomic.Pointer[string]
	accepted := "Bearer S3CR3T-POD"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := r.Header.Get("Authorization")
		if seen.Store(&token); token != accepted {
			w.Header().Set("X-Ms-Error-Code", "InvalidAuthenticationInfo")
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, "<EnumerationResults/>")
	}))
	defer server.Close()
	asked := 0
	authority := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if text := refusal.Load(); text != nil {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, *text)
			return
		}
		if r.URL.Path == "/tenant/oauth2/v2.0/token" && r.FormValue("client_id") == "client" && r.FormValue("client_assertion") == "S3CR3T-PROOF" && r.FormValue("scope") == "https://storage.azure.com/.default" {
			_ = json.NewEncoder(w).Encode(map[string]any{"access_token": "S3CR3T-POD", "expires_in": "3600"})
		}
	}))
	defer authority.Close()
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("S3CR3T-PROOF\n"), 0o600))
	for k, v := range map[string]string{"AZURE_CLIENT_ID": "client", "AZURE_TENANT_ID": "tenant", "AZURE_FEDERATED_TOKEN_FILE": file, "AZURE_AUTHORITY_HOST": authority.URL + "/"} {
		t.Setenv(k, v) // setup: the variables of the pod
	}
	s, err := New(&v1alpha1.SnapshotStorage{Account: "plants", Bucket: "backups", Endpoint: server.URL}, nil)
	require.NoError(t, err)
	list := func() error {
		_, err := s.List(t.Context(), "")
		return err
	}
	require.NoError(t, list())
	require.NoError(t, list())
	assert.Equal(t, accepted, *seen.Load())
	assert.Equal(t, 1, asked)
	t.Run("expired token", func(t *testing.T) {
		accepted = "another"
		err := list()
		require.ErrorContains(t, err, `spec.snapshots.storage: the container backups refuses the identity of the pod ("InvalidAuthenticationInfo"): check that it has the rights`)
		assert.Equal(t, 2, asked, "one retry with a new token")
		assert.NotContains(t, err.Error(), "S3CR3T")
	})
	t.Run("no token", func(t *testing.T) {
		text := `{"error": "invalid_client", "error_description": "S3CR3T-PROOF"}`
		refusal.Store(&text)
		_ = list() // the client still has the failed token
		s, err = New(&v1alpha1.SnapshotStorage{Account: "plants", Bucket: "backups", Endpoint: server.URL}, nil)
		require.NoError(t, err)
		err := list()
		require.ErrorContains(t, err, `the server answered 401 ("invalid_client")`)
		assert.NotContains(t, err.Error(), "S3CR3T")
	})
	t.Run("no identity", func(t *testing.T) {
		t.Setenv("AZURE_CLIENT_ID", "")
		require.ErrorContains(t, list(), "spec.snapshots.storage: cannot get a token for the identity of the pod: set secretRef, or label the pod azure.workload.identity/use=true")
	})
}

// F23 of docs/internals/threats.md: no listing takes much memory, and the first page that is out of bounds ends it.
func TestHostileListing(t *testing.T) {
	large := strings.Repeat("x", 7<<20)
	page := func(blobs string) string {
		return "<EnumerationResults><Blobs>" + blobs + "</Blobs><NextMarker>again</NextMarker></EnumerationResults>"
	}
	archivetest.RunHostileListing(t, func(t *testing.T, server string) archive.Store { return open(t, server, sas) }, map[string]struct{ Body, Err string }{
		"one large key a page":     {page("<Blob><Name>p/" + large + "</Name></Blob>"), ""},
		"empty items":              {page(strings.Repeat("<Blob/>", 1<<20)), ""},
		"an element of attributes": {page("<Blob " + strings.Repeat(`a="" `, 1<<20) + "></Blob>"), ""},
		"a large token":            {"<EnumerationResults><NextMarker>" + large + "</NextMarker></EnumerationResults>", ""},
	})
}
