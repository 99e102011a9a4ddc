//go:build linux

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/test/e2e/argocd"
)

// argoCD is the installation that all scenarios share. It starts while other scenarios already run.
type argoCD struct {
	*argocd.ArgoCD
	err  error
	done chan struct{} // closed when it has started or failed to start

	first sync.WaitGroup    // deployments that do not wait for others
	begun map[string]func() // by the name of the test, for the deployments in first
}

// goesFirst marks the deployment of a test as one that does not wait for others. It must be called before
// the tests run in parallel.
func (a *argoCD) goesFirst(t *testing.T) {
	a.first.Add(1)
	done := sync.OnceFunc(a.first.Done)
	a.begun[t.Name()] = done
	t.Cleanup(done)
}

// markStarted records that the first sync of the test's deployment is done. From now on the test mostly
// waits.
func (a *argoCD) markStarted(t *testing.T) {
	if done, first := a.begun[t.Name()]; first {
		done()
	}
}

// waitForTurn waits until the deployments marked by goesFirst have started, unless the test's own is one of them.
// Pods that all start at once slow each other down.
func (a *argoCD) waitForTurn(ctx context.Context, t *testing.T) {
	t.Helper()
	if _, first := a.begun[t.Name()]; first {
		return
	}
	all := make(chan struct{})
	go func() {
		a.first.Wait()
		close(all)
	}()
	select {
	case <-all:
	case <-ctx.Done():
		t.Fatalf("other deployments did not start: %v", context.Cause(ctx))
	}
}

// argoCDMajor returns the major version of Argo CD to run: 2 or 3 from the environment variable
// STOKER_ARGOCD, 3 by default.
func argoCDMajor() string { return cmp.Or(os.Getenv("STOKER_ARGOCD"), "3") }

// startArgoCD starts Argo CD in the background. If it is not built yet, the build keeps both cores busy
// for minutes and runs first.
func (w *world) startArgoCD(t *testing.T) {
	w.say("Argo CD")
	programs, err := w.cache.ArgoCD(w.ctx, argoCDMajor())
	require.NoError(t, err)
	kustomize, err := w.cache.Kustomize(w.ctx)
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "argocd-") // short enough for the name of a socket
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(w.ctx)
	w.argo = &argoCD{done: make(chan struct{}), begun: map[string]func(){}}
	go func() {
		defer close(w.argo.done)
		w.argo.ArgoCD, w.argo.err = w.runArgoCD(ctx, programs, kustomize, dir)
	}()
	t.Cleanup(func() {
		cancel()
		<-w.argo.done
		if w.argo.ArgoCD != nil {
			if t.Failed() || os.Getenv(envE2E) == "logs" {
				for name, said := range w.argo.Logs() {
					t.Logf("%s:\n%s", name, said)
				}
				w.dump(t, argocd.Namespace)
			}
			assert.NoError(t, w.argo.Close())
		}
		require.NoError(t, os.RemoveAll(dir))
	})
}

func (w *world) runArgoCD(ctx context.Context, programs, kustomize, dir string) (*argocd.ArgoCD, error) {
	if err := w.Install(ctx, filepath.Join(programs, "crds")); err != nil {
		return nil, err
	}
	server, err := url.Parse(w.git.URL(""))
	if err != nil {
		return nil, err
	}
	var repoServer []string
	if argoCDMajor() != "2" {
		repoServer = []string{"--client-ca-path="} // the default path is refused without TLS, even if the file does not exist
	}
	a, err := argocd.Start(ctx, argocd.Options{
		Programs: programs, RepoServer: repoServer, Tools: []string{filepath.Dir(w.kubectlPath), filepath.Dir(kustomize), filepath.Dir(w.helmPath)}, Kubeconfig: w.Kubeconfig(), Dir: dir, Progress: os.Stderr,
		Authorities: map[string][]byte{server.Hostname(): w.git.CA()},
	})
	if err != nil {
		return nil, err
	}
	// The token that the notifications send, as described in docs/how-to/webhooks.md.
	if err := a.Secret(ctx, argocd.NotificationsSecret, map[string]string{"stoker-token": w.webhookToken}); err != nil {
		return a, err
	}
	// Health and actions of a GatewaySync, and the notifications, as described in docs/how-to/argocd.md.
	for _, name := range []string{argocd.ConfigMap, argocd.NotificationsConfigMap} {
		if err := w.patchArgoCD(ctx, name); err != nil {
			return a, err
		}
	}
	if argoCDMajor() != "2" {
		// AppProjects that do not name an account keep the rights of Argo CD.
		patch := []byte(`{"data":{"application.sync.impersonation.enabled":"true","application.sync.impersonation.enforced":"false"}}`)
		_, err := w.client.CoreV1().ConfigMaps(argocd.Namespace).Patch(ctx, argocd.ConfigMap, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			return a, err
		}
	}
	w.say("Argo CD has started")
	return a, a.Repository(ctx, "git", w.git.URL(""), gitUser, w.password)
}

