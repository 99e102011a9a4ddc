// Package gcs keeps archives in Google Cloud Storage, through its JSON API. It does not use Google's own library, which would add gRPC and
// tens of megabytes to the agent, and whose setup is more code than the requests here.
package gcs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/jwt"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/archive/rest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

const (
	host = "storage.googleapis.com"
	// chunkSize is the buffer of an upload. All chunks but the last must be a multiple of 256 KiB.
	chunkSize = 4 << 20
	// maxStalls is the number of requests in a row that store nothing after which an upload fails.
	maxStalls = 3
)

// store implements archive.Store.
type store struct {
	client *rest.Client
	server url.URL
	bucket string
}

// New returns a Store that keeps its objects in the bucket that spec names. It does not connect. readSecret reads the key of the service account
// on each use, so that a rotated one takes effect immediately; nil stands for the identity of the pod.
func New(spec *v1alpha1.SnapshotStorage, readSecret func() (secret.String, error)) (archive.Store, error) {
	server := rest.Server(cmp.Or(spec.Endpoint, host))
	t := newTokens(readSecret)
	c := rest.NewClient()
	c.Field, c.Kind, c.Name, c.HasSecret = field, "bucket", spec.Bucket, readSecret != nil
	c.Authorize, c.Renew, c.Code = t.Authorize, t.Renew, errorCode
	return store{c, server, spec.Bucket}, nil
}

// field is the path of this storage in the spec of a GatewaySync; error messages name it.
const field = archive.Field

// errorCode returns the error code and the message of an error response. Both are empty if another server answered, such as a proxy.
func errorCode(_ http.Header, body []byte) (code, message string) {
	var e struct {
		Error struct {
			Message string
			Errors  []struct{ Reason string }
		}
	}
	_ = json.Unmarshal(body, &e)
	if len(e.Error.Errors) > 0 {
		code = e.Error.Errors[0].Reason
	}
	return code, e.Error.Message
}

// address returns the address of the bucket's objects, or of the one with a key. service is "", or /upload for uploads.
func (s store) address(service, key string, query url.Values) url.URL {
	u := s.server
	path := service + "/storage/v1/b/" + url.PathEscape(s.bucket) + "/o"
	if key != "" {
		path += "/" + url.PathEscape(key)
	}
	u.Path, _ = url.PathUnescape(path) // cannot fail: path was escaped above
	u.RawPath, u.RawQuery = path, query.Encode()
	return u
}

func (s store) Put(ctx context.Context, key string, r io.Reader) error {
	var session *url.URL
	offset := int64(0)
	return rest.Blocks(r, chunkSize, func(chunk []byte, last bool) error {
		if last && session == nil { // a small object needs one request
			_, _, err := s.client.Page(ctx, rest.Request{
				Method: http.MethodPost, URL: s.address("/upload", "", url.Values{"uploadType": {"media"}, "name": {key}}),
				Header: http.Header{"Content-Type": {"application/octet-stream"}}, Body: chunk,
			})
			return err
		}
		if session == nil {
			var err error
			if session, err = s.begin(ctx, key); err != nil {
				return err
			}
		}
		err := s.send(ctx, *session, chunk, offset, last)
		offset += int64(len(chunk))
		return err
	})
}

// begin starts a resumable upload and returns its address. The object exists only after the last chunk; the server drops an upload that is
// never finished.
func (s store) begin(ctx context.Context, key string) (*url.URL, error) {
	_, header, err := s.client.Page(ctx, rest.Request{
		Method: http.MethodPost, URL: s.address("/upload", "", url.Values{"uploadType": {"resumable"}, "name": {key}}),
		Header: http.Header{"X-Upload-Content-Type": {"application/octet-stream"}},
	})
	if err != nil {
		return nil, err
	}
	location, err := url.Parse(header.Get("Location"))
	if err != nil || location.RawQuery == "" {
		return nil, fmt.Errorf("%s.endpoint: the server returns no address to continue an upload", field)
	}
	// The chunks go to the server of the spec, whatever host the answer names.
	u := s.server
	u.Path, u.RawPath, u.RawQuery = location.Path, location.RawPath, location.RawQuery
	return &u, nil
}

