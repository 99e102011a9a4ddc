// Package azure keeps archives in Azure Blob Storage, through its REST API. It does not use Microsoft's library
// (azblob 1.8), which would add 0.8 MiB to the agent: the library reads answers of any size, follows redirects, and
// treats an io.ErrUnexpectedEOF from the source as the end of the data. The code to work around that would be longer
// than the requests here, which share package rest with the store for Google Cloud Storage.
package azure

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/archive/rest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/file"
	"stoker.io/stoker/internal/secret"
)

const (
	// field is the path of this storage in the spec of a GatewaySync; error messages name it.
	field = archive.Field
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

// New returns a Store that keeps its objects in the container that spec names. It does not connect. readSecret reads the key or the shared
// access signature on each use, so that a rotated one takes effect immediately; nil stands for the identity of the pod.
func New(spec *v1alpha1.SnapshotStorage, readSecret func() (secret.String, error)) (archive.Store, error) {
	container := rest.Server(cmp.Or(spec.Endpoint, spec.Account+".blob.core.windows.net"))
	container.Path = "/" + spec.Bucket
	if !strings.HasPrefix(container.Host, spec.Account+".") {
		container.Path = "/" + spec.Account + container.Path // path style, as Azurite uses it: the account is not in the host
	}
	c := rest.NewClient()
	c.Field, c.Kind, c.Name, c.HasSecret = field, "container", spec.Bucket, readSecret != nil
	c.Code, c.NotFound = errorCode, "BlobNotFound"
	if readSecret != nil {
		c.Authorize = fromSecret(spec.Account, readSecret)
	} else {
		t := podIdentity()
		c.Authorize, c.Renew = t.Authorize, t.Renew
	}
	return store{c, container}, nil
}

// errorCode returns the error code and the message of an error response. Both are empty if another server answered, such as a proxy.
func errorCode(header http.Header, body []byte) (code, message string) {
	var e struct{ Code, Message string }
	_ = xml.Unmarshal(body, &e)
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

// write sends a request that creates a blob or a block.
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
		id := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%08d", n)) // the ids of a blob must have one length
		n++
		fmt.Fprintf(&list, "<Uncommitted>%s</Uncommitted>", id)
		return s.write(ctx, s.request(http.MethodPut, key, url.Values{"comp": {"block"}, "blockid": {id}}, block))
	})
	if err != nil || n == 0 {
		return err // without a block list, Azure deletes uncommitted blocks after a week
	}
	list.WriteString("</BlockList>")
	commit := s.request(http.MethodPut, key, url.Values{"comp": {"blocklist"}}, list.Bytes())
	commit.Header.Set("X-Ms-Blob-Content-Type", "application/octet-stream")
	return s.write(ctx, commit)
}

func (s store) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	return s.client.Get(ctx, s.request(http.MethodGet, key, nil, nil))
}

func (s store) List(ctx context.Context, prefix string) ([]string, error) {
	query := url.Values{"restype": {"container"}, "comp": {"list"}, "prefix": {prefix}, "maxresults": {"1000"}}
	return rest.List(prefix, func(marker string) (keys []string, next string, err error) {
		if marker != "" {
			query.Set("marker", marker)
		}
		body, _, err := s.client.Page(ctx, s.request(http.MethodGet, "", query, nil))
		if err != nil {
			return nil, "", err
		}
		var page struct {
			XMLName xml.Name `xml:"EnumerationResults"`
			Blobs   []struct {
				Name string
			} `xml:"Blobs>Blob"`
			NextMarker string
		}
		if err := xml.Unmarshal(body, &page); err != nil {
			return nil, "", fmt.Errorf("%s: the container %s did not answer with a list of blobs", field, s.client.Name)
		}
		for _, b := range page.Blobs {
			keys = append(keys, b.Name)
		}
		return keys, page.NextMarker, nil
	})
}

func (s store) Delete(ctx context.Context, key string) error {
	r := s.request(http.MethodDelete, key, nil, nil)
	r.Want = []int{http.StatusAccepted}
	return s.client.Delete(ctx, r)
}

