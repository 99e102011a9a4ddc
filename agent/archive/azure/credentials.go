package azure

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
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

	"stoker.io/stoker/agent/archive/rest"
	"stoker.io/stoker/internal/file"
	"stoker.io/stoker/internal/secret"
)

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
	client := rest.TokenHTTP(false)
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
