package kube

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Pauses between two tries to reach the API server. Those of client-go grow to a minute, and a gateway would hear of a new
// commit a minute after an API server is back that was away for ten seconds.
const (
	firstPause = time.Second
	mostPause  = 8 * time.Second
)

// patiently does something again until the API server answers, whatever it says then, or ctx ends. The outcome of each try is
// told.
// Pauses are spread over twice their length, so that not all agents come back at once.
func patiently[T any](ctx context.Context, told func(error), do func() (T, error)) (T, error) {
	for pause := firstPause; ; pause = min(2*pause, mostPause) {
		result, err := do()
		told(err)
		if err == nil || answered(err) || ctx.Err() != nil {
			return result, err
		}
		timer := time.NewTimer(wait.Jitter(pause, 1))
		select {
		case <-ctx.Done():
			timer.Stop()
			return result, err
		case <-timer.C:
		}
	}
}

// answered tells an error of the API server's own from one of the way there.
func answered(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status)
}
