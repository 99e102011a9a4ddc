package wire

import (
	"context"
	"net/http"
	"net/url"

	"golang.org/x/net/http/httpproxy"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// proxyFromEnvironment returns the proxy of a URL by HTTP_PROXY, HTTPS_PROXY and NO_PROXY, nil for none. Requests to loopback
// addresses never use a proxy.
func proxyFromEnvironment() func(*url.URL) (*url.URL, error) {
	proxy := httpproxy.FromEnvironment().ProxyFunc()
	return func(u *url.URL) (*url.URL, error) {
		p, err := proxy(u)
		if err != nil { // its text may contain a password
			return nil, failure.New(v1alpha1.ReasonGitUnreachable, "HTTPS_PROXY or HTTP_PROXY of the agent's environment is not the address of a proxy")
		}
		return p, nil
	}
}

// checkProxyResponse implements http.Transport.OnProxyConnectResponse.
func checkProxyResponse(_ context.Context, proxy *url.URL, _ *http.Request, res *http.Response) error {
	return proxyStatusError(proxy, res.StatusCode)
}

// proxyStatusError returns the error for the HTTP status of a proxy, nil for 200.
func proxyStatusError(proxy *url.URL, code int) error {
	switch code {
	case http.StatusOK:
		return nil
	case http.StatusProxyAuthRequired:
		return failure.New(v1alpha1.ReasonAuthFailed,
			"the proxy %s requires other credentials (HTTP 407): set them in HTTPS_PROXY or HTTP_PROXY of the agent's environment", proxy.Host)
	case http.StatusForbidden:
		return failure.New(v1alpha1.ReasonGitUnreachable, "the proxy %s does not allow the git host (HTTP 403): allow it there, or add it to NO_PROXY", proxy.Host)
	}
	return failure.New(v1alpha1.ReasonGitUnreachable, "the proxy %s answers HTTP %d; trying again", proxy.Host, code)
}

// proxyError is an error of an exchange through a proxy, which may be the cause.
type proxyError struct {
	host string
	err  error
}

func (e *proxyError) Error() string { return "through the proxy " + e.host + ": " + e.err.Error() }
func (e *proxyError) Unwrap() error { return e.err }
