package sync

import (
	"context"

	"stoker.io/stoker/agent/disk"
)

// aheadComparison compares the owned files with the manifest while a sync waits for the git server.
type aheadComparison struct {
	dir       *disk.Dir
	done      chan struct{}
	unchanged bool // set before done is closed
}

// wait waits until the comparison has ended.
func (a *aheadComparison) wait() {
	if a != nil {
		<-a.done
	}
}

// CompareAhead starts to compare the owned files with the manifest. The next sync finishes it before it changes a file.
func (e *Engine) CompareAhead(ctx context.Context) {
	e.ahead.wait()
	if e.ahead = nil; e.dir == nil {
		return
	}
	a := &aheadComparison{dir: e.dir, done: make(chan struct{})}
	e.ahead = a
	go func() {
		defer close(a.done)
		a.unchanged = a.dir.Unchanged(ctx)
	}()
}

// Unchanged waits for the comparison of CompareAhead. ok reports that no owned file had changed, so that the files are as the
// syncs since then wrote them. If not ok, Drift has to compare them.
func (e *Engine) Unchanged() (d disk.Drift, ok bool) {
	a := e.ahead
	e.ahead = nil
	if a.wait(); a == nil || a.dir != e.dir || !a.unchanged {
		return disk.Drift{}, false
	}
	return disk.Drift{Checked: e.dir.Manifest().Header().Files}, true
}
