// Package rest sends requests to object storage that has a REST API, for packages gcs and azure. A user chooses the address of the server,
// and the server may be hostile: the client follows no redirect, limits every answer but an object, and shows no credentials in an error.
package rest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/httpclient"
)

const (
	tries = 3
	// maxPage bounds an answer that is not an object: a thousand keys of 1 KiB, escaped.
	maxPage = 8 << 20
	// maxItems bounds the elements of such an answer: a decoder needs a hundred times the memory of their text.
	maxItems = 100_000
	// maxCursor bounds the token of the next page in bytes. The client sends it in the URL.
	maxCursor  = 8 << 10
	maxRefusal = 64 << 10 // bytes of an error response that are read
	// maxPages bounds a listing whose pages are empty.
	maxPages = 10_000
)

// Client talks to one bucket. Set its exported fields before use.
type Client struct {
	// Field is the path of the storage in the spec, and Kind what it calls a bucket: bucket or container.
	// Name is the name of the bucket. Error messages have all three.
	Field, Kind, Name string
	// HasSecret is set if the credentials are in a Secret, otherwise they are those of the pod's identity.
	HasSecret bool
	// Authorize adds the credentials to a request. It is called again for each attempt.
	Authorize func(ctx context.Context, req *http.Request) error
	// Renew drops credentials that the server did not accept. It returns false if there are no others.
	Renew func() bool
	// Code returns the code and the message of an error response.
	Code func(header http.Header, body []byte) (code, message string)
	// NotFound is the code of the error response for a missing object; "" if status 404 is enough.
	NotFound string

	http  *http.Client
	pause func(ctx context.Context, n int) // waits after attempt n failed
}

// NewClient returns a client that connects through the proxy of the environment.
func NewClient() *Client {
	return &Client{
		http:  newHTTP(http.ProxyFromEnvironment),
		pause: func(ctx context.Context, n int) { backoff.Wait(ctx, backoff.Retry(n, 5*time.Second)) },
		Renew: func() bool { return false },
	}
}

func newHTTP(proxy func(*http.Request) (*url.URL, error)) *http.Client {
	return httpclient.Policy{Proxy: proxy, HeaderTimeout: time.Minute, KeepAlive: time.Minute, HTTP2: true, Raw: true}.Client() // Raw: archives are compressed already
}

// Server returns the address for an endpoint of the spec. Without a scheme, it is https.
func Server(endpoint string) url.URL {
	if plain, ok := strings.CutPrefix(endpoint, "http://"); ok {
		return url.URL{Scheme: "http", Host: plain}
	}
	return url.URL{Scheme: "https", Host: strings.TrimPrefix(endpoint, "https://")}
}

// Request is a request to the server of the bucket.
type Request struct {
	Method string
	URL    url.URL
	Header http.Header
	Body   []byte
	// Want lists the statuses of success. Default: 200.
	Want []int
	// Once disables retries, for a request that is not idempotent.
	Once bool
}

// Do sends a request, up to three times if the server does not answer or is busy, and once more if Renew has other credentials than those
// that the server did not accept. The caller closes the body. If the status is not in r.Want, the error is a *StatusError.
func (c *Client) Do(ctx context.Context, r Request) (*http.Response, error) {
	renewed := false
	for n := 1; ; n++ {
		res, err := c.try(ctx, r)
		if err == nil {
			return res, nil
		}
		if s, ok := errors.AsType[*StatusError](err); ok && s.Status == http.StatusUnauthorized && !renewed && c.Renew() {
			renewed = true
			n--
			continue
		}
		if r.Once || n == tries || ctx.Err() != nil || !Transient(err) {
			return nil, err
		}
		c.pause(ctx, n)
	}
}

func (c *Client) try(ctx context.Context, r Request) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, r.URL.String(), bytes.NewReader(r.Body))
	if err != nil {
		return nil, fmt.Errorf("%s: the address of the server is not valid", c.Field) // err repeats the address
	}
	for k, v := range r.Header {
		req.Header[k] = v
	}
	req.Header.Set("User-Agent", "stoker")
	if err := c.Authorize(ctx, req); err != nil {
		return nil, err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, &connectError{fmt.Errorf("%s: %s: %w", c.Field, failure.Quote(r.URL.Host), HideAddress(ctx, err))}
	}
	want := r.Want
	if len(want) == 0 {
		want = []int{http.StatusOK}
	}
	if slices.Contains(want, res.StatusCode) {
		return res, nil
	}
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxRefusal)) // what arrives is enough for a message
	_ = res.Body.Close()
	code, message := c.Code(res.Header, body)
	hide := hider(req)
	return nil, &StatusError{Status: res.StatusCode, Code: hide.Replace(code), Message: hide.Replace(message), client: c}
}

