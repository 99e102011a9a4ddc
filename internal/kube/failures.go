package kube

import (
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// sayAgain is how often a failure of the same words is logged, and maxSaid how many of them are remembered.
const sayAgain, maxSaid = 10 * time.Minute, 64

// LogFailures returns what OnWatchError and ListWatch tell of tries that failed: it logs those of the same words once in a
// while. That a watch is listed anew is no failure.
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
		if last, ok := said[words]; ok && now.Sub(last) < sayAgain {
			return
		}
		if len(said) >= maxSaid {
			clear(said)
		}
		said[words] = now
		log.Warn(what, "error", err)
	}
}
