package wire

import (
	"net/http"
)

// APITransport returns a transport for requests to the API of the git host. It has the proxy and the certificates of the client, and adds
// no credentials.
func (c *Client) APITransport() http.RoundTripper { return apiTransport{c} }

type apiTransport struct{ c *Client }

// RoundTrip implements http.RoundTripper.
func (a apiTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	t, ok := a.c.transport.(*httpTransport)
	if !ok { // the repository is reached over ssh; only the certificates and the proxy count
		s, _ := a.c.transport.(*sshTransport)
		t = a.c.sshAPI(s)
	}
	rt, err := t.client()
	if err != nil {
		return nil, err
	}
	return rt.RoundTrip(req)
}

// sshAPI returns the transport for the API of a host whose repository is reached over ssh.
func (c *Client) sshAPI(s *sshTransport) *httpTransport {
	c.apiOnce.Do(func() { c.api = newHTTPTransport(c.url, Auth{CA: s.auth.CA}, c.opts) })
	return c.api
}
