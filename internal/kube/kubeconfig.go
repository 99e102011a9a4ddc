package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// maxAnswer bounds the body of an answer of another cluster.
	maxAnswer = 32 << 20
	// answerTimeout bounds a request to another cluster.
	answerTimeout = 30 * time.Second

	// Upper estimates of the memory of a decoded answer, in bytes: for each delimiter of JSON, for each delimiter in a list of kinds, and for
	// each byte of another encoding.
	delimiterMemory, kindMemory, byteMemory = 32, 160, 100
)

// ParseKubeconfig returns the configuration for the current context of a kubeconfig that a user wrote, as JSON or YAML. The caller refuses YAML
// with aliases. The configuration reads no file, starts no program, and uses no proxy. dial makes the connections. Errors name fields, but not
// their values.
func ParseKubeconfig(text []byte, dial func(ctx context.Context, network, address string) (net.Conn, error)) (*rest.Config, error) {
	file, err := clientcmd.Load(text)
	if err != nil {
		return nil, errors.New("it is not a kubeconfig")
	}
	current := file.Contexts[file.CurrentContext]
	if current == nil {
		return nil, errors.New("current-context must name one of contexts")
	}
	cluster, user := file.Clusters[current.Cluster], file.AuthInfos[current.AuthInfo]
	if cluster == nil || user == nil {
		return nil, errors.New("the cluster and the user of the current context must be among clusters and users")
	}
	for _, f := range []struct {
		field string
		set   bool
		why   string
	}{
		{"insecure-skip-tls-verify", cluster.InsecureSkipTLSVerify, "the server must prove who it is: set certificate-authority-data"},
		{"certificate-authority", cluster.CertificateAuthority != "", "no file is read: set certificate-authority-data"},
		{"proxy-url", cluster.ProxyURL != "", "the server is reached directly: remove the field"},
		{"exec", user.Exec != nil, "no program is started: set the token of a ServiceAccount"},
		{"auth-provider", user.AuthProvider != nil, "no provider is asked: set the token of a ServiceAccount"},
		{"tokenFile", user.TokenFile != "", "no file is read: set token"},
		{"client-certificate", user.ClientCertificate != "", "no file is read: set client-certificate-data"},
		{"client-key", user.ClientKey != "", "no file is read: set client-key-data"},
		{"username", user.Username != "" || user.Password != "", "API servers accept no password: set token"},
		{"as", user.Impersonate != "" || user.ImpersonateUID != "" || len(user.ImpersonateGroups)+len(user.ImpersonateUserExtra) > 0, "name the user itself"},
	} {
		if f.set {
			return nil, fmt.Errorf("%s: %s", f.field, f.why)
		}
	}
	server, err := url.Parse(cluster.Server)
	if err != nil || server.Scheme != "https" || server.Host == "" || server.User != nil || server.RawQuery != "" || server.Fragment != "" {
		return nil, errors.New("server must be an address such as https://edge.example.com:6443")
	}
	if user.Token == "" && len(user.ClientCertificateData) == 0 {
		return nil, errors.New("the user needs a token, or client-certificate-data and client-key-data")
	}
	config := &rest.Config{
		Host: cluster.Server, BearerToken: user.Token, Timeout: answerTimeout, Dial: dial, Proxy: noProxy, WarningHandler: rest.NoWarnings{},
		TLSClientConfig: rest.TLSClientConfig{
			CAData: cluster.CertificateAuthorityData, CertData: user.ClientCertificateData, KeyData: user.ClientKeyData, ServerName: cluster.TLSServerName,
		},
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return boundedAnswers{next} })
	if _, err := rest.TLSConfigFor(config); err != nil {
		return nil, errors.New("certificate-authority-data, client-certificate-data and client-key-data must be certificates and their key in PEM")
	}
	return config, nil
}

// boundedAnswers is a transport whose answers have at most maxAnswer bytes.
type boundedAnswers struct{ next http.RoundTripper }

func (b boundedAnswers) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.next.RoundTrip(r)
	if err == nil {
		answer.Body = &boundedBody{answer.Body, maxAnswer}
	}
	return answer, err
}

// WrappedRoundTripper returns the next transport.
func (b boundedAnswers) WrappedRoundTripper() http.RoundTripper { return b.next }

// boundedBody is a body that fails after left bytes.
type boundedBody struct {
	io.ReadCloser
	left int64
}

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	}
	return n, err
}

// LimitMemory makes the clients of config fail with the error full if the answers that they got need more than limit bytes of memory
// together. Of a request other than POST, only the last answer counts: a caller that repeats it must drop the earlier answer.
func LimitMemory(config *rest.Config, limit int64, full error) {
	base := ""
	if server, err := url.Parse(config.Host); err == nil {
		base = strings.TrimSuffix(server.Path, "/")
	}
	memory := &answerMemory{base: base, left: limit, full: full, used: map[string]int64{}}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return memoryLimiter{next, memory} })
}

// answerMemory is the memory of the answers of a server.
type answerMemory struct {
	base string // path of the server
	full error

	mu   sync.Mutex
	left int64
	used map[string]int64 // by request
}

// add adds n bytes for an answer to a request.
func (m *answerMemory) add(request string, n int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used[request] += n
	if m.left -= n; m.left < 0 {
		return m.full
	}
	return nil
}

// drop forgets the answer to a request.
func (m *answerMemory) drop(request string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left += m.used[request]
	delete(m.used, request)
}

// memoryLimiter is a transport that counts the memory of its answers.
type memoryLimiter struct {
	next   http.RoundTripper
	memory *answerMemory
}

func (l memoryLimiter) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := l.next.RoundTrip(r)
	if err != nil {
		return answer, err
	}
	body := &countedBody{ReadCloser: answer.Body, memory: l.memory, request: r.Method + " " + r.URL.RequestURI(), perDelimiter: delimiterMemory}
	switch path := strings.TrimPrefix(r.URL.Path, l.memory.base); {
	case !strings.HasPrefix(answer.Header.Get("Content-Type"), runtime.ContentTypeJSON):
		body.perByte, body.perDelimiter = byteMemory, 0
	case strings.Count(path, "/") <= 3: // /apis/GROUP/VERSION
		body.perDelimiter = kindMemory
	}
	if r.Method != http.MethodPost {
		l.memory.drop(body.request)
	}
	answer.Body = body
	return answer, nil
}

// WrappedRoundTripper returns the next transport.
func (l memoryLimiter) WrappedRoundTripper() http.RoundTripper { return l.next }

// countedBody adds what is read of it to memory.
type countedBody struct {
	io.ReadCloser
	memory                *answerMemory
	request               string
	perByte, perDelimiter int
	quoted, escaped       bool // the next byte is in a string, or follows a backslash there
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	delimiters := 0
	for _, c := range p[:n] {
		switch {
		case b.escaped:
			b.escaped = false
		case b.quoted && c == '\\':
			b.escaped = true
		case c == '"':
			b.quoted = !b.quoted
		case b.quoted:
		case c == '{':
			delimiters += 5 // with its first entry, a map allocates room for eight
		case c == '[' || c == ',' || c == ':':
			delimiters++
		}
	}
	if full := b.memory.add(b.request, int64(n*(1+b.perByte)+delimiters*b.perDelimiter)); full != nil {
		return 0, full
	}
	return n, err
}
