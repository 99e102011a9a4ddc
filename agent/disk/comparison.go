package disk

import (
	"context"
	"errors"
	"runtime"

	"golang.org/x/sync/errgroup"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// Unchanged reports whether all owned files agree with the manifest by type, executable bit, size and mtime, and none has a later
// ctime than the manifest. If ctx is done, it returns false. Drift tells what changed. Unchanged reads no content and writes nothing,
// and may be called concurrently with the other methods.
func (d *Dir) Unchanged(ctx context.Context) bool {
	m := d.manifest()
	if m.Info == nil {
		return m.Header().Files == 0
	}
	written := m.Info.ModTime().UnixNano()
	batches := make(chan []plan.Owned)
	compared, ctx := errgroup.WithContext(ctx)
	compared.Go(func() error {
		defer close(batches)
		return sendBatches(ctx, m, batches)
	})
	for range runtime.GOMAXPROCS(0) {
		compared.Go(func() error {
			cur := safe.Cursor{Top: d.top}
			defer cur.Reset()
			for batch := range batches {
				for _, rec := range batch {
					fi, err := cur.Lstat(rec.Path)
					if err != nil {
						return err
					}
					if st := d.vol.Stat(fi); st.Kind != plan.File || st.Size != rec.Size || st.Mtime != rec.Mtime ||
						!st.NoModes && st.Exec != rec.Exec || safe.AttrsOf(fi).Ctime > written {
						return errDiffers
					}
				}
			}
			return nil
		})
	}
	return compared.Wait() == nil
}

var errDiffers = errors.New("a file has changed")

// sendBatches sends the records of a manifest in batches, each of neighboring paths.
func sendBatches(ctx context.Context, m *format.Manifest, batches chan<- []plan.Owned) error {
	const size = 256
	var batch []plan.Owned
	send := func() error {
		select {
		case batches <- batch:
			batch = nil
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for rec, err := range m.All("") {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		if batch = append(batch, rec); len(batch) == size {
			if err := send(); err != nil {
				return err
			}
		}
	}
	return send()
}

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

// Unchanged waits for the comparison. If ok, it has compared the files of d and found no change, and result says that nothing drifted. If
// not ok, Drift has to compare the files.
func (a *Comparison) Unchanged(d *Dir) (result Drift, ok bool) {
	if a.Wait(); a == nil || a.dir != d || !a.unchanged {
		return Drift{}, false
	}
	return Drift{Checked: d.Manifest().Header().Files}, true
}
