package s3

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/archive/archivetest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// open returns the bucket backups of a server.
func open(t *testing.T, server string) archive.Store {
	t.Helper()
	s, err := New(&v1alpha1.SnapshotStorage{Bucket: "backups", Endpoint: server, PathStyle: true}, func() (secret.String, error) {
		return secret.New("aws_access_key_id=stoker\naws_secret_access_key=S3CR3T-KEY\naws_session_token=S3CR3T-TOKEN-" + strings.Repeat("t", 1000)), nil
	})
	require.NoError(t, err)
	return s
}

// endless writes begin, and then part until the client has gone.
func endless(w http.ResponseWriter, begin, part string) {
	part = strings.Repeat(part, 1000)
	_, err := io.WriteString(w, begin)
	for err == nil {
		_, err = io.WriteString(w, part)
	}
}

func TestTruncatedSource(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"a"`)
		if r.URL.Query().Has("uploads") {
			_, _ = io.WriteString(w, "<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>")
		}
	}))
	defer server.Close()
	err := open(t, server.URL).Put(t.Context(), "a", io.MultiReader(strings.NewReader("part"), iotest.ErrReader(io.ErrUnexpectedEOF)))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

// F23 of docs/internals/threats.md: a server that is hostile or broken.
func TestHostileServer(t *testing.T) {
	refusal := func(status int, code, message string) http.HandlerFunc {
		return archivetest.Answer(status, "<Error><Code>"+code+"</Code><Message>"+message+"</Message></Error>")
	}
	contents := func(items string) string { return "<ListBucketResult>" + items + "</ListBucketResult>" }
	const item = "<Contents><Key>p/a</Key></Contents>"
	const tooLarge = "the answer of the server has more than"
	archivetest.RunHostile(t, open, func(elsewhere string) []archivetest.Hostile {
		return []archivetest.Hostile{
			{"redirect", archivetest.Redirect(http.StatusTemporaryRedirect, elsewhere), archivetest.List, "the bucket backups answers 307"},
			{"list without an end", func(w http.ResponseWriter, _ *http.Request) { endless(w, "<ListBucketResult>", item) }, archivetest.List, tooLarge},
			{"list of empty items", archivetest.Answer(http.StatusOK, contents(strings.Repeat("<Contents/>", maxTags))), archivetest.List, tooLarge},
			{"huge key", archivetest.Answer(http.StatusOK, contents("<Contents><Key>"+strings.Repeat("x", maxAnswer)+"</Key></Contents>")), archivetest.List, tooLarge},
			{"pages without an end", archivetest.Answer(http.StatusOK, contents(
				strings.Repeat(item, 1000)+"<IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>",
			)), archivetest.List, "more than 10000 objects below p/"},
			{"upload without an end", func(w http.ResponseWriter, _ *http.Request) {
				endless(w, "<InitiateMultipartUploadResult>", "<x/>")
			}, archivetest.Put(4), tooLarge},
			{"refusal without an end", func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusBadRequest)
				endless(w, "", "no")
			}, archivetest.Get, "the bucket backups answers 400"},
			{"long refusal", refusal(http.StatusBadRequest, strings.Repeat("r", 300), strings.Repeat("\x1b", 300)), archivetest.List, "the bucket backups answers 400"},
			{"answer without a list", archivetest.Answer(http.StatusOK, "<html>"), archivetest.List, "unexpected EOF"},
			{"hang", archivetest.Hang, archivetest.List, "context canceled"},
			{"wrong rights", refusal(http.StatusForbidden, "AccessDenied", "no"), archivetest.List, `the bucket backups refuses access ("AccessDenied"): give the credentials the rights`},
			{"missing bucket", refusal(http.StatusNotFound, "NoSuchBucket", "no"), archivetest.List, `the bucket backups answers 404 ("NoSuchBucket")`},
			{"the token is repeated", func(w http.ResponseWriter, r *http.Request) {
				refusal(http.StatusBadRequest, "InvalidToken", "the token "+r.Header.Get("X-Amz-Security-Token")+" is invalid")(w, r)
			}, archivetest.List, `the bucket backups answers 400 ("InvalidToken"): "the token REDACTED"`},
			{"the token is repeated as text", func(w http.ResponseWriter, r *http.Request) {
				http.Error(w, "invalid: "+r.Header.Get("X-Amz-Security-Token"), http.StatusBadRequest)
			}, archivetest.List, `"invalid: REDACTED"`},
			{"truncated", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "10") }, archivetest.List, "unexpected EOF"},
		}
	})
}

// If the credentials cannot be read, the token of the request is unknown, and no text of the server is shown.
func TestRedactionWithoutCredentials(t *testing.T) {
	var gone atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		gone.Store(true)
		http.Error(w, "invalid: "+r.Header.Get("X-Amz-Security-Token"), http.StatusBadRequest)
	}))
	defer server.Close()
	s, err := New(&v1alpha1.SnapshotStorage{Bucket: "backups", Endpoint: server.URL, PathStyle: true}, func() (secret.String, error) {
		if gone.Load() {
			return secret.String{}, errors.New("the Secret is gone")
		}
		return secret.New("aws_access_key_id=stoker\naws_secret_access_key=S3CR3T-KEY\naws_session_token=S3CR3T-TOKEN"), nil
	})
	require.NoError(t, err)
	_, err = s.List(t.Context(), "")
	require.ErrorContains(t, err, "the bucket backups answers 400")
	assert.NotContains(t, err.Error(), "S3CR3T")
}

// F23 of docs/internals/threats.md: no listing takes much memory, and the first page that is out of bounds ends it.
func TestHostileListing(t *testing.T) {
	large := strings.Repeat("x", 7<<20)
	page := func(items string) string {
		return "<ListBucketResult>" + items + "<IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken></ListBucketResult>"
	}
	archivetest.RunHostileListing(t, open, map[string]struct{ Body, Err string }{
		"one large key a page":     {page("<Contents><Key>p/" + large + "</Key></Contents>"), errTooLarge.Error()},
		"keys of 8 KB":             {page(strings.Repeat("<Contents><Key>p/"+large[:8000]+"</Key></Contents>", 900)), "the server lists a key of 8002 bytes below p/, more than 1024"},
		"an element of attributes": {page("<Contents " + strings.Repeat(`a="" `, 1<<20) + "><Key>p/a</Key></Contents>"), errTooLarge.Error()},
		"a large token":            {"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>" + large + "</NextContinuationToken></ListBucketResult>", errTooLarge.Error()},
		"empty items":              {page(strings.Repeat("<Contents/>", maxTags-10)), "there are more than 10000 objects below p/"},
	})
}

// The bounds do not apply to object bodies, and the largest page that S3 sends is within them.
func TestWithinBounds(t *testing.T) {
	item := `<Contents><Key>%s%04d</Key><LastModified>2026-11-20T06:30:00.000Z</LastModified><ETag>&quot;0&quot;</ETag><ChecksumAlgorithm>CRC32</ChecksumAlgorithm>` +
		`<ChecksumType>FULL_OBJECT</ChecksumType><Size>1</Size><Owner><ID>a</ID><DisplayName>b</DisplayName></Owner><StorageClass>STANDARD</StorageClass>` +
		`<RestoreStatus><IsRestoreInProgress>false</IsRestoreInProgress><RestoreExpiryDate>2026-11-20T06:30:00.000Z</RestoreExpiryDate></RestoreStatus></Contents>`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == "" {
			w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
			_, _ = io.WriteString(w, strings.Repeat("<", maxAnswer+1))
			return
		}
		_, _ = io.WriteString(w, "<ListBucketResult>")
		for i := range 1000 {
			_, _ = fmt.Fprintf(w, item, strings.Repeat("%C3%A4", 500), i)
		}
		_, _ = io.WriteString(w, "<EncodingType>url</EncodingType></ListBucketResult>")
	}))
	defer server.Close()
	keys, err := open(t, server.URL).List(t.Context(), "")
	require.NoError(t, err)
	assert.Len(t, keys, 1000)
	r, err := open(t, server.URL).Get(t.Context(), "a")
	require.NoError(t, err)
	n, err := io.Copy(io.Discard, r)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	assert.EqualValues(t, maxAnswer+1, n)
}

// F23 of docs/internals/threats.md: only the server that gives the pod its credentials gets the pod's token; a redirect of it is not followed.
func TestIdentityFollowsNoRedirect(t *testing.T) {
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	tokens := make(chan string, 10)
	identity := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tokens <- r.Header.Get("Authorization")
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	}))
	defer identity.Close()
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", identity.URL)
	t.Setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "S3CR3T-TOKEN")
	s, err := New(&v1alpha1.SnapshotStorage{Bucket: "backups", Endpoint: other.URL, PathStyle: true}, nil)
	require.NoError(t, err)
	_, err = s.List(t.Context(), "p/")
	require.Error(t, err)
	require.Len(t, tokens, 1)
	assert.Equal(t, "S3CR3T-TOKEN", <-tokens)
	assert.Zero(t, elsewhere.Load())
}

// C17: the answer of the server that gives the pod its credentials does not fill the memory of the agent.
func TestIdentityAnswerWithoutEnd(t *testing.T) {
	var sent atomic.Int64
	identity := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, err := io.WriteString(w, `{"Token":"`)
		for chunk := bytes.Repeat([]byte("x"), 1<<16); err == nil && sent.Load() < 256<<20; sent.Add(int64(len(chunk))) {
			_, err = w.Write(chunk)
		}
	}))
	defer identity.Close()
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", identity.URL)
	s, err := New(&v1alpha1.SnapshotStorage{Bucket: "backups", Endpoint: identity.URL, PathStyle: true}, nil)
	require.NoError(t, err)
	_, err = s.List(t.Context(), "p/")
	require.ErrorIs(t, err, errTooLarge)
	assert.Less(t, sent.Load(), int64(64<<20), "the client must stop reading")
}

// A proxy must not see the credentials of a pod's identity, which a cloud serves without TLS.
func TestIdentityWithoutProxy(t *testing.T) {
	for _, tt := range []struct {
		scheme  string
		proxied int32
	}{{"http", 0}, {"https", 1}} {
		t.Run(tt.scheme, func(t *testing.T) {
			var proxied atomic.Int32
			proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				proxied.Add(1)
				w.WriteHeader(http.StatusForbidden)
			}))
			defer proxy.Close()
			address, err := url.Parse(proxy.URL)
			require.NoError(t, err)
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, tt.scheme+"://127.0.0.1:1/v1/credentials", http.NoBody)
			require.NoError(t, err)
			res, err := identityHTTP(http.ProxyURL(address)).Do(r)
			if err == nil {
				_ = res.Body.Close()
			}
			require.Error(t, err)
			assert.Equal(t, tt.proxied, proxied.Load())
		})
	}
}
