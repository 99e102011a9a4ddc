package wire

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"

	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

// exchange collects what a transport learns in one conversation with a server. go-git keeps neither the types of errors nor all
// capabilities, so httpTransport passes the exchange to its roundTripper in the context of the requests.
type exchange struct {
	dog     *watchdog
	service service
	body    *receivedBody // http: the answer to the last request

	mu               sync.Mutex
	err              error // the first that the transport noted
	caps             *capability.List
	secrets          []string // that were sent
	advertisementURL *url.URL // http: the address of the advertisement, after redirects
}

type exchangeKey struct{}

func withExchange(ctx context.Context, x *exchange) context.Context {
	return context.WithValue(ctx, exchangeKey{}, x)
}

// fail notes err if it is the first error, and returns it.
func (x *exchange) fail(err error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err == nil {
		x.err = err
	}
	return err
}

// capabilities returns the capabilities that the server advertised, or nil if they are not known.
func (x *exchange) capabilities() *capability.List {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.caps
}

// outcome returns the secrets that were sent, and the error of the exchange: the one that the transport noted, or else err, in
// which go-git may have lost the cause.
func (x *exchange) outcome(err error) (secrets []string, _ error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err != nil {
		err = x.err
	}
	return x.secrets, err
}

// quote makes text of the server safe to print. It removes the secrets first: a secret that is cut or escaped would not be found.
func (x *exchange) quote(text string) string { return failure.Quote(x.redact(text)) }

// redact removes the secrets that were sent from text of the server.
func (x *exchange) redact(text string) string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return secret.Redact(text, x.secrets...)
}

// programURL returns the address for requests to the service. It is based on the address of the advertisement, which the server
// may have redirected.
func (x *exchange) programURL() (*url.URL, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.advertisementURL == nil {
		return nil, errors.New("the server advertised nothing")
	}
	at := *x.advertisementURL
	repository, ok := strings.CutSuffix(at.EscapedPath(), "/info/refs")
	if !ok {
		return nil, errors.New("the server advertised its refs at another path than /info/refs")
	}
	at.RawPath, at.RawQuery = repository+"/"+x.service.String(), ""
	var err error
	at.Path, err = url.PathUnescape(at.RawPath)
	return &at, err
}

// service is a program on a git server.
type service int

const (
	uploadPack  service = iota // git-upload-pack, which serves fetches
	receivePack                // git-receive-pack, which accepts pushes
)

// String returns the name of the program.
func (s service) String() string {
	if s == receivePack {
		return "git-receive-pack"
	}
	return "git-upload-pack"
}

// request returns the word for a request to the service in messages.
func (s service) request() string {
	if s == receivePack {
		return "push"
	}
	return "fetch"
}

// advertisementType returns the media type of the advertisement.
func (s service) advertisementType() string { return "application/x-" + s.String() + "-advertisement" }

// requestType returns the media type of a request.
func (s service) requestType() string { return "application/x-" + s.String() + "-request" }

// resultType returns the media type of the answer to a request.
func (s service) resultType() string { return "application/x-" + s.String() + "-result" }
