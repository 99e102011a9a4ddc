package kube

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"stoker.io/stoker/internal/backoff"
)

// Pauses between two attempts to reach the API server. Those of client-go grow to a minute, so after an outage of ten seconds a
// gateway would learn of a new commit a minute late.
const (
	minPause = time.Second
	maxPause = 8 * time.Second
)

// retry repeats do until it succeeds, fails in a way that a retry does not change, or ctx is done. It also retries if the API server
// answers but its etcd does not, or if only a load balancer answers. It calls onResult with the error, or nil, of each attempt. Each
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

// Transient reports whether a retry may help, because the API server is unreachable or busy. An UndecodableError and a RedirectError are not transient.
func Transient(err error) bool {
	if !isAnswer(err) {
		_, undecodable := errors.AsType[*UndecodableError](err)
		_, redirect := errors.AsType[*RedirectError](err)
		return !undecodable && !redirect
	}
	return apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsInternalError(err) || apierrors.IsTimeout(err)
}
