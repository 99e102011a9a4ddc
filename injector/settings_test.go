package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/admission"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/internal/serve"
	"stoker.io/stoker/test/reference"
)

func noEnv(string) string { return "" }

func TestUsageErrors(t *testing.T) {
	var out bytes.Buffer
	_, err := parse([]string{"--repair=never", "--log-level=loud", "--watch-namespace=A", "--watch-label-selector=a=b=c",
		"--agent-resources={\"limit\":1}", "--agent-image-pull-policy=Sometimes", "extra"}, noEnv, &out)
	require.ErrorIs(t, err, daemon.ErrUsage)
	for _, want := range []string{"--repair", "loud", `"A"`, "--watch-label-selector", "--agent-resources", "Sometimes", `"extra"`, "--agent-image:", "POD_NAMESPACE"} {
		assert.Contains(t, out.String(), want)
	}
}

func TestHelpAndVersion(t *testing.T) {
	var out bytes.Buffer
	assert.Equal(t, daemon.ExitDone, run(t.Context(), []string{"--help"}, noEnv, io.Discard, &out))
	assert.Contains(t, out.String(), "--agent-image")
	assert.Equal(t, daemon.ExitDone, run(t.Context(), []string{"--version"}, noEnv, &out, io.Discard))
	assert.Equal(t, daemon.ExitUsage, run(t.Context(), []string{"--nonsense"}, noEnv, io.Discard, io.Discard))
	assert.Equal(t, daemon.ExitFailed, run(t.Context(), []string{"--agent-image=a:1", "--namespace=x", "--kubeconfig=/nowhere"}, noEnv, io.Discard, io.Discard))
}

func TestParseImage(t *testing.T) {
	digest := "sha256:" + strings.Repeat("ab", 32)
	for text, want := range map[string]v1alpha1.AgentImage{
		"ghcr.io/stoker-io/agent:1.2":             {Repository: "ghcr.io/stoker-io/agent", Tag: "1.2"},
		"localhost:5000/agent:1":                  {Repository: "localhost:5000/agent", Tag: "1"},
		"localhost:5000/agent@" + digest:          {Repository: "localhost:5000/agent", Digest: digest},
		"ghcr.io/stoker-io/agent:1.2.3@" + digest: {Repository: "ghcr.io/stoker-io/agent", Digest: digest},
		"agent:latest":                            {Repository: "agent", Tag: "latest"},
	} {
		t.Run(strings.ReplaceAll(text, digest, "digest"), func(t *testing.T) {
			got, err := parseImage(text)
			require.NoError(t, err)
			assert.Equal(t, want, got)
		})
	}
	for _, text := range []string{"", "agent", "localhost:5000/agent", ":1", "agent:", "agent@sha256:12", "agent:1@", "agent:a b", "a//b:1", "a//b@" + digest} {
		t.Run(strings.ReplaceAll(text, digest, "digest"), func(t *testing.T) {
			_, err := parseImage(text)
			assert.Error(t, err)
		})
	}
}

func TestShippedDeployment(t *testing.T) {
	deployment := &appsv1.Deployment{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(shipped(t, "Deployment/*")), deployment))
	c := deployment.Spec.Template.Spec.Containers[0]
	env := func(name string) string {
		if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name }) {
			return "x"
		}
		return ""
	}
	image := deployment.Spec.Template.Annotations["stoker.io/image-of-agents"]
	args := slices.Clone(c.Args)
	for i := range args { // expands the variable as the kubelet does
		args[i] = strings.ReplaceAll(args[i], "$(AGENT_IMAGE)", image)
	}
	s, err := parse(args, env, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, "x", s.Pod)
	assert.Equal(t, image, s.image.Repository+":"+s.image.Tag)
	for _, p := range c.Ports {
		addr := map[string]string{"webhook": s.WebhookAddr, "health": s.HealthAddr, "metrics": s.MetricsAddr}[p.Name]
		_, port, _ := strings.Cut(addr, ":")
		assert.Equal(t, strconv.Itoa(int(p.ContainerPort)), port, p.Name)
	}
}

