package disk

import "context"

// Comparison is a comparison of the owned files with the manifest that runs while a sync waits for the git server. A nil Comparison has ended
// without a result.
type Comparison struct {
	dir       *Dir
	done      chan struct{}
	unchanged bool // set before done is closed
}

// StartCompare starts to compare the owned files with the manifest. The caller calls Wait before it changes a file.
func (d *Dir) StartCompare(ctx context.Context) *Comparison {
	a := &Comparison{dir: d, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.unchanged = d.Unchanged(ctx)
	}()
	return a
}

// Wait waits until the comparison has ended.
func (a *Comparison) Wait() {
	if a != nil {
		<-a.done
	}
}

// Unchanged waits for the comparison. ok reports that no owned file of d had changed, so that the files are as the syncs since then wrote
// them. If not ok, Drift has to compare them.
func (a *Comparison) Unchanged(d *Dir) (result Drift, ok bool) {
	if a.Wait(); a == nil || a.dir != d || !a.unchanged {
		return Drift{}, false
	}
	return Drift{Checked: d.Manifest().Header().Files}, true
}
