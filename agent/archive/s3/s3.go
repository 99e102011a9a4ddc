// Package s3 keeps archives in Amazon S3, or in a server with the same API.
package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/secret"
)

// partSize is the buffer of an upload. S3 allows 10,000 parts, so an object may have 48 GiB.
const partSize = 5 << 20

// store implements archive.Store.
type store struct {
	client *minio.Client
	bucket string
}

// New returns a Store that keeps its objects in the bucket that spec names. It does not connect. readSecret reads the credentials on each use,
// so that rotated ones take effect immediately; nil stands for the identity of the pod or of its node.
func New(spec *v1alpha1.SnapshotStorage, readSecret func() (secret.String, error)) (archive.Store, error) {
	host, secure := strings.TrimPrefix(spec.Endpoint, "https://"), true
	if plain, ok := strings.CutPrefix(host, "http://"); ok {
		host, secure = plain, false
	}
	region := spec.Region
	switch {
	case host == "" && region == "":
		host = "s3.amazonaws.com"
	case host == "":
		host = "s3." + region + ".amazonaws.com"
	case region == "":
		region = "us-east-1" // the default of other servers
	}
	transport := httpclient.Policy{Proxy: http.ProxyFromEnvironment, HeaderTimeout: time.Minute, KeepAlive: time.Minute, HTTP2: true}.Transport()
	o := &minio.Options{Secure: secure, Transport: bounded{transport, true}, Region: region, MaxRetries: 3, BucketLookup: minio.BucketLookupAuto}
	if spec.PathStyle {
		o.BucketLookup = minio.BucketLookupPath
	}
	if readSecret != nil {
		o.Creds = credentials.New(fromSecret(readSecret))
	} else {
		o.Creds = credentials.New(&credentials.IAM{Client: identityHTTP(http.ProxyFromEnvironment)})
	}
	client, err := minio.New(host, o)
	if err != nil {
		return nil, failure.New(v1alpha1.ReasonProfilesInvalid, archive.Field+".endpoint: %w", err)
	}
	return store{client, spec.Bucket}, nil
}

// identityHTTP returns a client for the server that gives the pod its credentials. It uses the proxy only for https: a cloud serves these
// credentials without TLS, at an address of the node, and a proxy would see them.
func identityHTTP(proxy func(*http.Request) (*url.URL, error)) *http.Client {
	onlyTLS := func(r *http.Request) (*url.URL, error) {
		if r.URL.Scheme != "https" {
			return nil, nil
		}
		return proxy(r)
	}
	p := httpclient.Policy{Proxy: onlyTLS, Timeout: 10 * time.Second}
	return p.ClientOf(bounded{p.Transport(), false})
}

const (
	// maxAnswer bounds the bytes of an answer that is not an object: a thousand keys of 1 KiB, escaped.
	maxAnswer = 8 << 20
	// maxTags bounds its XML tags: a thousand keys with fifteen elements each have 30,000. A tag can take a hundred times its bytes in memory.
	maxTags = 40_000
	// maxText bounds a tag and the text behind it: a key of 1 KiB, escaped twice. A decoder copies a text several times.
	maxText = 16 << 10
)

var errTooLarge = fmt.Errorf("the answer of the server has more than %d bytes, more than %d XML tags, or one with more than %d bytes", maxAnswer, maxTags, maxText)

// bounded bounds the answers of a server, except the bytes of objects. minio-go decodes a page of a listing as it arrives, without a bound.
type bounded struct {
	http.RoundTripper
	objects bool // the server has objects
}

func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := b.RoundTripper.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if isObject := b.objects && req.Method == http.MethodGet && req.URL.RawQuery == "" && res.StatusCode == http.StatusOK; !isObject {
		res.Body = &boundedBody{ReadCloser: res.Body, refusal: res.StatusCode >= 300}
	}
	return res, nil
}

// boundedBody is a body that fails with errTooLarge beyond a bound.
type boundedBody struct {
	io.ReadCloser
	size, tags int
	text       int  // since the last tag began
	refusal    bool // an error response, for which maxText does not apply: it may be plain text, and minio-go reads at most its first MiB
}

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.size += n
	for _, c := range p[:n] {
		if b.text++; c == '<' {
			b.tags, b.text = b.tags+1, 0
		}
		if b.text > maxText && !b.refusal {
			return 0, errTooLarge
		}
	}
	if b.size > maxAnswer || b.tags > maxTags {
		return 0, errTooLarge
	}
	return n, err
}

