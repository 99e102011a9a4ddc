package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// maxAnswer bounds the body of an answer of another cluster.
	maxAnswer = 32 << 20
	// answerTimeout bounds a request to another cluster.
	answerTimeout = 30 * time.Second
)

// ParseKubeconfig returns the configuration for the current context of a kubeconfig that a user wrote, as JSON or YAML without aliases. It
// reads no file, starts no program, and asks no proxy. dial makes the connections. Errors name fields, but not their values.
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