// send uploads a chunk that begins at offset. The server may store only a part of it, or store it and fail to answer: send then asks how much
// was stored, and continues from there.
func (s store) send(ctx context.Context, session url.URL, chunk []byte, offset int64, last bool) error {
	end, total := offset+int64(len(chunk)), "*"
	if last {
		total = strconv.FormatInt(end, 10)
	}
	for next, stalls := offset, 0; next < end || last; { // next is the first byte that the server does not have
		content := fmt.Sprintf("bytes %d-%d/%s", next, end-1, total)
		if next == end {
			content = "bytes */" + total // the server has all bytes, and does not know yet that these are all
		}
		stored, err := s.put(ctx, rest.Request{URL: session, Header: http.Header{"Content-Range": {content}}, Body: chunk[next-offset:], Once: true})
		if err != nil && rest.Transient(err) && ctx.Err() == nil {
			var status error
			if stored, status = s.put(ctx, rest.Request{URL: session, Header: http.Header{"Content-Range": {"bytes */" + total}}}); status != nil {
				return status
			}
		} else if err != nil {
			return err
		}
		switch {
		case stored == complete && last:
			return nil
		case stored == complete:
			return fmt.Errorf("%s.endpoint: the server ended an upload before its last chunk", field)
		case stored < offset || stored > end:
			return fmt.Errorf("%s.endpoint: the server has stored %d bytes of an upload, which was sent from %d to %d", field, stored, offset, end)
		case stored > next && (!last || stored < end):
			stalls = 0
		default:
			if stalls++; stalls == maxStalls {
				if err == nil {
					err = errors.New("it answers that no more bytes have arrived")
				}
				return fmt.Errorf("%s: the bucket %s stores nothing of an upload: %w", field, s.bucket, err)
			}
		}
		next = stored
	}
	return nil
}

// complete is what put returns if the server has the whole object.
const complete = -1

// put sends a part of an upload. It returns how many bytes of the object the server has.
func (s store) put(ctx context.Context, r rest.Request) (int64, error) {
	r.Method, r.Want = http.MethodPut, []int{http.StatusOK, http.StatusCreated, http.StatusPermanentRedirect}
	res, err := s.client.Do(ctx, r)
	if refused, ok := errors.AsType[*rest.StatusError](err); ok && refused.Status == http.StatusNotFound {
		return 0, fmt.Errorf("%s: the bucket %s no longer knows the upload", field, s.bucket)
	}
	if err != nil {
		return 0, err
	}
	_ = res.Body.Close() // the body only describes the object
	if res.StatusCode != http.StatusPermanentRedirect {
		return complete, nil
	}
	if _, last, ok := strings.Cut(res.Header.Get("Range"), "-"); ok {
		n, err := strconv.ParseInt(last, 10, 64)
		if err != nil || n < 0 {
			return 0, fmt.Errorf("%s.endpoint: the server has stored the range %s of an upload", field, failure.Quote(res.Header.Get("Range")))
		}
		return n + 1, nil
	}
	return 0, nil
}

func (s store) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	return s.client.Get(ctx, rest.Request{Method: http.MethodGet, URL: s.address("", key, url.Values{"alt": {"media"}})})
}

func (s store) List(ctx context.Context, prefix string) ([]string, error) {
	query := url.Values{"prefix": {prefix}, "maxResults": {"1000"}, "fields": {"items(name),nextPageToken"}}
	return rest.List(prefix, func(token string) (keys []string, next string, err error) {
		if token != "" {
			query.Set("pageToken", token)
		}
		body, _, err := s.client.Page(ctx, rest.Request{Method: http.MethodGet, URL: s.address("", "", query)})
		if err != nil {
			return nil, "", err
		}
		var page struct {
			Items         []struct{ Name string }
			NextPageToken string
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return nil, "", fmt.Errorf("%s: the bucket %s did not answer with a list of objects", field, s.bucket)
		}
		for _, o := range page.Items {
			keys = append(keys, o.Name)
		}
		return keys, page.NextPageToken, nil
	})
}

func (s store) Delete(ctx context.Context, key string) error {
	return s.client.Delete(ctx, rest.Request{
		Method: http.MethodDelete, URL: s.address("", key, nil), Want: []int{http.StatusOK, http.StatusNoContent},
	})
}

