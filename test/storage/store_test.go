package storage

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/archive/archivetest"
	"stoker.io/stoker/agent/archive/azure"
	"stoker.io/stoker/agent/archive/gcs"
	"stoker.io/stoker/agent/archive/s3"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/program"
)

func newS3(t *testing.T, endpoint, bucket, credentials string) archive.Store {
	t.Helper()
	s, err := s3.New(&v1alpha1.SnapshotStorage{Bucket: bucket, Endpoint: endpoint}, text(credentials))
	require.NoError(t, err)
	return s
}

func newGCS(t *testing.T, endpoint, bucket, key string) archive.Store {
	t.Helper()
	s, err := gcs.New(&v1alpha1.SnapshotStorage{Bucket: bucket, Endpoint: endpoint}, text(key))
	require.NoError(t, err)
	return s
}

func newAzure(t *testing.T, endpoint, container, credentials string) archive.Store {
	t.Helper()
	s, err := azure.New(&v1alpha1.SnapshotStorage{Account: azureAccount, Bucket: container, Endpoint: endpoint}, text(credentials))
	require.NoError(t, err)
	return s
}

// refused is a store that refuses every call, and what its error must say.
type refused struct {
	name  string
	store archive.Store
	want  string
}

// explains checks the errors of stores that are refused.
func explains(t *testing.T, cases []refused) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := c.store.List(t.Context(), "")
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "S3CR3T")
			require.ErrorContains(t, c.store.Put(t.Context(), "a", strings.NewReader("a")), c.want)
		})
	}
}

const (
	uploadSize   = 40 << 20 // bytes of an upload
	uploadMemory = 8 << 20  // bytes by which the heap may grow meanwhile
)

// measured is a stream of uploadSize bytes that notes how large the heap is while it is read.
type measured struct {
	left int
	peak uint64
}

func (m *measured) Read(p []byte) (int, error) {
	if m.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), m.left, 256<<10)
	for i := range p[:n] {
		p[i] = byte(m.left - i)
	}
	m.left -= n
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	m.peak = max(m.peak, now.HeapAlloc)
	return n, nil
}

// uploadsInParts checks that an upload holds only a part in memory, with the garbage collector as in the agent.
func uploadsInParts(t *testing.T, s archive.Store) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		defer debug.SetGCPercent(debug.SetGCPercent(20))
		require.NoError(t, s.Put(t.Context(), "memory/first", strings.NewReader("connected")))
		runtime.GC()
		var before runtime.MemStats
		runtime.ReadMemStats(&before)
		m := &measured{left: uploadSize}
		require.NoError(t, s.Put(t.Context(), "memory/large", m))
		require.NoError(t, s.Delete(t.Context(), "memory/large"))
		require.NoError(t, s.Delete(t.Context(), "memory/first"))
		t.Logf("%.1f MiB", float64(m.peak-before.HeapAlloc)/(1<<20))
		assert.Less(t, m.peak-before.HeapAlloc, uint64(uploadMemory))
	})
}

func TestS3(t *testing.T) {
	endpoint := startS3(t)
	archivetest.Run(t, newS3(t, endpoint, "backups", credentials(secretKey)))
	uploadsInParts(t, newS3(t, endpoint, "backups", credentials(secretKey)))
	explains(t, []refused{
		{"wrong key", newS3(t, endpoint, "backups", credentials("S3CR3T-OTHER")), "refuses access (\"SignatureDoesNotMatch\")"},
		{"missing bucket", newS3(t, endpoint, "missing", credentials(secretKey)), "NoSuchBucket"},
		{"no credentials", newS3(t, endpoint, "backups", "S3CR3T"), "needs the lines aws_access_key_id"},
	})
}

func TestGCS(t *testing.T) {
	endpoint, tokens := startGCS(t), startTokens(t)
	archivetest.Run(t, newGCS(t, endpoint, "backups", googleKey(t, tokens+"/token")))
	uploadsInParts(t, newGCS(t, endpoint, "backups", googleKey(t, tokens+"/token")))
	explains(t, []refused{
		{"key that Google does not know", newGCS(t, endpoint, "backups", googleKey(t, tokens+"/refuse")), "the server answered 400 (\"invalid_grant\")"},
		{"missing bucket", newGCS(t, endpoint, "missing", googleKey(t, tokens+"/token")), "spec.snapshots.storage.bucket: there is no bucket missing"},
		{"no key", newGCS(t, endpoint, "backups", "S3CR3T"), "needs the key of a service account"},
	})
}

func TestAzure(t *testing.T) {
	endpoint := startAzure(t)
	archivetest.Run(t, newAzure(t, endpoint, "backups", azureKey))
	uploadsInParts(t, newAzure(t, endpoint, "backups", azureKey))
	t.Run("shared access signature", func(t *testing.T) {
		s := newAzure(t, endpoint, "backups", "?"+signature(time.Now().Add(time.Hour)))
		for _, size := range []int{3, 5 << 20} { // sequence: of one block and of two
			require.NoError(t, s.Put(t.Context(), "signed/a b", strings.NewReader(strings.Repeat("a", size))))
			keys, err := s.List(t.Context(), "signed/")
			require.NoError(t, err)
			assert.Equal(t, []string{"signed/a b"}, keys)
			require.NoError(t, s.Delete(t.Context(), "signed/a b"))
		}
	})
	explains(t, []refused{
		{"wrong key", newAzure(t, endpoint, "backups", "UzNDUjNULU9USEVS"), "spec.snapshots.storage.secretRef: the container backups refuses the credentials (\"AuthorizationFailure\")"},
		{"signature that has expired", newAzure(t, endpoint, "backups", signature(time.Now().Add(-time.Hour))), "check that they are right, have not expired"},
		{"missing container", newAzure(t, endpoint, "missing", azureKey), "spec.snapshots.storage.bucket: there is no container missing"},
		{"no key", newAzure(t, endpoint, "backups", "S3CR3T!"), "needs an access key of the storage account"},
	})
}

