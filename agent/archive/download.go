package archive

import (
	"context"
	"errors"
	"os"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Download is an archive that is read from object storage beside the syncs, or was read and is not restored yet. It outlives a sync: a slow
// download delays no other commit, and a restore that waits for a Designer is tried many times. The zero value holds no archive.
type Download struct {
	id     string
	file   *os.File // nil without an archive
	cancel context.CancelFunc
	done   chan struct{} // closed when archive or err is set

	archive *Archive
	err     error
}

// ID returns the id of the snapshot, or "" without an archive.
func (d *Download) ID() string { return d.id }

// Close stops and drops the download.
func (d *Download) Close() error {
	f := d.file
	if f == nil {
		return nil
	}
	d.cancel()
	<-d.done
	*d = Download{}
	return f.Close()
}

// downloadWait is how long Get waits for a download.
const downloadWait = 5 * time.Second

// Get waits up to downloadWait for the archive of a snapshot in b; until it is read, the error has the reason Progressing. The first call for a
// snapshot drops any other download, and reads into the file that newFile returns.
func (d *Download) Get(ctx context.Context, b *Bucket, id string, newFile func() (*os.File, Limits, error)) (*Archive, error) {
	if d.id != id || d.file == nil {
		if err := d.start(b, id, newFile); err != nil {
			return nil, err
		}
	}
	wait, cancel := context.WithTimeout(ctx, downloadWait)
	defer cancel()
	select {
	case <-d.done:
	case <-wait.Done():
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		read := int64(0)
		if fi, err := d.file.Stat(); err == nil {
			read = fi.Size()
		}
		return nil, failure.New(v1alpha1.ReasonProgressing, "the snapshot is read from object storage, %.1f MiB so far; a new commit ends this", float64(read)/(1<<20))
	}
	if err := d.err; err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d.archive, nil
}

func (d *Download) start(b *Bucket, id string, newFile func() (*os.File, Limits, error)) error {
	if err := d.Close(); err != nil {
		return err
	}
	file, limits, err := newFile()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background()) // it outlives the sync
	*d = Download{id: id, file: file, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(d.done)
		d.archive, d.err = b.Download(ctx, id, file, limits)
	}()
	return nil
}
