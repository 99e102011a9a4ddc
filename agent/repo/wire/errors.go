package wire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
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
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/secret"
)

// Throttled returns the error for a server that answers with an HTTP status and a Retry-After header, "" for none.
func Throttled(status int, retryAfter string) error {
	after, _ := httpclient.RetryAfter(retryAfter, time.Now(), maxWait)
	return throttled(status, after)
}

func throttled(status int, after time.Duration) error {
	return &backoff.ThrottledError{Status: fmt.Sprintf("HTTP %d, ", status), After: after}
}

// Refused returns an error for which IsRefused holds.
func Refused(text string) error { return &refusedError{text} }

// refusedError means that a server refused a request. A different request may succeed.
type refusedError struct{ text string }

func (e *refusedError) Error() string { return "the git server answers " + e.text }

// abortError is the message of a server that stops in the middle of an answer.
type abortError struct{ text string }

func (e *abortError) Error() string { return e.text }

// foreignError is the result of Foreign. It has no Unwrap, so that no caller can print what it hides.
type foreignError struct{ text string }

func (e *foreignError) Error() string { return e.text }

// Foreign returns an error with the text of err, which may contain text of a server: bounded, escaped, and with the secrets
// replaced.
func Foreign(err error, secrets []string) error {
	text := secret.Redact(err.Error(), secrets...)
	if len(text) > failure.MaxQuoted || strings.ContainsFunc(text, unprintableInText) {
		text = failure.Quote(text)
	}
	return &foreignError{text}
}

func unprintableInText(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }

// unwrap removes the errors of net/http and go-git that print addresses or hide their cause.
func unwrap(err error) error {
	for {
		var cause error
		if u, ok := errors.AsType[*url.Error](err); ok {
			cause = u.Err
		} else if u, ok := errors.AsType[*plumbing.UnexpectedError](err); ok {
			cause = u.Err
		} else if u, ok := errors.AsType[*plumbing.PermanentError](err); ok {
			cause = u.Err
		}
		if cause == nil {
			return err
		}
		err = cause
	}
}

// IsRefused reports whether a server refused a request, or sent a pack that builds on an object that the store does not have. A
// different request may succeed.
func IsRefused(err error) bool {
	_, refusal := errors.AsType[*refusedError](err)
	_, base := errors.AsType[*store.MissingBaseError](err)
	return refusal || base
}

// Explain adds a reason to the error of an exchange with u, and removes the secrets. ctx is the context of the exchange. These get no
// reason: a refusal, a store.MissingBaseError, a store.DiskError, and the cause of a ctx that the caller has canceled.
func Explain(ctx context.Context, u URL, err error, secrets []string) error {
	err = unwrap(err)
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
		return &refusedError{secret.Redact(refused.text, secrets...)}
	}
	if missing, ok := errors.AsType[*store.MissingBaseError](err); ok {
		return missing
	}
	if forbidden, ok := errors.AsType[*httpclient.ForbiddenError](err); ok {
		return failure.New(v1alpha1.ReasonUnsupportedRepository, "%s: %w", u, forbidden)
	}
	serverText := Foreign(err, secrets)
	if n, ok := errors.AsType[net.Error](err); ok && n.Timeout() {
		return failure.New(v1alpha1.ReasonGitTimeout, "%s did not answer in time: %w", u, serverText)
	}
	return failure.New(v1alpha1.ReasonGitUnreachable, "%s%s: %w", u, describe(err), serverText)
}

// describe returns the part of a message after the URL that explains err by its type.
func describe(err error) string {
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	_, invalid := errors.AsType[x509.CertificateInvalidError](err)
	_, host := errors.AsType[x509.HostnameError](err)
	_, verify := errors.AsType[*tls.CertificateVerificationError](err)
	_, record := errors.AsType[tls.RecordHeaderError](err)
	_, dns := errors.AsType[*net.DNSError](err)
	_, unreachable := errors.AsType[*net.OpError](err)
	_, aborted := errors.AsType[*abortError](err)
	_, refused := errors.AsType[*pktline.ErrorLine](err)
	switch {
	case refused:
		return " sends no refs and answers"
	case aborted:
		return " gave up in the middle"
	case unknown:
		return " has a certificate of an unknown authority (trust a private one with git.caSecretRef)"
	case invalid, host, verify:
		return " has an invalid certificate"
	case record, errors.Is(err, http.ErrSchemeMismatch):
		return " does not speak TLS (http:// and https:// mixed up?)"
	case dns:
		return " has a name that cannot be looked up"
	case errors.Is(err, store.ErrCorrupt):
		return " sent something that cannot be used"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return " ended the connection early"
	case unreachable:
		return " cannot be reached"
	}
	return " does not answer as a git server"
}
