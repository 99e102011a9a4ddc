package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/hooks/preflight"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/test/clientset"
)

// kubeconfigOf writes a kubeconfig for an API server that needs no credentials.
func kubeconfigOf(t *testing.T, server string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, []byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"clusters": [{"name": "c", "cluster": {"server": "`+server+`"}}], "contexts": [{"name": "c", "context": {"cluster": "c", "namespace": "plant"}}]}`), 0o600))
	return file
}

// verbsOfJobs holds the command lines that hook Jobs run.
var verbsOfJobs = map[string][]string{
	"preflight": {"preflight", "line", "--if-exists"},
	"set-ref":   {"set-ref", "line", "v2", "--by", "argocd", "--id", "job"},
	"sync":      {"sync", "line", "--wait", "--no-rollback", "--by", "argocd", "--id", "job"},
	"rollback":  {"rollback", "line", "--if-needed", "--by", "argocd", "--id", "job"},
	"wait":      {"wait", "line"},
	"proposals": {"proposals", "line", "--renew", "line-1"},
	"snapshots": {"snapshots", "line", "--restore", "line-1-20260212-102000"},
}

// A Job's pod may start before it can reach the API server. The command must retry.
func TestRetryUntilAPIServerAnswers(t *testing.T) {
	t.Parallel()
	for name, args := range verbsOfJobs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if asked.Add(1) <= 2 {
					c, _, err := w.(http.Hijacker).Hijack()
					assert.NoError(t, err)
					assert.NoError(t, c.Close())
					return
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusForbidden)
				_, _ = w.Write([]byte(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "message": "no", "code": 403}`))
			}))
			t.Cleanup(server.Close)
			var said strings.Builder
			code := run(t.Context(), append([]string{"stoker", "--kubeconfig", kubeconfigOf(t, server.URL)}, args...), &said, &said)
			assert.Equal(t, exit.Forbidden, code, "the third answer must decide: %s", &said)
			assert.Equal(t, int64(3), asked.Load())
		})
	}
}

// An interrupted command must exit with exit.Retry: its pod was evicted or deleted, and the Job creates another one.
func TestInterruptedCommandExitCode(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close()) // nothing listens on this address
	config := kubeconfigOf(t, "http://"+l.Addr().String())
	for name, args := range verbsOfJobs {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			var said strings.Builder
			code := run(ctx, append([]string{"stoker", "--kubeconfig", config}, args...), &said, &said)
			assert.Equal(t, exit.Retry, code, "%s", &said)
			assert.NotContains(t, said.String(), "nothing was rolled back: ")
		})
	}
}

// Only a command that writes may warn that its request may have come through.
func TestUnansweredRequestWarning(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	t.Cleanup(server.Close)
	for line, want := range map[string]bool{"get": false, "get line": false, "status line": false, "pause line": true} {
		t.Run(line, func(t *testing.T) {
			var said strings.Builder
			c := newCLI(&said, &said)
			c.interactive = true // disables the retries, which take half a minute
			assert.Equal(t, exit.Retry, c.run(t.Context(), "stoker", append([]string{"--kubeconfig", kubeconfigOf(t, server.URL)}, strings.Fields(line)...)))
			assert.Contains(t, said.String(), "the API server does not answer")
			assert.Equal(t, want, strings.Contains(said.String(), "may have accepted the request"))
		})
	}
}

// Only errors that another attempt may fix exit with exit.Retry, so that the Job creates another pod.
func TestExitCodeOfErrors(t *testing.T) {
	t.Parallel()
	kind := schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "gatewaysyncs"}
	for name, c := range map[string]struct {
		err  error
		code int
	}{
		"conflict":          {apierrors.NewConflict(kind, "line", errors.New("it was changed")), exit.Retry},
		"too many requests": {apierrors.NewTooManyRequests("later", 1), exit.Retry},
		"forbidden":         {apierrors.NewForbidden(kind, "line", errors.New("no")), exit.Forbidden},
		"not found":         {apierrors.NewNotFound(kind, "line"), exit.Failed},
		"invalid ref":       {request.Request{Ref: "a b"}.Check(), exit.Usage},
		"timeout":           {context.DeadlineExceeded, exit.Timeout},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, c.code, exitCodeOf(t.Context(), fmt.Errorf("line: %w", c.err)))
		})
	}
}

