package wire

import (
	"net/http"
)

// APITransport returns a transport for requests to the API of the git host. It uses the proxy and the certificates of the client,
// and adds no credentials.
func (c *Client) APITransport() http.RoundTripper { return apiTransport{c} }

type apiTransport struct{ client *Client }

// RoundTrip implements http.RoundTripper.
func (a apiTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	t, ok := a.client.transport.(*httpTransport)
	if !ok {
		t = a.client.sshAPI()
	}
	rt, err := t.sharedTransport()
	if err != nil {
		return nil, err
	}
	return rt.RoundTrip(req)
}

// sshAPI returns the transport for the API of a host whose repository is reached over ssh.
func (c *Client) sshAPI() *httpTransport {
	c.apiOnce.Do(func() { c.api = newHTTPTransport(c.url, Auth{CA: c.auth.CA}, c.opts) })
	return c.api
}
