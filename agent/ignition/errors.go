package ignition

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

// Sentinels for errors.Is.
var (
	// ErrLockHeld means that another actor holds the scan lock (409 [SPEC]).
	ErrLockHeld = errors.New("another client holds the scan lock")
	// ErrLockTimeout means that the gateway could not grant the scan lock in time (408 [SPEC]).
	ErrLockTimeout = errors.New("timed out waiting for the scan lock")
	// ErrNotFound means that the gateway has no such route, project or resource type (404).
	ErrNotFound = errors.New("not found on the gateway")
)

// StatusError is a response of the gateway that is not a success. The methods of Client wrap it in their errors.
type StatusError struct {
	Method, Path string
	Status       int
	// Message is the gateway's own text: bounded, on one line, without markup, and often empty.
	Message string
}

func (e *StatusError) Error() string {
	text := fmt.Sprintf("%s %s: %d %s", e.Method, e.Path, e.Status, http.StatusText(e.Status))
	if e.Message != "" && e.Message != http.StatusText(e.Status) {
		text += " (" + e.Message + ")"
	}
	return strings.TrimSpace(text)
}

// Is makes errors.Is(err, ErrNotFound) true for a 404.
func (e *StatusError) Is(target error) bool {
	return target == ErrNotFound && e.Status == http.StatusNotFound
}

// Refused reports whether the gateway answered that it does not carry out a request (4xx), for example because another client
// holds the scan lock.
func Refused(err error) bool {
	s, ok := errors.AsType[*StatusError](err)
	return ok && s.Status >= 400 && s.Status < 500
}

// refused returns an error with advice for a response that is not a success. The body only adds detail to the text, because it is
// HTML for some routes and JSON for others [LIVE 8.3.6].
func (c *Client) refused(ctx context.Context, r call, got answer, key secret.String) error {
	cause := &StatusError{Method: r.method, Path: r.path, Status: got.status, Message: refusalMessage(got.body, key)}
	switch {
	case got.status >= 300 && got.status < 400:
		return redirected(c.base, cause, got.header.Get("Location"), key)
	case (got.status == http.StatusUnauthorized || got.status == http.StatusForbidden) && !r.public && c.cfg.Rejected != nil:
		return fmt.Errorf("%w: %w", c.cfg.Rejected(), cause)
	case got.status == http.StatusUnauthorized && !r.public:
		return failure.New(v1alpha1.ReasonGatewayForbidden, "%s: %w", adviceUnauthorized(key), cause)
	case got.status == http.StatusForbidden && !r.public:
		return failure.New(v1alpha1.ReasonGatewayForbidden, "%s: %w", adviceForbidden(c.base, r), cause)
	case got.status == http.StatusServiceUnavailable:
		return failure.New(v1alpha1.ReasonWaitingForGateway, "the gateway at %s is starting: %w", c.base, cause)
	case got.status == http.StatusNotFound && !r.public:
		return failure.New(v1alpha1.ReasonGatewayUnreachable, "%s: %w", c.adviceNotFound(ctx), cause)
	case got.status == http.StatusBadRequest && c.base.Scheme == "http":
		return failure.New(v1alpha1.ReasonGatewayUnreachable,
			"the gateway at %s rejected the request; if this port speaks https, set spec.gateway.tls: %w", c.base, cause)
	}
	return failure.New(v1alpha1.ReasonGatewayUnreachable, "the gateway at %s answered with an error: %w", c.base, cause)
}

// CommissioningAdvice says what to do about a gateway that waits to be commissioned.
const CommissioningAdvice = "open it in a browser and finish commissioning"

// redirected explains a redirect. A gateway that was never commissioned redirects every /data route to /welcome [LIVE
// 8.3.6].
func redirected(base *url.URL, cause *StatusError, location string, key secret.String) error {
	to, err := base.Parse(location)
	switch {
	case err != nil || location == "":
		return failure.New(v1alpha1.ReasonGatewayUnreachable,
			"%s redirects without a location: is this an Ignition gateway? %w", base, cause)
	case strings.HasPrefix(to.Path, "/welcome"):
		return failure.New(v1alpha1.ReasonWaitingForCommissioning,
			"the gateway at %s waits to be commissioned: %s: %w", base, CommissioningAdvice, cause)
	case base.Scheme == "http" && to.Scheme == "https":
		return failure.New(v1alpha1.ReasonGatewayUnreachable,
			"the gateway at %s requires https: set spec.gateway.tls and the port to that of %s: %w",
			base, serverText(to.Host, key), cause)
	}
	return failure.New(v1alpha1.ReasonGatewayUnreachable,
		"%s redirects to %s, which the agent does not follow, to keep the API key on its host; point spec.gateway.port (or the URL) at the gateway itself: %w",
		base, serverText(to.Host, key), cause)
}