// The limit for an empty fleet starts again whenever the fleet becomes empty, because gateways may all restart at once.
func TestTimeoutEmptyRestarts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &waiter{target: target{name: "line", kind: kube.GatewaySync}}
		none := request.Verdict{Phase: request.Progressing, Reason: v1alpha1.ReasonNoGateways}
		some := request.Verdict{Phase: request.Progressing, Reason: v1alpha1.ReasonProgressing}
		// sequence: each look is half a minute after the one before
		for i, look := range []struct {
			v     request.Verdict
			ended bool
		}{{none, false}, {some, false}, {none, false}, {none, false}, {none, true}} {
			ended, err := w.finished(look.v, &waitFlags{emptyTimeout: time.Minute})
			assert.Equal(t, look.ended, ended, i)
			if look.ended {
				assert.ErrorContains(t, err, "no gateway after 1m0s")
			}
			time.Sleep(30 * time.Second)
		}
	})
}

// promoted returns the name of a Kargo promotion created at a time. The first ten digits of its ULID encode the milliseconds.
func promoted(at time.Time) string {
	name := []byte("test.0000000000zzzzzzzzzzzzzzzz.abcdef0")
	for i, ms := len("test.")+9, at.UnixMilli(); i >= len("test."); i, ms = i-1, ms>>5 {
		name[i] = "0123456789abcdefghjkmnpqrstvwxyz"[ms&31]
	}
	return string(name)
}

// The command must use the clock of the API server. By the late clock of this node, every promotion would be from the future.
func TestPromotionOrderUsesAPIServerClock(t *testing.T) {
	t.Parallel()
	const late = 10 * time.Minute // delay of this node's clock
	now := time.Now().Add(late)
	gs := &v1alpha1.GatewaySync{
		TypeMeta: metav1.TypeMeta{APIVersion: "stoker.io/v1alpha1", Kind: v1alpha1.KindGatewaySync},
		ObjectMeta: metav1.ObjectMeta{Name: "line", Namespace: "plant", UID: "1", Annotations: map[string]string{
			v1alpha1.AnnotationRequestedIDs: `{"kargo":"` + promoted(now.Add(-time.Second)) + `"}`,
		}},
		Spec: v1alpha1.GatewaySyncSpec{Git: v1alpha1.GitSpec{Ref: "main"}},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Date", time.Now().Add(late).UTC().Format(http.TimeFormat))
		assert.NoError(t, json.NewEncoder(w).Encode(gs))
	}))
	t.Cleanup(server.Close)
	config := kubeconfigOf(t, server.URL)
	require.Eventually(t, func() bool { // an answer that takes seconds is not a source for the time
		var said strings.Builder
		code := run(t.Context(), []string{"stoker", "--kubeconfig", config, "set-ref", "line", "v1", "--by", "kargo", "--id", promoted(now.Add(-time.Minute))}, &said, &said)
		return code == exit.Superseded && strings.Contains(said.String(), "is older than")
	}, time.Minute, 10*time.Millisecond)
}

// behindAProxy marks the child process, which starts with a proxy in its environment, because net/http reads it only once.
const behindAProxy = "STOKER_TEST_BEHIND_A_PROXY"