// The tests with a real API server use the webhook configuration of kustomize, and so check what its entries do.
func TestShippedWebhookConfiguration(t *testing.T) {
	got := &admissionregv1.MutatingWebhookConfiguration{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(shipped(t, "MutatingWebhookConfiguration/*")), got))
	assert.Equal(t, admission.ConfigurationName, got.Name)
	require.Len(t, got.Webhooks, 2)
	for i, name := range []string{"pods.stoker.io", "require.pods.stoker.io"} {
		t.Run(name, func(t *testing.T) {
			w := got.Webhooks[i]
			assert.Equal(t, name, w.Name)
			assert.Equal(t, &admissionregv1.ServiceReference{Name: "stoker-injector", Namespace: system, Path: new(admission.Path), Port: new(int32(443))}, w.ClientConfig.Service)
			for _, annotation := range []string{v1alpha1.AnnotationInject, v1alpha1.AnnotationRequire} {
				assert.Contains(t, fmt.Sprint(w.MatchConditions), "annotations['"+annotation+"']")
			}
			assert.Contains(t, fmt.Sprint(w.NamespaceSelector), v1alpha1.LabelInjection)
			assert.Contains(t, fmt.Sprint(w.ObjectSelector), v1alpha1.LabelInjection)
		})
	}
}

func TestReferenceOfFlags(t *testing.T) {
	var s settings
	reference.Flags(t, "../docs/reference/injector.md", s.flags(io.Discard))
}

func TestReferenceOfMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	metrics.NewInjector(reg, "v")
	reference.Metrics(t, "../docs/reference/injector.md", reg)
}

// The page about pods must link every reason against injection, and list every annotation.
func TestPodsPageIsComplete(t *testing.T) {
	page := readFile(t, "../docs/how-to/pods.md")
	for _, r := range v1alpha1.Reasons {
		if r.Class == v1alpha1.ClassNotInjected {
			assert.Contains(t, page, "["+string(r.Reason)+"](troubleshooting.md#"+strings.ToLower(string(r.Reason))+")")
		}
	}
	for _, a := range []string{v1alpha1.AnnotationInject, v1alpha1.AnnotationCRName, v1alpha1.AnnotationGatewayName, v1alpha1.AnnotationProfile,
		v1alpha1.AnnotationDataVolume, v1alpha1.AnnotationRequire, v1alpha1.AnnotationAgentImage} {
		assert.Contains(t, page, "| `"+a+"` |")
	}
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(b)
}

func get(t testing.TB, url string) string {
	t.Helper()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Get(url)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	require.NoError(t, err)
	return string(body)
}

// leaf returns the certificate of a server.
func leaf(t testing.TB, address string) *x509.Certificate {
	t.Helper()
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12})
	require.NoError(t, err)
	defer func() { assert.NoError(t, conn.Close()) }()
	return conn.ConnectionState().PeerCertificates[0]
}

// C9: every route and method of the three ports. Only a review has an effect, and the effect is limited to its answer. A new route
// needs a row here.
func TestRoutes(t *testing.T) {
	ready := false
	servers := map[string]*serve.Mux{
		"webhook": admission.New(admission.Config{}).Routes(),
		"health":  daemon.Health(func() bool { return ready }, "waiting"),
		"metrics": daemon.Metrics(prometheus.NewRegistry()),
	}
	want := map[string]int{
		"webhook POST /mutate": http.StatusUnsupportedMediaType, "health GET /healthz": http.StatusOK, "health GET /readyz": http.StatusServiceUnavailable,
		"metrics GET /metrics": http.StatusOK,
	}
	known := map[string]bool{"webhook /mutate": true, "health /healthz": true, "health /readyz": true, "metrics /metrics": true}
	var served []string
	for name, h := range servers {
		t.Run(name, func(t *testing.T) {
			for _, pattern := range h.Patterns() {
				served = append(served, name+" "+pattern)
			}
			for _, path := range []string{"/", "/mutate", "/mutate/", "/healthz", "/readyz", "/metrics", "/debug/pprof/", "/shutdown", "/state", "/startupz", "/../mutate"} {
				t.Run(path, func(t *testing.T) {
					for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"} {
						t.Run(method, func(t *testing.T) {
							w := httptest.NewRecorder()
							r := httptest.NewRequest(method, path, nil)
							r.Header.Set("Authorization", "Bearer wrong") // no credential is right, because no route checks one
							h.ServeHTTP(w, r)
							key := fmt.Sprintf("%s %s %s", name, method, path)
							code, ok := want[key]
							if method == "HEAD" {
								code, ok = want[fmt.Sprintf("%s GET %s", name, path)]
							}
							switch {
							case ok:
								assert.Equal(t, code, w.Code, key)
							case known[name+" "+path]:
								assert.Equal(t, http.StatusMethodNotAllowed, w.Code, key)
							default:
								assert.Contains(t, []int{http.StatusNotFound, http.StatusMovedPermanently, http.StatusTemporaryRedirect}, w.Code, key)
							}
						})
					}
				})
			}
		})
	}
	assert.ElementsMatch(t, slices.Collect(maps.Keys(want)), served)
	ready = true
	w := httptest.NewRecorder()
	servers["health"].ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	assert.Equal(t, http.StatusOK, w.Code)
}

