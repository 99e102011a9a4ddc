// Package azure keeps archives in Azure Blob Storage, through its REST API. It does not use Microsoft's library
// (azblob 1.8), which would add 0.8 MiB to the agent: the library reads answers of any size, follows redirects, and
// takes an io.ErrUnexpectedEOF from the source for the end of the data. The code to work around that would be longer
// than the requests here, which share package rest with the store for Google Cloud Storage.
package azure

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strings"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/archive/rest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

const (
	// field is the path of this storage in the spec of a GatewaySync; error messages name it.
	field = "spec.snapshots.storage.azure"
	// blockSize is the size of a block, and of the buffer of an upload. A blob has at most 50,000 blocks, so it can
	// hold 195 GiB.
	blockSize = 4 << 20
	// version is the version of the Blob service API, sent as X-Ms-Version.
	version = "2021-12-02"
)

// store implements archive.Store.
type store struct {
	client    *rest.Client
	container url.URL
}

// New returns a Store that keeps its objects in the container that spec names. It does not connect. secrets reads the key or the shared
// access signature on each use, so that a rotated one takes effect immediately; nil stands for the identity of the pod.
func New(spec *v1alpha1.AzureStorage, secrets func() (secret.String, error)) (archive.Store, error) {
	container := rest.Server(cmp.Or(spec.Endpoint, spec.Account+".blob.core.windows.net"))
	container.Path = "/" + spec.Container
	if !strings.HasPrefix(container.Host, spec.Account+".") {
		container.Path = "/" + spec.Account + container.Path // as emulators and Azure Stack have it
	}
	c := rest.NewClient()
	c.Field, c.Kind, c.Name, c.Secret, c.Code = field, "container", spec.Container, secrets != nil, code
	if secrets != nil {
		c.Authorize = fromSecret(spec.Account, secrets)
	} else {
		t := identity()
		c.Authorize, c.Renew = t.Authorize, t.Renew
	}
	return store{c, container}, nil
}

// code returns what the service says of an error.
func code(header http.Header, body []byte) (code, message string) {
	var e struct{ Code, Message string }
	_ = xml.Unmarshal(body, &e) // another server, such as a proxy, answers without this XML: both then stay empty
	return cmp.Or(header.Get("X-Ms-Error-Code"), e.Code), e.Message
}

// request returns a request about the container, or about one of its blobs.
func (s store) request(method, key string, query url.Values, body []byte) rest.Request {
	r := rest.Request{Method: method, URL: s.container, Header: http.Header{"X-Ms-Version": {version}}, Body: body}
	if key != "" {
		r.URL.Path += "/" + key
		var parts []string
		for part := range strings.SplitSeq(r.URL.Path, "/") {
			parts = append(parts, url.PathEscape(part))
		}
		r.URL.RawPath = strings.Join(parts, "/")
	}
	r.URL.RawQuery = query.Encode()
	return r
}

// write sends a request that creates something.
func (s store) write(ctx context.Context, r rest.Request) error {
	r.Want = []int{http.StatusCreated}
	_, _, err := s.client.Page(ctx, r)
	return err
}

func (s store) Put(ctx context.Context, key string, r io.Reader) error {
	var list bytes.Buffer
	list.WriteString(xml.Header + "<BlockList>")
	n := 0
	err := rest.Blocks(r, blockSize, func(block []byte, last bool) error {
		if last && n == 0 { // a small blob needs one request
			put := s.request(http.MethodPut, key, nil, block)
			put.Header.Set("X-Ms-Blob-Type", "BlockBlob")
			put.Header.Set("Content-Type", "application/octet-stream")
			return s.write(ctx, put)
		}
		id := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%08d", n)) // all have the same length
		n++
		fmt.Fprintf(&list, "<Uncommitted>%s</Uncommitted>", id)
		return s.write(ctx, s.request(http.MethodPut, key, url.Values{"comp": {"block"}, "blockid": {id}}, block))
	})
	if err != nil || n == 0 {
		return err // the one request wrote the blob, or the service drops the blocks, because no list names them
	}
	list.WriteString("</BlockList>")
	commit := s.request(http.MethodPut, key, url.Values{"comp": {"blocklist"}}, list.Bytes())
	commit.Header.Set("X-Ms-Blob-Content-Type", "application/octet-stream")
	return s.write(ctx, commit)
}

func (s store) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	res, err := s.client.Do(ctx, s.request(http.MethodGet, key, nil, nil))
	if err != nil {
		return nil, missing(err)
	}
	return res.Body, nil
}

func (s store) List(ctx context.Context, prefix string) ([]string, error) {
	var keys []string
	query := url.Values{"restype": {"container"}, "comp": {"list"}, "prefix": {prefix}, "maxresults": {"1000"}}
	for range archive.MaxList {
		body, _, err := s.client.Page(ctx, s.request(http.MethodGet, "", query, nil))
		if err != nil {
			return nil, err
		}
		var page struct {
			XMLName xml.Name `xml:"EnumerationResults"`
			Blobs   []struct {
				Name string
			} `xml:"Blobs>Blob"`
			NextMarker string
		}
		if err := xml.Unmarshal(body, &page); err != nil {
			return nil, fmt.Errorf("%s: the container %s did not answer with a list of blobs", field, s.client.Name)
		}
		for _, b := range page.Blobs {
			if strings.HasPrefix(b.Name, prefix) {
				keys = append(keys, b.Name)
			}
		}
		if len(keys) > archive.MaxList {
			break
		}
		if page.NextMarker == "" {
			return keys, nil
		}
		query.Set("marker", page.NextMarker)
	}
	return nil, failure.New(v1alpha1.ReasonLimitExceeded, "there are more than %d objects below %s", archive.MaxList, prefix)
}

func (s store) Delete(ctx context.Context, key string) error {
	r := s.request(http.MethodDelete, key, nil, nil)
	r.Want = []int{http.StatusAccepted}
	res, err := s.client.Do(ctx, r)
	if err == nil {
		return res.Body.Close()
	}
	if err = missing(err); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// missing tells a missing blob from other errors, such as a missing container.
func missing(err error) error {
	if s, ok := errors.AsType[*rest.StatusError](err); ok && s.Status == http.StatusNotFound && s.Code == "BlobNotFound" {
		return fs.ErrNotExist
	}
	return err
}
