package kube

import (
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// logInterval is how often a failure with the same text is logged. maxSaid is how many texts are remembered.
const logInterval, maxFailures = 10 * time.Minute, 64

// LogFailures returns a callback for OnWatchError and ListWatch. It logs a failure with the same text at most once per
// sayAgain. An expired watch, which the informer answers with a new list, is not a failure.
func LogFailures(log *slog.Logger, what string) func(error) {
	var mu sync.Mutex
	said := map[string]time.Time{}
	return func(err error) {
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		words, now := err.Error(), time.Now()
		if last, ok := said[words]; ok && now.Sub(last) < logInterval {
			return
		}
		if len(said) >= maxFailures {
			clear(said)
		}
		said[words] = now
		log.Warn(what, "error", err)
	}
}