func TestAgentEnvAndArgsReachAgents(t *testing.T) {
	s, err := parse([]string{"--agent-image=a:1", "--namespace=x",
		"--agent-env=HTTPS_PROXY=http://proxy.example.com:3128", "--agent-env=http_proxy=proxy:3128/", "--agent-env=NO_PROXY=example.com, .b.example,*.c.example:8443,git,10.0.0.0/8,192.0.2.1,192.0.2.1:80,fd00::/8,[fd00::1]:443,",
		"--agent-arg=--log-level=debug", "--agent-arg=--log-format=text", "--agent-arg=--max-files=7", "--agent-arg=--max-blob=1GiB",
		"--agent-arg=--max-repository=1GiB", "--agent-arg=--max-lost-found=1GiB", "--agent-arg=--lost-found-age=1h"}, noEnv, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, []corev1.EnvVar{
		{Name: "HTTPS_PROXY", Value: "http://proxy.example.com:3128"}, {Name: "http_proxy", Value: "proxy:3128/"},
		{Name: "NO_PROXY", Value: "example.com, .b.example,*.c.example:8443,git,10.0.0.0/8,192.0.2.1,192.0.2.1:80,fd00::/8,[fd00::1]:443,"},
	}, defaults(s).Env)
	assert.Equal(t, []string{"--log-level=debug", "--log-format=text", "--max-files=7", "--max-blob=1GiB",
		"--max-repository=1GiB", "--max-lost-found=1GiB", "--lost-found-age=1h"}, defaults(s).Args)
	for _, proxy := range []string{"https://proxy", "socks5://[fd00::1]:1080", "192.0.2.1:3128", "*"} {
		t.Run(proxy, func(t *testing.T) {
			variable := "HTTPS_PROXY"
			if proxy == "*" {
				variable = "NO_PROXY"
			}
			_, err := parse([]string{"--agent-image=a:1", "--namespace=x", "--agent-env=" + variable + "=" + proxy}, noEnv, io.Discard)
			assert.NoError(t, err)
		})
	}
}

