package kube

import (
	"errors"
	"net/http"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// TryOnce makes the clients of config try each request once, for a user who waits for the answer.
func TryOnce(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return once{next} })
}

// once is a RoundTripper whose error keeps client-go from repeating a request ten times, a second apart, if the connection was closed
// without an answer. A load balancer in front of an API server that is away does that.
type once struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (o once) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := o.next.RoundTrip(req)
	if utilnet.IsProbableEOF(err) || utilnet.IsConnectionReset(err) {
		err = errors.New("the connection was closed without an answer")
	}
	return res, err
}

// WrappedRoundTripper gives client-go access to the wrapped RoundTripper.
func (o once) WrappedRoundTripper() http.RoundTripper { return o.next }