// fromSecret returns a function that authorizes requests with the content of a Secret: a shared access signature or a key of the account.
func fromSecret(account string, readSecret func() (secret.String, error)) func(context.Context, *http.Request) error {
	return func(_ context.Context, req *http.Request) error {
		text, err := readSecret()
		if err != nil {
			return err
		}
		value := strings.TrimPrefix(strings.TrimSpace(text.Reveal()), "?")
		if q, err := url.ParseQuery(value); err == nil && q.Get("sig") != "" {
			req.URL.RawQuery = strings.TrimPrefix(req.URL.RawQuery+"&"+value, "&")
			return nil
		}
		key, err := base64.StdEncoding.DecodeString(value)
		if err != nil || len(key) == 0 {
			return errors.New("the Secret of " + field + ".secretRef needs an access key of the storage account (base64), or a shared access signature (with sig=…)")
		}
		req.Header.Set("X-Ms-Date", time.Now().UTC().Format(http.TimeFormat))
		mac := hmac.New(sha256.New, key)
		_, _ = io.WriteString(mac, stringToSign(account, req))
		req.Header.Set("Authorization", "SharedKey "+account+":"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
		return nil
	}
}

// stringToSign returns the text of a request that the scheme Shared Key signs.
func stringToSign(account string, req *http.Request) string {
	length := ""
	if req.ContentLength > 0 {
		length = strconv.FormatInt(req.ContentLength, 10)
	}
	h := req.Header
	lines := []string{
		req.Method, h.Get("Content-Encoding"), h.Get("Content-Language"), length, h.Get("Content-MD5"), h.Get("Content-Type"), h.Get("Date"),
		h.Get("If-Modified-Since"), h.Get("If-Match"), h.Get("If-None-Match"), h.Get("If-Unmodified-Since"), h.Get("Range"),
	}
	for _, name := range slices.Sorted(maps.Keys(h)) {
		if lower := strings.ToLower(name); strings.HasPrefix(lower, "x-ms-") {
			lines = append(lines, lower+":"+h.Get(name))
		}
	}
	lines = append(lines, "/"+account+req.URL.EscapedPath())
	query := req.URL.Query()
	for _, name := range slices.Sorted(maps.Keys(query)) {
		lines = append(lines, name+":"+strings.Join(query[name], ","))
	}
	return strings.Join(lines, "\n")
}

const (
	scope = "https://storage.azure.com/.default"
	// authority serves the tokens if AZURE_AUTHORITY_HOST is not set.
	authority    = "https://login.microsoftonline.com/"
	maxAssertion = 64 << 10 // bytes of the file AZURE_FEDERATED_TOKEN_FILE
)

// podIdentity returns the access tokens of the pod's identity. Microsoft Entra Workload ID gives its pods the variables AZURE_CLIENT_ID,
// AZURE_TENANT_ID, AZURE_FEDERATED_TOKEN_FILE and AZURE_AUTHORITY_HOST.
func podIdentity() *rest.Tokens {
	client := rest.TokenHTTP()
	return &rest.Tokens{
		Fetch: func(ctx context.Context, _ secret.String) (*rest.Token, error) {
			t, err := exchange(ctx, client)
			if err != nil {
				return nil, fmt.Errorf("%s: cannot get a token for the identity of the pod: set secretRef, or label the pod azure.workload.identity/use=true: %w", field, err)
			}
			return t, nil
		},
	}
}

// exchange exchanges the token that Kubernetes gives to the pod for an access token of Azure.
func exchange(ctx context.Context, client *http.Client) (*rest.Token, error) {
	id, tenant, name := os.Getenv("AZURE_CLIENT_ID"), os.Getenv("AZURE_TENANT_ID"), os.Getenv("AZURE_FEDERATED_TOKEN_FILE")
	if id == "" || tenant == "" || name == "" {
		return nil, errors.New("AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_FEDERATED_TOKEN_FILE are not all set")
	}
	assertion, err := file.Read(name, maxAssertion)
	if err != nil {
		return nil, err
	}
	form := url.Values{
		"grant_type": {"client_credentials"}, "client_id": {id}, "scope": {scope},
		"client_assertion_type": {"urn:ietf:params:oauth:client-assertion-type:jwt-bearer"}, "client_assertion": {strings.TrimSpace(string(assertion))},
	}
	address := strings.TrimSuffix(cmp.Or(os.Getenv("AZURE_AUTHORITY_HOST"), authority), "/") + "/" + url.PathEscape(tenant) + "/oauth2/v2.0/token"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, fmt.Errorf("AZURE_AUTHORITY_HOST is not an address: %w", err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	t, _, err := rest.FetchToken(client, req)
	return t, err
}
