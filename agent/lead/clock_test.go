package lead

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/metrics"
)

// The lead checks deadlines against times that the previous lead wrote, whose node may have another clock.
func TestDeadlineIgnoresLeadClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaper(t, 2)
		p.unreachable(1)
		began := time.Now()
		// sequence: each lead continues from the status of the one before
		for i, wrong := range []time.Duration{-20 * time.Minute, 0, time.Hour, -time.Hour} {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() {
				clock := func() time.Time { return time.Now().Add(wrong) }
				term := newTerm(p, p.poll, unmeasured{}, slog.New(slog.DiscardHandler), clock)
				term.stamp = time.Now
				done <- term.run(ctx)
			}()
			time.Sleep(time.Minute)
			gs, _ := p.sync()
			assert.Equal(t, "True/GatewayUnreachable", condition(&gs.Status, v1alpha1.ConditionReconciling), "lead %d", i)
			if wrong == -time.Hour {
				time.Sleep(v1alpha1.DefaultProgressDeadline - time.Since(began) - time.Second)
				gs, _ = p.sync()
				assert.Equal(t, "True/GatewayUnreachable", condition(&gs.Status, v1alpha1.ConditionReconciling))
				time.Sleep(5 * time.Second)
				gs, _ = p.sync()
				assert.Equal(t, "True/ProgressDeadlineExceeded", condition(&gs.Status, v1alpha1.ConditionStalled))
			}
			cancel()
			assert.NoError(t, <-done)
		}
	})
}

// unmeasured has no metrics.
type unmeasured struct{}

func (unmeasured) Iterated(string, string, time.Duration) {}
func (unmeasured) Resolved(string, time.Duration)         {}
func (unmeasured) Set(metrics.FleetState)                 {}
func (unmeasured) Converged(time.Duration)                {}
func (unmeasured) Elected()                               {}
func (unmeasured) Clear()                                 {}
func (unmeasured) RolledBack(string)                      {}