// Page sends a request and returns the body of the answer, at most maxPage bytes, and its header.
func (c *Client) Page(ctx context.Context, r Request) ([]byte, http.Header, error) {
	res, err := c.Do(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := bound.ReadAll(res.Body, maxPage)
	switch {
	case err != nil && !errors.Is(err, bound.ErrTooLarge):
		return nil, nil, fmt.Errorf("%s: read the answer of %s: %w", c.Field, failure.Quote(r.URL.Host), HideAddress(ctx, err))
	case err != nil:
		return nil, nil, fmt.Errorf("%s: the answer of %s has more than %d bytes", c.Field, failure.Quote(r.URL.Host), maxPage)
	case max(bytes.Count(body, []byte("<")), bytes.Count(body, []byte("{")), bytes.Count(body, []byte("[")), bytes.Count(body, []byte("="))) > maxItems:
		return nil, nil, fmt.Errorf("%s: the answer of %s has more than %d items", c.Field, failure.Quote(r.URL.Host), maxItems)
	}
	return body, res.Header, nil
}

// List returns the keys with a prefix from all pages of a listing. page returns the keys of one page, and the token of the next one. The
// token of the first page is ""; next is "" after the last page. The error has the reason LimitExceeded for more than archive.MaxList keys,
// and for more than maxPages pages.
func List(prefix string, page func(token string) (keys []string, next string, err error)) ([]string, error) {
	all, token := archive.Listing{Prefix: prefix}, ""
	for range maxPages {
		keys, next, err := page(token)
		if err != nil {
			return nil, err
		}
		for _, key := range keys {
			if err := all.Add(key); err != nil {
				return nil, err
			}
		}
		switch {
		case next == "":
			return all.Keys, nil
		case len(next) > maxCursor:
			return nil, failure.New(v1alpha1.ReasonLimitExceeded, "the server names the next page below %s with %d bytes, more than %d", prefix, len(next), maxCursor)
		}
		token = next
	}
	return nil, failure.New(v1alpha1.ReasonLimitExceeded, "the listing below %s has more than %d pages", prefix, maxPages)
}

// Get sends the request for an object. The error is fs.ErrNotExist if there is none. The caller closes the body.
func (c *Client) Get(ctx context.Context, r Request) (io.ReadCloser, error) {
	res, err := c.Do(ctx, r)
	if err != nil {
		return nil, c.notExist(err)
	}
	return res.Body, nil
}

// Delete sends the request that deletes an object. It returns nil if there is none.
func (c *Client) Delete(ctx context.Context, r Request) error {
	body, err := c.Get(ctx, r)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return body.Close()
}

// notExist returns fs.ErrNotExist for a missing object. It returns other errors, such as that of a missing bucket, unchanged.
func (c *Client) notExist(err error) error {
	if s, ok := errors.AsType[*StatusError](err); ok && s.Status == http.StatusNotFound && (c.NotFound == "" || c.NotFound == s.Code) {
		return fs.ErrNotExist
	}
	return err
}

// hider returns a replacer that hides the credentials of a request in an answer, because the server may repeat them.
func hider(req *http.Request) *strings.Replacer {
	var hide []string
	add := func(s string) {
		if len(s) > 7 { // shorter strings would hide ordinary words
			hide = append(hide, s, "REDACTED")
		}
	}
	_, credential, _ := strings.Cut(req.Header.Get("Authorization"), " ")
	add(credential)
	for part := range strings.SplitSeq(req.URL.RawQuery, "&") {
		if sig, ok := strings.CutPrefix(part, "sig="); ok { // of a shared access signature of Azure
			add(sig)
			decoded, _ := url.QueryUnescape(sig)
			add(decoded)
		}
	}
	return strings.NewReplacer(hide...)
}

// StatusError is an answer whose status is not in Request.Want.
type StatusError struct {
	Status        int
	Code, Message string
	client        *Client
}

func (e *StatusError) Error() string {
	c := e.client
	credentials, its, check := c.Field+".secretRef", "the credentials", "they are right, have not expired and have"
	if !c.HasSecret {
		credentials, its, check = c.Field, "the identity of the pod", "it has"
	}
	switch {
	case e.Status >= 300 && e.Status < 400:
		return fmt.Sprintf("%s.endpoint: the server answers with a redirect (%d), which is not followed: name the server itself", c.Field, e.Status)
	case e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden:
		return fmt.Sprintf("%s: the %s %s refuses %s (%s): check that %s the rights to list, read, write and delete below its prefix",
			credentials, c.Kind, c.Name, its, e.code(), check)
	case e.Status == http.StatusNotFound:
		return fmt.Sprintf("%s.bucket: there is no %s %s (%s)", c.Field, c.Kind, c.Name, e.code())
	}
	return fmt.Sprintf("%s: the %s %s answers %d (%s): %s", c.Field, c.Kind, c.Name, e.Status, e.code(), failure.Quote(e.Message))
}

func (e *StatusError) code() string { return failure.Quote(e.Code) }

// connectError is the error of a request without an answer.
type connectError struct{ error }

func (e *connectError) Unwrap() error { return e.error }

// Transient reports whether the same request can succeed a moment later.
func Transient(err error) bool {
	if s, ok := errors.AsType[*StatusError](err); ok {
		return s.Status >= 500 || s.Status == http.StatusTooManyRequests || s.Status == http.StatusRequestTimeout
	}
	_, ok := errors.AsType[*connectError](err)
	return ok
}

// HideAddress returns an error of net/http without the address, which may have credentials. If ctx has ended, it returns the cause.
func HideAddress(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return errors.New(failure.Quote(err.Error()))
}

// Blocks calls send for each block of size bytes of r, and for the last block, which may be shorter. An empty r is one empty block. If r
// fails, Blocks returns the error and does not send the rest, so that no upload is completed with a part of r.
func Blocks(r io.Reader, size int, send func(block []byte, last bool) error) error {
	block := make([]byte, size+1) // the additional byte shows that a full block is not the last one
	n, end, err := fill(r, block)
	for err == nil && !end {
		if err := send(block[:size], false); err != nil {
			return err
		}
		block[0] = block[size]
		n, end, err = fill(r, block[1:])
		n++
	}
	if err != nil {
		return err
	}
	return send(block[:n], true)
}

// fill reads until b is full or r ends. Unlike io.ReadFull, it does not treat io.ErrUnexpectedEOF of r as its end.
func fill(r io.Reader, b []byte) (n int, end bool, err error) {
	for n < len(b) {
		m, err := r.Read(b[n:])
		n += m
		if err == io.EOF { // not errors.Is: only this value is the end, as for io.ReadAll
			return n, n < len(b), nil
		}
		if err != nil {
			return n, false, err
		}
	}
	return n, false, nil
}
