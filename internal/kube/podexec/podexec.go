// Package podexec runs a command in a container of a pod, through the API server. It is a package of its own, so that only programs that use
// it contain the protocols of exec.
package podexec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"

	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/kube"
)

// Result is what a command wrote, and its exit code.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// Bounds in bytes.
const (
	maxStderr  = 4 << 10
	maxRefusal = 64 << 10
)

// Run runs a command in a container, and returns when the command has ended. If it writes more than limit bytes to standard output, the error
// wraps bound.ErrTooLarge. A failed command is not an error: Result has its exit code. The user of the clients needs the right to create
// pods/exec. Canceling ctx ends the connection, and not the command.
func Run(ctx context.Context, clients kube.Clients, pod *corev1.Pod, container string, command []string, limit int) (Result, error) {
	ctx, cancel := context.WithCancelCause(klog.NewContext(ctx, logr.Discard())) // client-go would log what Run returns
	defer cancel(nil)
	stdout, stderr := &head{Head: bound.NewHead(limit), left: limit, full: cancel}, bound.NewHead(maxStderr)
	err := stream(ctx, clients, pod, &corev1.PodExecOptions{Container: container, Command: command, Stdout: true, Stderr: true},
		remotecommand.StreamOptions{Stdout: stdout, Stderr: stderr})
	if ctx.Err() != nil { // the buffers may still be in use
		return Result{}, context.Cause(ctx)
	}
	result := Result{Stdout: stdout.String(), Stderr: stderr.String()}
	if ended, ok := errors.AsType[exec.CodeExitError](err); ok {
		result.Code, err = ended.Code, nil
	}
	return result, err
}

// stream runs a command over a websocket or, like kubectl, over SPDY if a proxy, the API server or the user's rights do not allow that.
func stream(ctx context.Context, clients kube.Clients, pod *corev1.Pod, what *corev1.PodExecOptions, streams remotecommand.StreamOptions) error {
	request := clients.Core.CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("exec").
		VersionedParams(what, scheme.ParameterCodec)
	websocket, err := remotecommand.NewWebSocketExecutor(clients.Config, http.MethodGet, request.URL().String())
	if err != nil {
		return err
	}
	err = websocket.StreamWithContext(ctx, streams)
	if err == nil || !httpstream.IsUpgradeFailure(err) && !httpstream.IsHTTPSProxyError(err) {
		return err
	}
	refusal := &refusal{}
	config := rest.CopyConfig(clients.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { refusal.next = next; return refusal })
	spdy, err := remotecommand.NewSPDYExecutor(config, http.MethodPost, request.URL())
	if err != nil {
		return err
	}
	err = spdy.StreamWithContext(ctx, streams)
	if refusal.err != nil {
		return refusal.err
	}
	return err
}

// refusal keeps why a connection was refused: the client of SPDY returns only a text.
type refusal struct {
	next http.RoundTripper
	err  error
}

func (r *refusal) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := r.next.RoundTrip(req)
	if err == nil && res.StatusCode != http.StatusSwitchingProtocols {
		raw, _ := bound.ReadAll(res.Body, maxRefusal)
		_ = res.Body.Close()
		answer := &apierrors.StatusError{}
		if err = answer; json.Unmarshal(raw, &answer.ErrStatus) != nil || answer.ErrStatus.Status != metav1.StatusFailure {
			err = fmt.Errorf("the API server answers with HTTP %d", res.StatusCode)
		}
	}
	if r.err = err; err != nil {
		return nil, err
	}
	return res, nil
}

// WrappedRoundTripper gives client-go access to the wrapped RoundTripper.
func (r *refusal) WrappedRoundTripper() http.RoundTripper { return r.next }

// head is a bound.Head that cancels when there is more than it keeps.
type head struct {
	*bound.Head
	left int
	full context.CancelCauseFunc
}

// Write implements io.Writer.
func (h *head) Write(p []byte) (int, error) {
	if h.left -= len(p); h.left < 0 {
		h.full(fmt.Errorf("%w: the output of the command", bound.ErrTooLarge))
	}
	return h.Head.Write(p)
}
