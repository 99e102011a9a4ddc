package kube

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"stoker.io/stoker/internal/pace"
)

// Pauses between two tries to reach the API server. Those of client-go grow to a minute, and a gateway would hear of a new
// commit a minute after an API server is back that was away for ten seconds.
const (
	firstPause = time.Second
	mostPause  = 8 * time.Second
)

// patiently does something again until the API server says what it would say again, or ctx ends. One whose etcd is away, and a
// load balancer before it, are away although they answer. The outcome of each try is told.
// Pauses are spread over twice their length, so that not all agents come back at once.
func patiently[T any](ctx context.Context, told func(error), do func() (T, error)) (T, error) {
	for pause := firstPause; ; pause = min(2*pause, mostPause) {
		result, err := do()
		told(err)
		if err == nil || answered(err) && !Passing(err) || ctx.Err() != nil {
			return result, err
		}
		if !pace.Wait(ctx, wait.Jitter(pause, 1)) {
			return result, err
		}
	}
}

// answered tells an error of the API server's own from one of the way there.
func answered(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status)
}

// Passing reports whether the error of a request may be gone by itself: the API server is away, or busy. An object that
// cannot be read stays so.
func Passing(err error) bool {
	if !answered(err) {
		_, undecodable := errors.AsType[*UndecodableError](err)
		return !undecodable
	}
	return apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsInternalError(err) || apierrors.IsTimeout(err)
}
