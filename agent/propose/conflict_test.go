package propose

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
)

// replacing returns a function that asks, some time after the first sync, whether the sync may replace changes. The record is that of
// another proposal, or of an earlier state of it.
func replacing(t *testing.T, strategy v1alpha1.ConflictStrategy, debounce time.Duration) func(rec record, after time.Duration, described bool) error {
	began := time.Now()
	now := began
	p, n := New(slog.New(slog.DiscardHandler), func() time.Time { return now }), &notes{content: map[string][]byte{}}
	return func(rec record, after time.Duration, described bool) error {
		require.NoError(t, rec.save(n))
		p.kept.loaded = false
		require.NotNil(t, p.Recall(n))
		now = began.Add(after)
		return p.Replace(&Settings{Debounce: debounce}, strategy, []string{"projects/line/project.json"}, described)
	}
}

var (
	mergedRecord = record{LastState: v1alpha1.ProposalMerged}
	pushedRecord = record{Branch: "gateway-changes/plants/g", Tip: plan.ID{1}, Digest: "x"}
)

// P8: the wait for a change begins with that change, and not with an earlier one that the sync was allowed to replace.
func TestWaitForUnseenChange(t *testing.T) {
	for strategy, rec := range map[v1alpha1.ConflictStrategy]record{v1alpha1.StrategyGitWins: pushedRecord, v1alpha1.StrategyGatewayWins: mergedRecord} {
		t.Run(string(strategy), func(t *testing.T) {
			const debounce, limit = time.Minute, 2 * time.Minute
			replace := replacing(t, strategy, debounce)
			require.NoError(t, replace(rec, 0, true))
			later := time.Hour // an open Designer has held the sync until then
			require.ErrorAs(t, replace(rec, later, false), &UnseenError{})
			require.NoError(t, replace(rec, later+limit, false))
			require.NoError(t, replace(rec, later+limit+time.Second, false), "one wait is enough")
		})
	}
}

// While a pull request is open, the sync waits for it, so the time of an earlier wait does not count for a change that is saved later.
func TestWaitForUnseenChangeAfterOpenPullRequest(t *testing.T) {
	const debounce, limit = time.Minute, 2 * time.Minute
	replace := replacing(t, v1alpha1.StrategyGatewayWins, debounce)
	require.Error(t, replace(mergedRecord, 0, false))
	err := replace(pushedRecord, limit/2, true)
	require.Error(t, err)
	assert.NotErrorAs(t, err, &UnseenError{}, "no comparison helps")
	require.Error(t, replace(mergedRecord, time.Hour, false), "the wait begins again")
	require.NoError(t, replace(mergedRecord, time.Hour+limit, false))
}