// The proxy of a hook Job is for git, not for the API server.
func TestHookJobBypassesProxy(t *testing.T) {
	t.Parallel()
	if os.Getenv(behindAProxy) == "" {
		c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		c.Env = append(os.Environ(), behindAProxy+"=1", "HTTPS_PROXY=http://proxy.invalid:3128", "https_proxy=", "NO_PROXY=", "no_proxy=")
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s", out)
		assert.Contains(t, string(out), "--- PASS: "+t.Name())
		return
	}
	asks := func(env map[string]string) []string {
		t.Helper()
		var mu sync.Mutex
		var dialled []string
		var said strings.Builder
		c := newCLI(&said, &said)
		c.interactive = true // disables the retries, which take half a minute
		c.env = func(name string) string { return env[name] }
		c.flags.WrapConfigFn = func(config *rest.Config) *rest.Config {
			config.Dial = func(_ context.Context, _, address string) (net.Conn, error) {
				mu.Lock()
				defer mu.Unlock()
				dialled = append(dialled, address)
				return nil, errors.New("connection refused")
			}
			return config
		}
		assert.Equal(t, exit.Retry, c.run(t.Context(), "stoker", []string{"--kubeconfig", kubeconfigOf(t, "https://10.96.0.1:443"), "get", "line"}), &said)
		return dialled
	}
	pod := map[string]string{"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
	assert.Equal(t, []string{"10.96.0.1:443"}, asks(pod))
	assert.Equal(t, []string{"proxy.invalid:3128"}, asks(nil), "outside a pod, the proxies of the environment must apply")
}

// A command that shows something tries once if the API server is away, also without a terminal.
func TestShowingCommandsAnswerAtOnce(t *testing.T) {
	t.Parallel()
	config := kubeconfigOf(t, "http://server.invalid")
	for _, line := range []string{"get", "get line", "status line", "history line", "history line --audit", "proposals line", "snapshots line", "diff line", "ui line", "config status", "config status line"} {
		for _, program := range []string{"stoker", "kubectl stoker"} {
			t.Run(program+" "+line, func(t *testing.T) {
				var dialed atomic.Int64
				var said strings.Builder
				c := newCLI(&said, &said)
				c.flags.WrapConfigFn = func(config *rest.Config) *rest.Config {
					config.Dial = func(context.Context, string, string) (net.Conn, error) {
						dialed.Add(1)
						return nil, syscall.ECONNREFUSED
					}
					return config
				}
				code := c.run(t.Context(), program, append([]string{"--kubeconfig", config}, strings.Fields(line)...))
				assert.Equal(t, exit.Retry, code)
				assert.Contains(t, said.String(), "the API server does not answer")
				assert.Equal(t, int64(1), dialed.Load())
			})
		}
	}
	for _, line := range []string{"get", "status line", "history line", "diff line", "config status"} {
		t.Run("connection closed/"+line, func(t *testing.T) {
			var requests atomic.Int64
			closes := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				requests.Add(1)
				panic(http.ErrAbortHandler)
			}))
			defer closes.Close()
			var said strings.Builder
			code := newCLI(&said, &said).run(t.Context(), "stoker", append([]string{"--kubeconfig", kubeconfigOf(t, closes.URL)}, strings.Fields(line)...))
			assert.Equal(t, exit.Retry, code)
			assert.Contains(t, said.String(), "the API server does not answer")
			assert.Equal(t, int64(1), requests.Load())
		})
	}
}

// If no kubeconfig names a cluster, the error names the files, and nothing is dialed.
func TestNoCluster(t *testing.T) {
	dir := t.TempDir()
	missing, other, empty := filepath.Join(dir, "missing"), filepath.Join(dir, "other"), filepath.Join(dir, "empty")
	require.NoError(t, os.WriteFile(empty, []byte(`{"apiVersion": "v1", "kind": "Config"}`), 0o600))
	for name, c := range map[string]struct{ env, want string }{
		"one missing file":           {missing, "KUBECONFIG names " + missing + ", which does not exist: correct it, or set --kubeconfig"},
		"two missing files":          {missing + ":" + other, "KUBECONFIG names " + missing + " and " + other + ", which does not exist"},
		"a missing and an empty one": {missing + ":" + empty, "names no cluster"},
	} {
		for _, line := range []string{"ui", "get", "status line", "set-ref line v2", "check", "config status"} {
			t.Run(name+"/"+line, func(t *testing.T) {
				t.Setenv("KUBECONFIG", c.env)
				t.Setenv("KUBERNETES_SERVICE_HOST", "")
				var said strings.Builder
				code := run(t.Context(), append([]string{"stoker"}, strings.Fields(line)...), &said, &said)
				assert.Equal(t, exit.Failed, code)
				assert.Contains(t, said.String(), c.want)
			})
		}
	}
}

// The pods of a large fleet come in pages.
func TestGatewaysOfAllPages(t *testing.T) {
	gs := &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Name: "line"}}
	gs.Status.DiscoveredGateways = []v1alpha1.DiscoveredGateway{{Name: "a", PodName: "a-0"}, {Name: "b", PodName: "b-0"}}
	core := clientset.New()
	labels := map[string]string{v1alpha1.LabelCRName: "line"}
	pages := []string{"a-0", "b-0"}
	core.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		page := &corev1.PodList{Items: []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: pages[0], Labels: labels}}}}
		if pages = pages[1:]; len(pages) > 0 {
			page.Continue = "more"
		}
		return true, page, nil
	})
	in := &preflight.Input{GatewaySync: gs}
	addGateways(t.Context(), target{Clients: kube.Clients{Core: core}}, in)
	assert.Equal(t, []preflight.Gateway{{Name: "a", Pod: "a-0", Labels: labels}, {Name: "b", Pod: "b-0", Labels: labels}}, in.Gateways)
}