// lost is object storage that an agent uses with a wrong and then a right Secret.
type lost struct {
	spec         string // spec.snapshots.storage
	wrong, right string // the Secrets
	refusal      string // what the agent logs with the wrong one
	store        archive.Store
}

func TestLostVolumeComesBack(t *testing.T) {
	for _, c := range []struct {
		name  string
		start func(t *testing.T) lost
	}{
		{"s3", func(t *testing.T) lost {
			endpoint := startS3(t)
			return lost{
				spec:  fmt.Sprintf("{type: s3, bucket: backups, keyPrefix: plant/, endpoint: %q, secretRef: {name: storage, key: key}}", endpoint),
				wrong: credentials("S3CR3T-OTHER"), right: credentials(secretKey), refusal: "refuses access", store: newS3(t, endpoint, "backups", credentials(secretKey)),
			}
		}},
		{"gcs", func(t *testing.T) lost {
			endpoint, tokens := startGCS(t), startTokens(t)
			key := googleKey(t, tokens+"/token")
			return lost{
				spec:  fmt.Sprintf("{type: gcs, bucket: backups, keyPrefix: plant/, endpoint: %q, secretRef: {name: storage, key: key}}", endpoint),
				wrong: googleKey(t, tokens+"/refuse"), right: key, refusal: "cannot get a token for service account", store: newGCS(t, endpoint, "backups", key),
			}
		}},
		{"azure", func(t *testing.T) lost {
			endpoint := startAzure(t)
			return lost{
				spec: fmt.Sprintf("{type: azure, account: %s, bucket: backups, keyPrefix: plant/, endpoint: %q, secretRef: {name: storage, key: key}}",
					azureAccount, endpoint),
				wrong: "UzNDUjNULU9USEVS", right: signature(time.Now().Add(time.Hour)), refusal: "refuses the credentials", store: newAzure(t, endpoint, "backups", azureKey),
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) { comesBack(t, c.start(t)) })
	}
}

const (
	azureAccount = "plants"
	azureKey     = "UzNDUjNULUtFWQ==" // S3CR3T-KEY
)

// startAzure starts a server with the API of Azure Blob Storage and a container, and returns its endpoint. It is an npm package.
func startAzure(t *testing.T) string {
	t.Helper()
	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Skip("npm is not installed: no server of Azure's API")
	}
	servers.Lock()
	defer servers.Unlock()
	const bin = "node_modules/.bin/azurite-blob"
	if _, err := os.Stat(bin); err != nil {
		out, err := exec.CommandContext(t.Context(), npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund").CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	dir, address := t.TempDir(), free(t)
	host, port, _ := strings.Cut(address, ":")
	file, err := filepath.Abs(bin)
	require.NoError(t, err)
	cmd := exec.Command(file, "--blobHost", host, "--blobPort", port, "--location", dir, "--silent", "--disableTelemetry")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "AZURITE_ACCOUNTS=" + azureAccount + ":" + azureKey}
	program.Start(t, "azurite", cmd)
	listens(t, address)
	endpoint := "http://" + address
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, endpoint+"/"+azureAccount+"/backups?restype=container&"+signature(time.Now().Add(time.Hour)), nil)
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusCreated, res.StatusCode)
	return endpoint
}

// signature returns a shared access signature of the account.
func signature(expires time.Time) string {
	const version, permissions, services, types = "2019-12-12", "racwdl", "b", "sco"
	until := expires.UTC().Format(time.RFC3339)
	key, _ := base64.StdEncoding.DecodeString(azureKey)
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(strings.Join([]string{azureAccount, permissions, services, types, "", until, "", "", version, ""}, "\n")))
	return url.Values{
		"sv": {version}, "sp": {permissions}, "ss": {services}, "srt": {types}, "se": {until}, "sig": {base64.StdEncoding.EncodeToString(mac.Sum(nil))},
	}.Encode()
}

// startGCS starts a server with Google's JSON API and a bucket, and returns its endpoint. It asks for no credentials.
func startGCS(t *testing.T) string {
	t.Helper()
	address := free(t)
	host, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	program.Start(t, "fake-gcs-server", exec.Command(build(t, "github.com/fsouza/fake-gcs-server"), "-scheme", "http", "-host", host, "-port", port, "-backend", "memory",
		"-data", t.TempDir(), "-log-level", "warn"))
	listens(t, address)
	endpoint := "http://" + address
	res, err := http.Post(endpoint+"/storage/v1/b", "application/json", strings.NewReader(`{"name": "backups"}`))
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusOK, res.StatusCode)
	return endpoint
}

// startTokens starts a server that gives tokens at /token, and refuses them at /refuse.
func startTokens(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/token" {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error": "invalid_grant", "error_description": "S3CR3T"}`)
			return
		}
		_, _ = io.WriteString(w, `{"access_token": "S3CR3T-TOKEN", "token_type": "Bearer", "expires_in": 3600}`)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

var rsaKey = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) })

// googleKey returns the key of a service account whose tokens come from an address.
func googleKey(t *testing.T, tokens string) string {
	t.Helper()
	key, err := rsaKey()
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	text, err := json.Marshal(string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	require.NoError(t, err)
	return fmt.Sprintf(`{"type": "service_account", "client_email": "stoker@plants.example.com", "private_key_id": "1", "private_key": %s, "token_uri": %q}`, text, tokens)
}