func adviceUnauthorized(key secret.String) string {
	name, value, named := strings.Cut(key.Reveal(), ":")
	switch {
	case key.Empty():
		return "the gateway requires an API key: set spec.gateway.api"
	case !named || name == "" || value == "":
		return "the gateway rejects the API key: its name is missing; the format is <name>:<key>, as the gateway showed it"
	}
	return "the gateway rejects the API key: check that the secret holds <name>:<key>, as this gateway showed it " +
		"(a gateway's first key is valid after a restart or a config scan)"
}

func adviceForbidden(base *url.URL, r call) string {
	level := "Read"
	if r.method != http.MethodGet {
		level = "Write"
	}
	advice := "the API key lacks a permission: give its security level the gateway permission " + level
	if base.Scheme == "http" {
		advice += ", or, as this is http and new keys require a secure connection: set spec.gateway.tls (port 8043), " +
			"or secureChannelRequired: false in the key"
	}
	return advice + "; after its first boot a gateway resets ignition/security-properties, which drops the grant until it is synced again"
}

// adviceNotFound asks the gateway for its version, because versions before 8.3 have none of these routes.
func (c *Client) adviceNotFound(ctx context.Context) string {
	p, err := c.Platform(ctx)
	v := p.Version
	switch {
	case err != nil || v.IsZero():
		return fmt.Sprintf("%s has no such route: is this an Ignition gateway of version 8.3 or later?", c.base)
	case !v.AtLeast(8, 3):
		return fmt.Sprintf("the gateway at %s is Ignition %s, which has no such API: version 8.3 or later is required", c.base, v)
	}
	return fmt.Sprintf("the gateway at %s (Ignition %s) does not have this route", c.base, v)
}

// unreachable returns an error with advice for a request that had no complete response. key is that of the request.
func (c *Client) unreachable(ctx context.Context, r call, timeout time.Duration, key secret.String, err error) error {
	base := c.base
	// *url.Error repeats method and URL; its cause has the reason.
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if ctx.Err() != nil {
		return failure.New(v1alpha1.ReasonGatewayUnreachable, "%s %s on %s was canceled: %w", r.method, r.path, base, context.Cause(ctx))
	}
	if advice := tlsAdvice(err, base.Hostname()); advice != "" {
		return failure.New(v1alpha1.ReasonGatewayUntrusted, "the gateway at %s is not trusted: %s: %w", base, redact(advice, key), serverError{err, key})
	}
	what := fmt.Sprintf("%s %s on %s failed", r.method, r.path, base)
	if errors.Is(err, context.DeadlineExceeded) {
		what = fmt.Sprintf("%s %s on %s had no answer within %s", r.method, r.path, base, timeout)
	} else if _, ok := errors.AsType[*net.DNSError](err); ok {
		what = fmt.Sprintf("cannot resolve the gateway's host %s", base.Hostname())
	} else if isDial(err) {
		what = fmt.Sprintf("the gateway at %s cannot be reached: is it started, and is spec.gateway.port right?", base)
	}
	return failure.New(v1alpha1.ReasonGatewayUnreachable, "%s: %w", what, serverError{err, key})
}

// serverError is an error whose text a server influences, for example with a header that it sends. key is that of the request.
type serverError struct {
	error
	key secret.String
}

func (e serverError) Error() string { return serverText(e.error.Error(), e.key) }

func (e serverError) Unwrap() error { return e.error }

