package kube

import (
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// logInterval is how often a failure with the same text is logged. maxFailures is how many texts are remembered.
const logInterval, maxFailures = 10 * time.Minute, 64

// LogFailures returns a callback for OnWatchError and ListWatch. It logs a failure with the same text at most once per
// logInterval. It ignores an expired watch, after which the informer lists again.
func LogFailures(log *slog.Logger, what string) func(error) {
	var mu sync.Mutex
	logged := map[string]time.Time{}
	return func(err error) {
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		text, now := err.Error(), time.Now()
		if last, ok := logged[text]; ok && now.Sub(last) < logInterval {
			return
		}
		if len(logged) >= maxFailures {
			clear(logged)
		}
		logged[text] = now
		log.Warn(what, "error", err)
	}
}
