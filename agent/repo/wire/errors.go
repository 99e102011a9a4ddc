package wire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/pktline"

	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// RetryAfter returns how long the git server asked the client to wait, if it did.
func RetryAfter(err error) (time.Duration, bool) {
	t, ok := errors.AsType[*throttledError](err)
	if !ok {
		return 0, false
	}
	return t.after, true
}

// throttledError carries the wait of a Retry-After header.
type throttledError struct {
	status string
	after  time.Duration
}

func (e *throttledError) Error() string { return e.status + ", come back after " + e.after.String() }

// refusedError is the answer of a server that refuses a request. Another request may succeed.
type refusedError struct{ words string }

func (e *refusedError) Error() string { return "the git server answers " + e.words }

// gaveUpError is the message of a server that aborts a pack.
type gaveUpError struct{ words string }

func (e *gaveUpError) Error() string { return e.words }

// foreignError is an error whose text may contain text of the server. It is bounded, escaped, and free of secrets. It does not
// unwrap, so that no caller can print what it hides.
type foreignError struct{ text string }

func (e *foreignError) Error() string { return e.text }

// Foreign hides an error whose text may contain text of a server: the result prints it bounded, escaped, and with the secrets
// replaced.
func Foreign(err error, secrets []string) error {
	text := scrub(err.Error(), secrets)
	if len(text) > failure.MaxQuoted || strings.ContainsFunc(text, unprintableInText) {
		text = failure.Quote(text)
	}
	return &foreignError{text}
}

func unprintableInText(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }

func scrub(text string, secrets []string) string {
	for _, s := range secrets {
		if s != "" {
			text = strings.ReplaceAll(text, s, "REDACTED")
		}
	}
	return text
}

// unwrapped removes the layers of net/http and go-git, which print addresses or hide their cause.
func unwrapped(err error) error {
	for {
		if u, ok := errors.AsType[*url.Error](err); ok && u.Err != nil {
			err = u.Err
			continue
		}
		if u, ok := errors.AsType[*plumbing.UnexpectedError](err); ok && u.Err != nil {
			err = u.Err
			continue
		}
		if u, ok := errors.AsType[*plumbing.PermanentError](err); ok && u.Err != nil {
			err = u.Err
			continue
		}
		return err
	}
}

// Refused reports whether a server refused a request, or sent a pack that builds on an object that the store does not have.
// Another request may succeed.
func Refused(err error) bool {
	_, refusal := errors.AsType[*refusedError](err)
	_, base := errors.AsType[*store.MissingBaseError](err)
	return refusal || base
}

// Explain adds a reason to an error of an exchange with u. ctx is that of the exchange.
func Explain(ctx context.Context, u URL, err error, secrets []string) error {
	err = unwrapped(err)
	if f, ok := errors.AsType[*failure.Error](err); ok {
		return f
	}
	if s, ok := errors.AsType[*store.DiskError](err); ok {
		return s
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errStalled):
		return failure.New(v1alpha1.ReasonGitTimeout, "%s stopped sending; trying again", u)
	case errors.Is(cause, errDeadline), errors.Is(cause, context.DeadlineExceeded):
		return failure.New(v1alpha1.ReasonGitTimeout, "%s did not finish in time; trying again", u)
	case cause != nil:
		return cause
	}
	if refused, ok := errors.AsType[*refusedError](err); ok {
		return &refusedError{scrub(refused.words, secrets)}
	}
	if missing, ok := errors.AsType[*store.MissingBaseError](err); ok {
		return missing
	}
	said := Foreign(err, secrets)
	if n, ok := errors.AsType[net.Error](err); ok && n.Timeout() {
		return failure.New(v1alpha1.ReasonGitTimeout, "%s did not answer in time: %w", u, said)
	}
	return failure.New(v1alpha1.ReasonGitUnreachable, "%s%s: %w", u, advice(err), said)
}

// advice says what is wrong, by the type of the error.
func advice(err error) string {
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	_, invalid := errors.AsType[x509.CertificateInvalidError](err)
	_, host := errors.AsType[x509.HostnameError](err)
	_, verify := errors.AsType[*tls.CertificateVerificationError](err)
	_, record := errors.AsType[tls.RecordHeaderError](err)
	_, dns := errors.AsType[*net.DNSError](err)
	_, away := errors.AsType[*net.OpError](err)
	_, gaveUp := errors.AsType[*gaveUpError](err)
	_, refuses := errors.AsType[*pktline.ErrorLine](err)
	switch {
	case refuses:
		return " shows no refs and answers"
	case gaveUp:
		return " gave up in the middle"
	case unknown:
		return " shows a certificate of an unknown authority (git.caSecretRef names a private one)"
	case invalid, host, verify:
		return " shows a certificate that does not hold"
	case record, errors.Is(err, http.ErrSchemeMismatch):
		return " does not speak TLS (http:// and https:// mixed up?)"
	case dns:
		return " has a name that cannot be looked up"
	case errors.Is(err, store.ErrCorrupt):
		return " sent something that cannot be used"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return " ended the connection early"
	case away:
		return " cannot be reached"
	}
	return " does not answer as a git server"
}