// C7: every reader of pods sees what the injector adds, and the injector's command line is readable as well.
func TestAgentEnvAndArgsErrors(t *testing.T) {
	const notAllowed = "cannot be set for all agents; the allowed flags are --log-format, --log-level, --lost-found-age, --max-blob, " +
		"--max-files, --max-lost-found, --max-repository"
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--agent-env=HTTPS_PROXY=http://me:S3CR3T@proxy:3128"}, "--agent-env: HTTPS_PROXY contains a user or a password"},
		{[]string{"--agent-env=http_proxy=S3CR3T@proxy"}, "--agent-env: http_proxy contains a user or a password"},
		{[]string{"--agent-env=HTTPS_PROXY=http://me:%S3CR3T@proxy:x"}, "contains a user or a password"},
		{[]string{"--agent-env=HTTPS_PROXY="}, "HTTPS_PROXY is not the address of a proxy"},
		{[]string{"--agent-env=HTTPS_PROXY=http://proxy/S3CR3T"}, "is not the address of a proxy"},
		{[]string{"--agent-env=HTTPS_PROXY=http://proxy?S3CR3T"}, "is not the address of a proxy"},
		{[]string{"--agent-env=HTTPS_PROXY=http://proxy#S3CR3T"}, "is not the address of a proxy"},
		{[]string{"--agent-env=HTTPS_PROXY=http://$(S3CR3T)"}, "is not the address of a proxy"},
		{[]string{"--agent-env=HTTPS_PROXY=http://"}, "is not the address of a proxy"},
		{[]string{"--agent-env=HTTPS_PROXY=" + strings.Repeat("a", maxVariable+1)}, "is not the address of a proxy"},
		{[]string{"--agent-env=HTTPS_PROXY=ftp://proxy"}, "use http, https, socks5 or socks5h"},
		{[]string{"--agent-env=HTTPS_PROXY=http://proxy:99999"}, "has an invalid port"},
		{[]string{"--agent-env=NO_PROXY="}, "NO_PROXY is empty"},
		{[]string{"--agent-env=NO_PROXY=a," + strings.Repeat("b", maxVariable)}, "longer than 4096 bytes"},
		{[]string{"--agent-env=NO_PROXY=a,https://S3CR3T"}, "NO_PROXY has an invalid entry, number 2"},
		{[]string{"--agent-env=no_proxy=10.*"}, "no_proxy has an invalid entry, number 1"},
		{[]string{"--agent-env=NO_PROXY=a b"}, "has an invalid entry"},
		{[]string{"--agent-env=NO_PROXY=a/b"}, "has an invalid entry"},
		{[]string{"--agent-env=NO_PROXY=me:S3CR3T@host"}, "has an invalid entry"},
		{[]string{"--agent-env=NO_PROXY=a", "--agent-env=no_proxy=b"}, "--agent-env: NO_PROXY is set twice"},
		{[]string{"--agent-env=NO_PROXY"}, "--agent-env: write NAME=VALUE"},
		{[]string{"--agent-env=No_Proxy=a"}, `--agent-env: "No_Proxy" is not allowed: set HTTPS_PROXY, HTTP_PROXY, NO_PROXY, or the same in lower case`},
		{[]string{"--agent-env=GIT_TOKEN_FILE=S3CR3T"}, `"GIT_TOKEN_FILE" is not allowed`},
		{[]string{"--agent-env=LD_PRELOAD=S3CR3T"}, `"LD_PRELOAD" is not allowed`},

		{[]string{"--agent-arg=--data-dir=/"}, "--agent-arg: --data-dir " + notAllowed},
		{[]string{"--agent-arg=--kubeconfig=/x"}, "--agent-arg: --kubeconfig " + notAllowed},
		{[]string{"--agent-arg=--health-addr=:1"}, "--health-addr cannot be set"},
		{[]string{"--agent-arg=--allow-unseeded=true"}, "--allow-unseeded cannot be set"},
		{[]string{"--agent-arg=--file=x"}, "--file cannot be set"},
		{[]string{"--agent-arg=--version=true"}, "--version cannot be set"},
		{[]string{"--agent-arg=--=x"}, "-- cannot be set"},
		{[]string{"--agent-arg=-log-level=debug"}, `--agent-arg: "-log-level" is not of the form --flag=value`},
		{[]string{"--agent-arg=--log-level"}, `--agent-arg: "--log-level" is not of the form --flag=value`},
		{[]string{"--agent-arg=--log-level=loud"}, `--agent-arg: --log-level: "loud" is not one of`},
		{[]string{"--agent-arg=--log-format=xml"}, `--agent-arg: --log-format: "xml" is not one of`},
		{[]string{"--agent-arg=--max-files=0"}, "--agent-arg: --max-files must be positive"},
		{[]string{"--agent-arg=--max-files=many"}, "--agent-arg: --max-files=many: parse error"},
		{[]string{"--agent-arg=--max-blob=5MB"}, `--agent-arg: --max-blob=5MB: "5MB" is not a size such as 512MiB`},
		{[]string{"--agent-arg=--max-files=1", "--agent-arg=--max-files=2"}, "--agent-arg: --max-files is set twice"},
	} {
		t.Run(fmt.Sprintf("%.60s", c.args), func(t *testing.T) {
			var out bytes.Buffer
			_, err := parse(append(c.args, "--agent-image=a:1", "--namespace=x"), noEnv, &out)
			require.ErrorIs(t, err, daemon.ErrUsage)
			problem, _, _ := strings.Cut(out.String(), "\nSee injector --help")
			assert.Contains(t, problem, c.want)
			assert.NotContains(t, problem, "\n", "one problem, one line")
			assert.NotContains(t, out.String(), "S3CR3T")
		})
	}
}
