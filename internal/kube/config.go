package kube

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"

	"stoker.io/stoker/internal/backoff"
)

// Clients are the clients of an API server.
type Clients struct {
	Config  *rest.Config
	Core    Core
	Dynamic dynamic.Interface
	// Clock is the clock of the API server; nil means the clock of this node.
	Clock *Clock
}

// Now returns the time by the clock of the API server.
func (c Clients) Now() time.Time { return c.Clock.Now() }

// Connect returns clients for a kubeconfig file, or for the service account of the pod if kubeconfig is "". It does not connect
// yet. agent is the user agent of the requests ("stoker-agent/v1.2").
func Connect(kubeconfig, agent string) (Clients, error) {
	config, err := findConfig(kubeconfig, rest.InClusterConfig)
	if err != nil {
		return Clients{}, fmt.Errorf("find the API server: %w", err)
	}
	return ConnectTo(config, agent)
}

// findConfig finds the API server. A pod reaches it inside the cluster, so findConfig ignores the proxy of the environment, which
// is meant for git.
func findConfig(kubeconfig string, inCluster func() (*rest.Config, error)) (*rest.Config, error) {
	if kubeconfig != "" {
		return clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	config, err := inCluster()
	if err != nil {
		return nil, err
	}
	config.Proxy = noProxy
	return config, nil
}

func noProxy(*http.Request) (*url.URL, error) { return nil, nil }

// BypassProxy disables the proxy of the environment in config, if config names no proxy and its host is the API server of the pod that
// env describes. It is for configurations that were found in another way than by Connect, for example as kubectl finds them.
func BypassProxy(config *rest.Config, env func(string) string) {
	host, port := env("KUBERNETES_SERVICE_HOST"), env("KUBERNETES_SERVICE_PORT")
	if host != "" && config.Proxy == nil && config.Host == "https://"+net.JoinHostPort(host, port) {
		config.Proxy = noProxy
	}
}

// ConnectTo returns clients for a copy of config. They follow no redirect, and send at most 20 requests per second, in bursts of up to 40.
func ConnectTo(config *rest.Config, agent string) (Clients, error) {
	return connectTo(config, agent, 20, 40)
}

// RequestTimeout is longer than the API server works on a request, which it ends after a minute. If it is overloaded, it carries requests out and
// answers late: a client that gives up earlier and repeats a request adds to the load. client-go finds a dead connection earlier.
const RequestTimeout = 65 * time.Second

// WithRate returns clients of the same API server with connections and a rate limit of their own. timeout bounds each request; 0 means
// no bound.
func (c Clients) WithRate(perSecond float32, burst int, timeout time.Duration) (Clients, error) {
	config := rest.CopyConfig(c.Config)
	config.Timeout = timeout
	return connectTo(config, config.UserAgent, perSecond, burst)
}

func connectTo(config *rest.Config, agent string, perSecond float32, burst int) (Clients, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = agent
	// Without a shared limiter, the client of each API group would have a limit of its own.
	config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(perSecond, burst)
	clock := &Clock{}
	config.Wrap(clock.transport)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return redirectRefuser{next} })
	config.ContentType, config.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	shared, err := rest.HTTPClientFor(config) // one client, because client-go does not share connections if Proxy is set
	if err != nil {
		return Clients{}, err
	}
	core, err := newCore(config, shared)
	if err != nil {
		return Clients{}, err
	}
	plain := rest.CopyConfig(config) // custom resources have no protobuf encoding
	plain.ContentType, plain.AcceptContentTypes = "", ""
	dyn, err := dynamic.NewForConfigAndClient(plain, shared)
	if err != nil {
		return Clients{}, err
	}
	return Clients{Config: config, Core: core, Dynamic: dyn, Clock: clock}, nil
}

// MetadataOf returns a client that reads only the metadata of objects.
func MetadataOf(c Clients) (metadata.Interface, error) { return metadata.NewForConfig(c.Config) }

// Accounts returns a function that returns clients that impersonate a ServiceAccount. They share the connections of c, whose user needs
// the right to impersonate the account. Impersonation in the config of c has no effect on them.
func (c Clients) Accounts() (func(namespace, name string) (Clients, error), error) {
	own, err := rest.HTTPClientFor(c.Config)
	if err != nil {
		return nil, err
	}
	return func(namespace, name string) (Clients, error) {
		return ConnectTo(&rest.Config{
			Host: c.Config.Host, APIPath: c.Config.APIPath, Transport: own.Transport, WarningHandler: rest.NoWarnings{},
			Impersonate: rest.ImpersonationConfig{UserName: AccountUser(namespace, name)},
		}, c.Config.UserAgent)
	}, nil
}

// AccountUser returns the user name of a ServiceAccount.
func AccountUser(namespace, name string) string {
	return "system:serviceaccount:" + namespace + ":" + name
}

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

// redirectRefuser turns each redirect of next into a RedirectError.
type redirectRefuser struct{ next http.RoundTripper }

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

// TryOnce keeps the clients of config from repeating a request whose connection was closed without an answer. It is for a user who waits for
// the answer.
func TryOnce(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return once{next} })
}

// once is a RoundTripper whose error keeps client-go from repeating a request ten times, a second apart, if the connection was closed
// without an answer. A load balancer in front of an API server that is away does that.
type once struct{ next http.RoundTripper }

func (o once) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := o.next.RoundTrip(req)
	if utilnet.IsProbableEOF(err) || utilnet.IsConnectionReset(err) {
		err = errors.New("the connection was closed without an answer")
	}
	return res, err
}

// WrappedRoundTripper gives client-go access to the wrapped RoundTripper.
func (o once) WrappedRoundTripper() http.RoundTripper { return o.next }

// Pauses between two attempts to reach the API server. Those of client-go grow to a minute, so after an outage of ten seconds a
// gateway would learn of a new commit a minute late.
const (
	minPause = time.Second
	maxPause = 8 * time.Second
)

// retry repeats do until it succeeds, the API server answers with an error that a retry does not change, or ctx is done. It also retries if the
// API server answers but its etcd does not, or if only a load balancer answers. It calls onResult with the error, or nil, of each attempt. Each
// pause is spread over up to twice its length, so that not all agents return at the same time.
func retry[T any](ctx context.Context, onResult func(error), do func() (T, error)) (T, error) {
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		result, err := do()
		onResult(err)
		if err == nil || isAnswer(err) && !Transient(err) || ctx.Err() != nil {
			return result, err
		}
		if !backoff.Wait(ctx, wait.Jitter(pause, 1)) {
			return result, err
		}
	}
}

// isAnswer reports whether err is an answer of the API server and not an error on the way there.
func isAnswer(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status)
}

// Transient reports whether a retry may help, because the API server is unreachable or busy. An UndecodableError and a RedirectError are not
// transient.
func Transient(err error) bool {
	if !isAnswer(err) {
		_, undecodable := errors.AsType[*UndecodableError](err)
		_, redirect := errors.AsType[*RedirectError](err)
		return err != nil && !undecodable && !redirect
	}
	return apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsInternalError(err) || apierrors.IsTimeout(err)
}