// isDial reports whether an error is that of a connection that could not be opened.
func isDial(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// tlsAdvice says what to configure after a TLS handshake that failed. It returns "" for other errors.
func tlsAdvice(err error, host string) string {
	if errors.Is(err, errBadCA) {
		return "check the PEM file"
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok || errors.Is(err, http.ErrSchemeMismatch) {
		return "spec.gateway.tls is set, but this port does not use TLS: Ignition's https port is 8043 unless changed"
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "its certificate is signed by an unknown authority: put the certificate of that authority (or a self-signed certificate itself) into spec.gateway.tlsConfig.caSecretRef"
	}
	if e, ok := errors.AsType[x509.HostnameError](err); ok {
		return fmt.Sprintf("its certificate is for %s and not for %s: set spec.gateway.tlsConfig.serverName", certificateNames(e.Certificate), e.Host)
	}
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		if e.Reason == x509.Expired {
			return fmt.Sprintf("its certificate is valid from %s to %s only: renew it on the gateway, and check the clocks",
				e.Cert.NotBefore.Format(time.RFC3339), e.Cert.NotAfter.Format(time.RFC3339))
		}
		return "its certificate is not valid for a server: replace it on the gateway, or set spec.gateway.tlsConfig"
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "cannot verify its certificate for " + host + ": set spec.gateway.tlsConfig"
	}
	return ""
}

// certificateNames lists some names of a certificate for a message.
func certificateNames(cert *x509.Certificate) string {
	names := cert.DNSNames
	for _, ip := range cert.IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) == 0 {
		names = []string{cert.Subject.CommonName}
	}
	const most = 5
	if len(names) > most {
		names = append(names[:most:most], "…")
	}
	return oneLine(strings.Join(names, ", "), 300)
}

const maxMessage = 300 // characters of a gateway's own text in an error

// refusalMessage extracts the message from an error body: the MESSAGE cell of the web server's HTML page, or the
// message of a JSON document ({"message","url","status":"403"}, or {"messages":[…]} with a 422) [LIVE 8.3.6]. It
// returns "" for anything else, so that no markup of another server gets into a log.
func refusalMessage(body []byte, key secret.String) string {
	trimmed := bytes.TrimSpace(body)
	if len(trimmed) > 0 && trimmed[0] == '{' {
		return serverText(jsonMessage(trimmed), key)
	}
	return serverText(htmlMessage(decodeText(trimmed)), key)
}

func jsonMessage(body []byte) string {
	// The status is not decoded, because it is a string in some bodies and a number in others.
	var doc struct {
		Message  text   `json:"message"`
		Messages []text `json:"messages"`
	}
	if json.Unmarshal(body, &doc) != nil {
		return ""
	}
	if doc.Message != "" {
		return string(doc.Message)
	}
	var all []string
	for _, m := range doc.Messages {
		all = append(all, string(m))
	}
	return strings.Join(all, "; ")
}

func htmlMessage(page string) string {
	_, rest, ok := strings.Cut(page, "MESSAGE:")
	if !ok {
		return ""
	}
	_, rest, ok = strings.Cut(rest, "<td>")
	if !ok {
		return ""
	}
	cell, _, ok := strings.Cut(rest, "</td>")
	if !ok {
		return ""
	}
	return html.UnescapeString(dropTags(cell))
}

func dropTags(s string) string {
	var out strings.Builder
	for {
		before, rest, ok := strings.Cut(s, "<")
		out.WriteString(before)
		if !ok {
			return out.String()
		}
		if _, s, ok = strings.Cut(rest, ">"); !ok {
			return out.String()
		}
		out.WriteByte(' ')
	}
}

// decodeText decodes a page as UTF-8 if valid, otherwise as ISO 8859-1, which the gateway's web server uses.
func decodeText(page []byte) string {
	if utf8.Valid(page) {
		return string(page)
	}
	runes := make([]rune, len(page))
	for i, b := range page {
		runes[i] = rune(b)
	}
	return string(runes)
}

// serverText makes text that a server influences safe for an error: without the API key, on one line, and of limited length.
func serverText(s string, key secret.String) string { return oneLine(redact(s, key), maxMessage) }

// redact replaces an API key, and the part of it after its name.
func redact(s string, key secret.String) string {
	_, value, _ := strings.Cut(key.Reveal(), ":")
	return secret.Redact(s, key.Reveal(), value)
}

// oneLine makes text of a server printable: one line, no control or formatting characters, at most limit characters.
func oneLine(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case r == utf8.RuneError, !unicode.IsPrint(r):
			return -1
		}
		return r
	}, s)
	s = strings.Join(strings.Fields(s), " ")
	if utf8.RuneCountInString(s) > limit {
		s = string([]rune(s)[:limit-1]) + "…"
	}
	return s
}
