package drive

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/metrics"
)

// wants is a Source that says what it is told.
type wants struct {
	wish  Wish
	looks int
}

func (w *wants) Look(context.Context, bool) Wish { w.looks++; return w.wish }

func (w *wants) Changed() <-chan struct{} { return nil }

// C3: whatever is due and may not be done, the loop does not turn for it.
func TestALoopThatMayNotTryDoesNotTurnInHaste(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	log := slog.New(slog.DiscardHandler)
	l := New(Config{Name: "follow", Gateway: "g", Log: log, Now: func() time.Time { return now },
		Metrics: metrics.NewAgent(prometheus.NewRegistry(), "v", "n", "s", "g"),
		Engine:  sync.New(sync.Config{DataDir: t.TempDir(), Log: log})}) // not seeded: no sync gets far
	src := &wants{wish: Wish{Order: &Order{Commit: plan.ID{1}, Ref: "main"}}}
	pause := l.Turn(t.Context(), src, false)
	assert.Equal(t, v1alpha1.ReasonWaitingForGateway, l.State().Reason)
	assert.Less(t, pause, 3*time.Second, "it is tried again")

	for name, wish := range map[string]Wish{
		"nothing is known":      {Problems: []Problem{{v1alpha1.ReasonWaitingForLead, "nobody leads"}}},
		"the gateway is left":   {Order: src.wish.Order, Leave: true},
		"no commit is known":    {Order: &Order{Ref: "main"}},
		"it is paused, is held": {Order: src.wish.Order, Leave: true, Problems: []Problem{{v1alpha1.ReasonPodRestartNeeded, "too new"}}},
	} {
		now = now.Add(time.Hour)
		src.wish = wish
		for range 3 {
			assert.GreaterOrEqual(t, l.Turn(t.Context(), src, false), time.Second, name)
			now = now.Add(time.Minute)
		}
	}
	src.wish = Wish{Due: now.Add(-time.Hour)}
	assert.GreaterOrEqual(t, l.Turn(t.Context(), src, false), minPause)
}
