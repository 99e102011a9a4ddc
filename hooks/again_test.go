package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/verb"
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
}

// A Job's pod may start before it can reach the API server. The command must retry.
func TestAnAPIServerThatDoesNotAnswerYetIsAskedAgain(t *testing.T) {
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
	config := kubeconfigOf(t, server.URL)
	for name, args := range verbsOfJobs {
		asked.Store(0)
		var said strings.Builder
		code := run(t.Context(), append([]string{"stoker", "--kubeconfig", config}, args...), &said, &said)
		assert.Equal(t, exitForbidden, code, "%s: the third answer counts: %s", name, &said)
		assert.Equal(t, int64(3), asked.Load(), name)
	}
}

// An interrupted command must exit with exitAgain: its pod was evicted or deleted, and the Job creates another one.
func TestACommandThatIsInterruptedAsksForAnotherTry(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close()) // nothing listens on this address
	config := kubeconfigOf(t, "http://"+l.Addr().String())
	for name, args := range verbsOfJobs {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var said strings.Builder
		code := run(ctx, append([]string{"stoker", "--kubeconfig", config}, args...), &said, &said)
		assert.Equal(t, exitAgain, code, "%s: %s", name, &said)
		assert.NotContains(t, said.String(), "nothing was rolled back: ", name)
	}
}

// Only a command that writes may warn that its request may have come through.
func TestOnlyWhoAskedIsToldThatItMayHaveComeThrough(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	t.Cleanup(server.Close)
	for line, want := range map[string]bool{"get": false, "get line": false, "status line": false, "pause line": true} {
		var said strings.Builder
		c := newCLI(&said, &said)
		c.live = true // disables the retries, which take half a minute
		assert.Equal(t, exitAgain, c.run(t.Context(), "stoker", append([]string{"--kubeconfig", kubeconfigOf(t, server.URL)}, strings.Fields(line)...)), line)
		assert.Contains(t, said.String(), "the API server does not answer", line)
		assert.Equal(t, want, strings.Contains(said.String(), "may have accepted the request"), line)
	}
}

// Only errors that another attempt may fix exit with exitAgain, so that the Job creates another pod.
func TestOnlyWhatAnotherTryMayMendEndsWithAgain(t *testing.T) {
	t.Parallel()
	kind := schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "gatewaysyncs"}
	for name, c := range map[string]struct {
		err  error
		code int
	}{
		"others wrote it at each try": {apierrors.NewConflict(kind, "line", errors.New("it was changed")), exitAgain},
		"the API server is busy":      {apierrors.NewTooManyRequests("later", 1), exitAgain},
		"it is forbidden":             {apierrors.NewForbidden(kind, "line", errors.New("no")), exitForbidden},
		"it is not there":             {apierrors.NewNotFound(kind, "line"), exitFailed},
		"it is no ref":                {verb.Request{Ref: "a b"}.Check(), exitUsage},
		"it takes too long":           {context.DeadlineExceeded, exitTimeout},
	} {
		assert.Equal(t, c.code, codeOf(t.Context(), fmt.Errorf("line: %w", c.err)), name)
	}
}

// The limit for an empty fleet starts again whenever the fleet becomes empty, because gateways may all restart at once.
func TestAFleetIsEmptySinceItBecameSoLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &watcher{name: "line"}
		none := verb.Verdict{Phase: verb.Progressing, Reason: v1alpha1.ReasonNoGateways}
		some := verb.Verdict{Phase: verb.Progressing, Reason: v1alpha1.ReasonProgressing}
		for i, look := range []struct {
			v     verb.Verdict
			ended bool
		}{{none, false}, {some, false}, {none, false}, {none, false}, {none, true}} {
			ended, err := w.ended(look.v, &limits{empty: time.Minute})
			assert.Equal(t, look.ended, ended, i)
			if look.ended {
				assert.ErrorContains(t, err, "no gateway after 1m0s")
			}
			time.Sleep(30 * time.Second)
		}
	})
}