// fromSecret implements credentials.Provider. It reads a Secret with lines as in ~/.aws/credentials.
type fromSecret func() (secret.String, error)

func (f fromSecret) IsExpired() bool { return true }

func (f fromSecret) Retrieve() (credentials.Value, error) {
	text, err := f()
	if err != nil {
		return credentials.Value{}, err
	}
	v := credentials.Value{SignerType: credentials.SignatureV4}
	for line := range strings.SplitSeq(text.Reveal(), "\n") {
		key, value, _ := strings.Cut(line, "=")
		value = strings.TrimSpace(value)
		switch strings.ToLower(strings.TrimSpace(key)) {
		case "aws_access_key_id":
			v.AccessKeyID = value
		case "aws_secret_access_key":
			v.SecretAccessKey = value
		case "aws_session_token":
			v.SessionToken = value
		}
	}
	if v.AccessKeyID == "" || v.SecretAccessKey == "" {
		return credentials.Value{}, errors.New("the Secret of " + archive.Field + " needs the lines aws_access_key_id=… and aws_secret_access_key=…")
	}
	return v, nil
}

func (f fromSecret) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	return f.Retrieve()
}

func (s store) Put(ctx context.Context, key string, r io.Reader) error {
	_, err := s.client.PutObject(ctx, s.bucket, key, source{r}, -1, minio.PutObjectOptions{PartSize: partSize, ContentType: "application/octet-stream"})
	return s.explain(err)
}

// source wraps the errors of a reader: the client takes an io.ErrUnexpectedEOF for the end of the content.
type source struct{ io.Reader }

func (r source) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && err != io.EOF { //nolint:errorlint // a reader ends with io.EOF itself
		err = fmt.Errorf("read the content: %w", err)
	}
	return n, err
}

func (s store) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	// Core.GetObject sends one request. A minio.Object would send another one after an error, and could continue with a newer version.
	r, _, _, err := minio.Core{Client: s.client}.GetObject(ctx, s.bucket, key, minio.GetObjectOptions{})
	if err != nil {
		return nil, s.explain(err)
	}
	return r, nil
}

func (s store) List(ctx context.Context, prefix string) ([]string, error) {
	listing := archive.Listing{Prefix: prefix}
	for o := range s.client.ListObjectsIter(ctx, s.bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		if o.Err != nil {
			return nil, s.explain(o.Err)
		}
		if err := listing.Add(o.Key); err != nil {
			return nil, err
		}
	}
	return listing.Keys, s.explain(ctx.Err())
}

func (s store) Delete(ctx context.Context, key string) error {
	err := s.explain(s.client.RemoveObject(ctx, s.bucket, key, minio.RemoveObjectOptions{}))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// explain returns fs.ErrNotExist for a missing object. In other errors it bounds the text of the server, and hides credentials.
func (s store) explain(err error) error {
	if err == nil {
		return nil
	}
	r, ok := errors.AsType[minio.ErrorResponse](err)
	switch {
	case !ok:
		return err
	case r.Code == minio.NoSuchKey:
		return fs.ErrNotExist
	case r.StatusCode == http.StatusForbidden || r.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("the bucket %s refuses access (%s): give the credentials the rights to list, read, write and delete below its prefix", s.bucket, failure.Quote(s.redact(r.Code)))
	}
	return fmt.Errorf("the bucket %s answers %d (%s): %s", s.bucket, r.StatusCode, failure.Quote(s.redact(r.Code)), failure.Quote(s.redact(r.Message)))
}

// redact cuts a text of the server where the first 16 bytes of the session token begin. The server may repeat the token, which is the only secret
// that requests contain. If the credentials cannot be read, redact shows nothing.
func (s store) redact(text string) string {
	v, err := s.client.GetCreds()
	switch {
	case err != nil:
		return "REDACTED"
	case v.SessionToken == "":
		return text
	}
	if before, _, found := strings.Cut(text, v.SessionToken[:min(16, len(v.SessionToken))]); found {
		return before + "REDACTED"
	}
	return text
}
