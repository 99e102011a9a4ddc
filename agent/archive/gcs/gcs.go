// Package gcs keeps archives in Google Cloud Storage, through its JSON API. Google's own library for it is not used: the four requests
// here are less code than its setup, and it brings gRPC and tens of megabytes to each gateway.
package gcs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

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
	// maxStalls is how many requests in a row may store nothing before an upload fails.
	maxStalls = 3
)

// store implements archive.Store.
type store struct {
	client *rest.Client
	server url.URL
	bucket string
}

// New returns a bucket. It does not connect. secrets reads the key of the service account on each use, so that a rotated one takes effect
// immediately; nil stands for the identity of the pod.
func New(spec *v1alpha1.GCSStorage, secrets func() (secret.String, error)) (archive.Store, error) {
	server := rest.Server(cmp.Or(spec.Endpoint, host))
	t := tokens(secrets)
	c := rest.NewClient()
	c.Field, c.Kind, c.Name, c.Secret = field, "bucket", spec.Bucket, secrets != nil
	c.Authorize, c.Renew, c.Code = t.Authorize, t.Renew, code
	return store{c, server, spec.Bucket}, nil
}

// field is the one of the spec.
const field = "spec.snapshots.storage.gcs"

// code returns what the JSON API says of an error.
func code(_ http.Header, body []byte) (code, message string) {
	var e struct {
		Error struct {
			Message string
			Errors  []struct{ Reason string }
		}
	}
	_ = json.Unmarshal(body, &e) // an answer of another server has none
	if len(e.Error.Errors) > 0 {
		code = e.Error.Errors[0].Reason
	}
	return code, e.Error.Message
}

// url returns the address of the bucket's objects, or of one of them.
func (s store) url(service, key string, query url.Values) url.URL {
	u := s.server
	path := service + "/storage/v1/b/" + url.PathEscape(s.bucket) + "/o"
	if key != "" {
		path += "/" + url.PathEscape(key)
	}
	u.Path, _ = url.PathUnescape(path) // of what was escaped above
	u.RawPath, u.RawQuery = path, query.Encode()
	return u
}

func (s store) Put(ctx context.Context, key string, r io.Reader) error {
	var session *url.URL
	offset := int64(0)
	return rest.Blocks(r, chunkSize, func(chunk []byte, last bool) error {
		if last && session == nil { // a small object needs one request
			_, _, err := s.client.Page(ctx, rest.Request{
				Method: http.MethodPost, URL: s.url("/upload", "", url.Values{"uploadType": {"media"}, "name": {key}}),
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

// begin starts a resumable upload and returns its address. The object is not there before the last chunk is, and the server drops what is
// never finished.
func (s store) begin(ctx context.Context, key string) (*url.URL, error) {
	_, header, err := s.client.Page(ctx, rest.Request{
		Method: http.MethodPost, URL: s.url("/upload", "", url.Values{"uploadType": {"resumable"}, "name": {key}}),
		Header: http.Header{"X-Upload-Content-Type": {"application/octet-stream"}},
	})
	if err != nil {
		return nil, err
	}
	at, err := url.Parse(header.Get("Location"))
	if err != nil || at.RawQuery == "" {
		return nil, fmt.Errorf("%s.endpoint: the server does not say how to go on with an upload", field)
	}
	// The chunks go to the server of the spec, whatever host the answer names.
	u := s.server
	u.Path, u.RawPath, u.RawQuery = at.Path, at.RawPath, at.RawQuery
	return &u, nil
}

// send uploads a chunk. The server may store less of it than it was sent, or all of it and then fail to answer.
func (s store) send(ctx context.Context, session url.URL, chunk []byte, offset int64, last bool) error {
	end, total := offset+int64(len(chunk)), "*"
	if last {
		total = strconv.FormatInt(end, 10)
	}
	for at, stalls := offset, 0; at < end || last; {
		content := fmt.Sprintf("bytes %d-%d/%s", at, end-1, total)
		if at == end {
			content = "bytes */" + total // only the end is missing
		}
		stored, err := s.put(ctx, rest.Request{URL: session, Header: http.Header{"Content-Range": {content}}, Body: chunk[at-offset:], Once: true})
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
		case stored < offset || stored > end: // also complete, too early
			return fmt.Errorf("%s.endpoint: the server has stored %d bytes of an upload, which was sent from %d to %d", field, stored, offset, end)
		case stored > at && (!last || stored < end):
			stalls = 0
		default:
			if stalls++; stalls == maxStalls {
				if err == nil {
					err = errors.New("it answers that no more bytes have arrived")
				}
				return fmt.Errorf("%s: the bucket %s stores nothing of an upload: %w", field, s.bucket, err)
			}
		}
		at = stored
	}
	return nil
}

// complete stands for an object that is whole.
const complete = -1

// put sends a part of an upload and returns how many bytes of all the server has.
func (s store) put(ctx context.Context, r rest.Request) (int64, error) {
	r.Method, r.Want = http.MethodPut, []int{http.StatusOK, http.StatusCreated, http.StatusPermanentRedirect}
	res, err := s.client.Do(ctx, r)
	if errors.Is(missing(err), fs.ErrNotExist) {
		return 0, fmt.Errorf("%s: the bucket %s no longer knows an upload that was begun", field, s.bucket)
	}
	if err != nil {
		return 0, err
	}
	_ = res.Body.Close() // it describes the object
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
	res, err := s.client.Do(ctx, rest.Request{Method: http.MethodGet, URL: s.url("", key, url.Values{"alt": {"media"}})})
	if err != nil {
		return nil, missing(err)
	}
	return res.Body, nil
}

func (s store) List(ctx context.Context, prefix string) ([]string, error) {
	var keys []string
	query := url.Values{"prefix": {prefix}, "maxResults": {"1000"}, "fields": {"items(name),nextPageToken"}}
	for range archive.MaxList {
		body, _, err := s.client.Page(ctx, rest.Request{Method: http.MethodGet, URL: s.url("", "", query)})
		if err != nil {
			return nil, err
		}
		var page struct {
			Items         []struct{ Name string }
			NextPageToken string
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return nil, fmt.Errorf("%s: the bucket %s answers no list of objects", field, s.bucket)
		}
		for _, o := range page.Items {
			keys = append(keys, o.Name)
		}
		if len(keys) > archive.MaxList {
			break
		}
		if page.NextPageToken == "" {
			return slices.DeleteFunc(keys, func(k string) bool { return !strings.HasPrefix(k, prefix) }), nil
		}
		query.Set("pageToken", page.NextPageToken)
	}
	return nil, failure.New(v1alpha1.ReasonLimitExceeded, "there are more than %d objects below %s", archive.MaxList, prefix)
}

func (s store) Delete(ctx context.Context, key string) error {
	res, err := s.client.Do(ctx, rest.Request{Method: http.MethodDelete, URL: s.url("", key, nil), Want: []int{http.StatusOK, http.StatusNoContent}})
	if err == nil {
		return res.Body.Close()
	}
	if err = missing(err); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// missing tells a missing object from other errors.
func missing(err error) error {
	if s, ok := errors.AsType[*rest.StatusError](err); ok && s.Status == http.StatusNotFound {
		return fs.ErrNotExist
	}
	return err
}
