package sync

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/unloaded"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
)

func TestChangedAncestor(t *testing.T) {
	parents := map[string]string{"c": "b", "b": "a", "x": "y", "y": "x", "lost": "nowhere"}
	for _, c := range []struct {
		open, touched, from string
		counts              bool
	}{
		{"c", "a", "a", true}, {"c", "c", "c", true}, {"a", "c", "", false}, {"x", "y", "y", true}, {"x", "a", "", false},
		{"lost", "a", "", false}, {"lost", "nowhere", "nowhere", true}, {"", "a", "", false},
	} {
		t.Run(c.touched+" changed, "+c.open+" open", func(t *testing.T) {
			from, counts := changedAncestor(c.open, []string{c.touched}, parents)
			assert.Equal(t, c.counts, counts, c)
			assert.Equal(t, c.from, from, c)
		})
	}
}

func TestOutcomeMessageIsBounded(t *testing.T) {
	var r Report
	r.setOutcome(errors.New("first " + strings.Repeat("x", 1<<20)))
	assert.Len(t, r.Message, maxMessage)
	assert.True(t, strings.HasPrefix(r.Message, "first "))
}

// slow is a gateway that takes nine seconds to answer about one project.
type slow struct{ Gateway }

func (slow) Projects(context.Context) ([]ignition.Project, error) { return nil, nil }

func (slow) Project(ctx context.Context, _ string) (ignition.Project, error) {
	if !backoff.Wait(ctx, 9*time.Second) {
		return ignition.Project{}, context.Cause(ctx)
	}
	return ignition.Project{}, ignition.ErrNotFound
}

func TestVerificationIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Config{Now: time.Now, Progress: func(string, int, int) {}}
		l := loader{in: &scope{Config: &c, gateway: &gateway{Gateway: slow{}}, report: &Report{Steps: map[string]time.Duration{}}},
			unloaded: unloaded.Set{Projects: make([]string, 1000)}}
		err := l.verify(t.Context())
		assert.True(t, failure.Is(err, v1alpha1.ReasonGatewayUnreachable), "%v", err)
		assert.LessOrEqual(t, l.in.report.Steps["verify"], verifyTime)
	})
}
