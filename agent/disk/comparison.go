package disk

import "context"

// Ahead is a comparison of the owned files with the manifest that runs while a sync waits for the git server. A nil Ahead has ended
// without a result.
type Ahead struct {
	dir       *Dir
	done      chan struct{}
	unchanged bool // set before done is closed
}

// CompareAhead starts to compare the owned files with the manifest. The caller calls Wait before it changes a file.
func (d *Dir) CompareAhead(ctx context.Context) *Ahead {
	a := &Ahead{dir: d, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.unchanged = d.Unchanged(ctx)
	}()
	return a
}

// Wait waits until the comparison has ended.
func (a *Ahead) Wait() {
	if a != nil {
		<-a.done
	}
}

// Unchanged waits for the comparison. ok reports that no owned file of d had changed, so that the files are as the syncs since then wrote
// them. If not ok, Drift has to compare them.
func (a *Ahead) Unchanged(d *Dir) (result Drift, ok bool) {
	if a.Wait(); a == nil || a.dir != d || !a.unchanged {
		return Drift{}, false
	}
	return Drift{Checked: d.Manifest().Header().Files}, true
}
