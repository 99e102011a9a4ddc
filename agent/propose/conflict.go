package propose

import (
	"fmt"
	"time"

	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// pushGrace is how much longer than the debounce a sync waits for a change to be pushed (conflictStrategy gitWins), or to be seen.
const pushGrace = time.Minute

// UnseenError holds a sync only because no Step has seen the changes that the sync would replace: Step may see them after a comparison.
type UnseenError struct{ error }

func (e UnseenError) Unwrap() error { return e.error }

// ConflictError returns the error that holds a sync of paths that both the gateway and git changed. The format says what to do.
func ConflictError(paths []string, format string, args ...any) error {
	return failure.New(v1alpha1.ReasonConflictDetected, "%s was changed on the gateway and in git (%d files): %s", paths[0], len(paths), fmt.Sprintf(format, args...))
}

// NewOrder forgets how long the sync to the last order has waited.
func (p *Proposer) NewOrder() { p.wait = decide.Wait{} }

// Replace returns nil if a sync may replace the changes at paths, and otherwise the error that holds the sync. described is what Describes
// reports of the paths.
func (p *Proposer) Replace(s *Settings, strategy v1alpha1.ConflictStrategy, paths []string, described bool) error {
	next, why, unseen := p.wait.Blocks(decide.Changes{Strategy: strategy, Proposal: p.Proposal(), Seen: described, Limit: s.Debounce + pushGrace, Now: p.Now()})
	p.wait = next
	if why == "" {
		return nil
	}
	err := ConflictError(paths, "%s", why)
	if unseen {
		p.schedule = p.schedule.Unwalked()
		return UnseenError{err}
	}
	return err
}