// patchArgoCD applies the chart's patch to a ConfigMap of Argo CD.
func (w *world) patchArgoCD(ctx context.Context, name string) error {
	content, err := os.ReadFile(filepath.Join(w.module, "charts", "stoker", "files", "argocd", name+".yaml"))
	if err != nil {
		return err
	}
	// Argo CD does not run in a pod here, so it cannot resolve the names of Services.
	receiver, err := w.receiverAddress(ctx)
	if err != nil {
		return err
	}
	patch, err := yaml.YAMLToJSON(bytes.ReplaceAll(content, []byte("http://stoker-receiver.stoker-system.svc:9444"), []byte(receiver)))
	if err != nil {
		return err
	}
	_, err = w.client.CoreV1().ConfigMaps(argocd.Namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// argocd waits until Argo CD has started.
func (w *world) argocd(t *testing.T) *argoCD {
	t.Helper()
	select {
	case <-w.argo.done:
	case <-time.After(liveness):
		t.Fatalf("Argo CD has not started within %s", liveness)
	}
	if errors.Is(w.argo.err, argocd.ErrNoRedis) {
		t.Skip(w.argo.err)
	}
	require.NoError(t, w.argo.err)
	return w.argo
}

// states holds every observed state of an object in order.
type states[T any] struct {
	mu   sync.Mutex
	seen []*T
}

func (s *states[T]) all() []*T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// distinctStates lists the states of an Application without repetitions.
func distinctStates(all []*argocd.Application) string {
	var b strings.Builder
	last := ""
	for _, a := range all {
		line := summary(a)
		if line != last {
			b.WriteString("\n  " + line)
		}
		last = line
	}
	return b.String()
}

func summary(a *argocd.Application) string {
	line := a.Status.Sync.Status + " " + a.Status.Health.Status
	if o := a.Status.OperationState; o != nil {
		line += "; " + o.Phase + " of " + short7(o.SyncResult.Revision) + ": " + o.Message
		for _, r := range o.SyncResult.Resources {
			if r.HookPhase != "" && r.HookPhase != "Succeeded" {
				line += "; " + r.Kind + "/" + r.Name + " " + r.HookPhase + " " + r.Message
			}
		}
	}
	for _, c := range a.Status.Conditions {
		line += "; " + c.Type + ": " + c.Message
	}
	return line
}

func short7(commit string) string { return commit[:min(len(commit), 7)] }

// receiver returns an address of the receiver that this machine can reach.
func (w *world) receiver(t *testing.T) string {
	t.Helper()
	address, err := w.receiverAddress(w.ctx)
	require.NoError(t, err)
	return address
}

// receiverAddress waits for the Service, because the chart may still be installing.
func (w *world) receiverAddress(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, liveness)
	defer cancel()
	var service *corev1.Service
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (_ bool, err error) {
		service, err = w.client.CoreV1().Services(release).Get(ctx, "stoker-receiver", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return "", err
	}
	return "http://" + net.JoinHostPort(service.Spec.ClusterIP, strconv.Itoa(int(service.Spec.Ports[0].Port))), nil
}