const (
	scope    = "https://www.googleapis.com/auth/devstorage.read_write"
	tokenURL = "https://oauth2.googleapis.com/token"
	// metadataHost serves the tokens of the identity of a pod or of its node.
	metadataHost = "169.254.169.254"
)

// newTokens returns access tokens. With key, the tokens are those of its service account; if key is nil, those of the pod's identity.
func newTokens(key func() (secret.String, error)) *rest.Tokens {
	if key == nil {
		client := rest.MetadataHTTP()
		return &rest.Tokens{Fetch: func(ctx context.Context, _ secret.String) (*rest.Token, error) { return fromMetadata(ctx, client) }}
	}
	client := rest.TokenHTTP()
	return &rest.Tokens{
		Secret: key,
		Fetch:  func(ctx context.Context, key secret.String) (*rest.Token, error) { return fromKey(ctx, client, key) },
	}
}

// fromKey exchanges a signed JSON Web Token for an access token. key is the JSON file that Google creates for a service account.
func fromKey(ctx context.Context, client *http.Client, key secret.String) (*rest.Token, error) {
	var k struct {
		Type        string `json:"type"`
		ClientEmail string `json:"client_email"`
		PrivateKey  string `json:"private_key"`
		KeyID       string `json:"private_key_id"`
		TokenURI    string `json:"token_uri"`
	}
	if err := json.Unmarshal([]byte(key.Reveal()), &k); err != nil || k.Type != "service_account" || k.ClientEmail == "" || k.PrivateKey == "" {
		return nil, errors.New("the Secret of " + field + ".secretRef needs the key of a service account: JSON with type service_account, client_email and private_key")
	}
	conf := jwt.Config{
		Email: k.ClientEmail, PrivateKey: []byte(k.PrivateKey), PrivateKeyID: k.KeyID, Scopes: []string{scope}, TokenURL: cmp.Or(k.TokenURI, tokenURL),
	}
	withCtx := *client
	withCtx.Transport = withContext{ctx, client.Transport}
	t, err := conf.TokenSource(context.WithValue(ctx, oauth2.HTTPClient, &withCtx)).Token()
	if err == nil && t.AccessToken == "" {
		err = errors.New("the response has no access token")
	}
	if err == nil {
		life := rest.Number(0)
		if !t.Expiry.IsZero() {
			life = rest.Number(time.Until(t.Expiry).Seconds())
		}
		return &rest.Token{AccessToken: t.AccessToken, ExpiresIn: life}, nil
	}
	if refused, ok := errors.AsType[*oauth2.RetrieveError](err); ok { // the text of err has the whole answer
		err = fmt.Errorf("the server answered %d (%s)", refused.Response.StatusCode, rest.OAuthError(refused.Body))
	} else {
		err = rest.HideAddress(ctx, err)
	}
	return nil, fmt.Errorf("%s.secretRef: cannot get a token for service account %s: %w", field, failure.Quote(k.ClientEmail), err)
}

// withContext sends requests with a context, because package jwt sends them without one.
type withContext struct {
	ctx  context.Context
	next http.RoundTripper
}

func (w withContext) RoundTrip(req *http.Request) (*http.Response, error) {
	return w.next.RoundTrip(req.WithContext(w.ctx))
}

// fromMetadata returns the token that Google Cloud gives to the pod. Like Google's libraries, it looks for the server at GCE_METADATA_HOST.
func fromMetadata(ctx context.Context, client *http.Client) (*rest.Token, error) {
	u := url.URL{
		Scheme: "http", Host: cmp.Or(os.Getenv("GCE_METADATA_HOST"), metadataHost), Path: "/computeMetadata/v1/instance/service-accounts/default/token",
		RawQuery: url.Values{"scopes": {scope}}.Encode(),
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("GCE_METADATA_HOST is not a host: %w", err)
	}
	req.Header.Set("Metadata-Flavor", "Google")
	t, header, err := rest.FetchToken(client, req)
	if err == nil && header.Get("Metadata-Flavor") != "Google" {
		err = errors.New("the server does not identify itself as Google Cloud's metadata server")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: the metadata server gives the pod no token: set secretRef, or give the pod's service account an identity: %w", field, err)
	}
	return t, nil
}
