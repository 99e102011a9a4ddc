package kube

import (
	"fmt"
	"io"
	"net/http"
	"strings"
)

// RedirectError is a redirect in an answer. A pod that the API server connects a client to, or whatever answers in place of the API
// server, could otherwise choose where the client sends its token, and what it reads with it.
type RedirectError struct {
	From   string // the pod, or the host
	Status int
}

// Error implements error. The message has no part of the answer, which may be hostile.
func (e *RedirectError) Error() string {
	return fmt.Sprintf("%s answers with a redirect (HTTP %d), which is not followed", e.From, e.Status)
}

// refuseRedirects returns a RoundTripper that turns each redirect of next into a RedirectError.
func refuseRedirects(next http.RoundTripper) http.RoundTripper { return redirectRefuser{next} }

type redirectRefuser struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (r redirectRefuser) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := r.next.RoundTrip(req)
	if err != nil || res.StatusCode < 300 || res.StatusCode > 399 || res.StatusCode == http.StatusNotModified {
		return res, err
	}
	_, _ = io.CopyN(io.Discard, res.Body, 4<<10) // so that the connection can be used again
	_ = res.Body.Close()
	return nil, &RedirectError{origin(req), res.StatusCode}
}

// WrappedRoundTripper gives client-go access to the wrapped RoundTripper.
func (r redirectRefuser) WrappedRoundTripper() http.RoundTripper { return r.next }

// origin names what answers a request: the pod behind a path …/namespaces/NS/pods/[SCHEME:]POD[:PORT]/proxy/…, or the host.
func origin(req *http.Request) string {
	_, path, _ := strings.Cut(req.URL.Path, "/api/v1/namespaces/")
	parts := strings.Split(path, "/")
	if len(parts) < 4 || parts[1] != "pods" || parts[3] != "proxy" {
		return "the API server at " + req.URL.Host
	}
	pod := strings.TrimPrefix(strings.TrimPrefix(parts[2], "http:"), "https:")
	pod, _, _ = strings.Cut(pod, ":")
	return fmt.Sprintf("pod %s in namespace %s", pod, parts[0])
}
