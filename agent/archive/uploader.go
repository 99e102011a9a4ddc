package archive

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/internal/backoff"
)

// maxPause is the longest pause between two attempts to upload.
const maxPause = 10 * time.Minute

// Job is what an Uploader copies where.
type Job struct {
	Bucket
	DataDir string
	Disk    disk.Options
	// Blobs supplies the bytes of files that are damaged in a snapshot.
	Blobs plan.Objects
}

// Uploader copies the snapshots of a data directory to a bucket, in the background and beside syncs. It has no queue. Each pass compares
// the snapshots on the volume with the bucket and uploads those that the bucket does not have, newest first. So it goes on after a restart,
// and a snapshot that is removed from the volume while the bucket cannot be reached is not uploaded. No sync waits for it, and none fails
// because of it.
type Uploader struct {
	// Counted is called with the result of each upload, and with the error if the bucket cannot be listed. Pending is called with the
	// number of snapshots and backups that the bucket is known not to have; 0 without a job. They must not block.
	Counted func(err error)
	Pending func(n int)

	log  *slog.Logger
	wake chan struct{}
	done chan struct{} // receives when the list has changed

	mu      sync.Mutex
	job     *Job
	stop    context.CancelFunc // of the running pass
	end     context.CancelFunc // of the goroutine; nil before the first job
	ended   chan struct{}
	remote  []disk.Snapshot
	of      string // the prefix that remote is about; "" if it is not known
	problem string // the last error that was logged
}

// NewUploader returns an Uploader without a job.
func NewUploader(log *slog.Logger) *Uploader {
	return &Uploader{
		Counted: func(error) {}, Pending: func(int) {},
		log: log, wake: make(chan struct{}, 1), done: make(chan struct{}, 1), stop: func() {},
	}
}

// Follow sets the job; nil stops the running upload. A job for another bucket or data directory is started at once, or
// after the pass that is running.
func (u *Uploader) Follow(j *Job) {
	u.mu.Lock()
	defer u.mu.Unlock()
	was := u.job
	u.job = j
	switch {
	case j == nil:
		u.stop()
	case was != nil && was.Bucket == j.Bucket && was.DataDir == j.DataDir:
		return
	case u.end == nil:
		var ctx context.Context
		ctx, u.end = context.WithCancel(context.Background())
		u.ended = make(chan struct{})
		go u.run(ctx)
	}
	u.signal()
}

// Wake makes the Uploader look for new snapshots.
func (u *Uploader) Wake() { u.signal() }

func (u *Uploader) signal() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// Done receives when Remote may return something else.
func (u *Uploader) Done() <-chan struct{} { return u.done }

// Remote returns the snapshots in the bucket of a job, oldest first, and whether they are known.
func (u *Uploader) Remote(j *Job) ([]disk.Snapshot, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.remote, u.of == j.Prefix
}

// Close stops the running upload and waits for its end.
func (u *Uploader) Close() {
	u.mu.Lock()
	end, ended := u.end, u.ended
	u.job, u.end = nil, nil
	u.mu.Unlock()
	if end != nil {
		end()
		<-ended
	}
}

func (u *Uploader) run(ctx context.Context) {
	defer close(u.ended)
	failures := 0
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-u.wake:
		case <-again:
		}
		again = nil
		u.mu.Lock()
		j := u.job
		u.mu.Unlock()
		if j == nil {
			u.Pending(0)
			continue
		}
		if err := u.Pass(ctx, j); err == nil {
			failures = 0
		} else if ctx.Err() == nil {
			failures++
			again = time.After(backoff.Retry(failures, maxPause))
		}
	}
}

// Pass uploads what the bucket lacks, and removes what is beyond the retention. It is for a caller that does not Follow the job.
func (u *Uploader) Pass(ctx context.Context, j *Job) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	u.mu.Lock()
	u.stop = cancel
	u.mu.Unlock()
	err := u.pass(ctx, j)
	if ctx.Err() != nil { // canceled: by Follow(nil), Close or the caller
		return ctx.Err()
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != u.problem && !errors.Is(err, disk.ErrChanged) {
		u.log.Warn("snapshots not uploaded", "error", err)
	}
	u.problem = text
	return err
}

// lacking returns the ids of those of the newest Keep local snapshots that the bucket does not have, oldest first.
func (j *Job) lacking(local, remote []disk.Snapshot) (ids []string) {
	for _, s := range local[max(0, len(local)-j.Keep):] {
		if !slices.ContainsFunc(remote, func(r disk.Snapshot) bool { return r.ID == s.ID }) {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

func (u *Uploader) pass(ctx context.Context, j *Job) (err error) {
	o := j.Disk
	o.ReadOnly, o.AllowUnseeded, o.Log = true, true, nil
	d, err := disk.Open(j.DataDir, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	local, err := d.ListSnapshots()
	if err != nil {
		return err
	}
	u.mu.Lock()
	var known []disk.Snapshot
	if u.of == j.Prefix {
		known = u.remote
	}
	u.mu.Unlock()
	var remote []disk.Snapshot
	found, err := j.objects(ctx)
	if err == nil {
		remote, err = j.complete(ctx, found, known)
	}
	if err != nil {
		u.Pending(len(j.lacking(local, known)))
		u.Counted(err)
		return err
	}
	u.publish(j, remote)
	backups, err := missingBackups(d, j.Keep, found)
	if err != nil {
		return err
	}
	missing := j.lacking(local, remote)
	var failed []error
	for i, id := range slices.Backward(missing) {
		u.Pending(i + 1 + len(backups))
		s, err := u.upload(ctx, j, d, id)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, fs.ErrNotExist): // removed meanwhile
			continue
		case err != nil:
			u.Counted(err)
			failed = append(failed, err)
			continue
		}
		u.Counted(nil)
		u.log.Info("snapshot uploaded", "snapshot", id)
		remote = append(remote, s)
		slices.SortFunc(remote, func(a, b disk.Snapshot) int { return a.Time.Compare(b.Time) })
		u.publish(j, remote)
	}
	for i, id := range slices.Backward(backups) {
		u.Pending(i + 1 + len(failed))
		err := uploadBackup(ctx, j, d, id)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, fs.ErrNotExist): // removed meanwhile
			continue
		case err != nil:
			u.Counted(err)
			failed = append(failed, err)
			continue
		}
		u.Counted(nil)
		u.log.Info("backup uploaded", "backup", id)
		found[id] = append(found[id], backupSuffix)
		if i := slices.IndexFunc(remote, func(s disk.Snapshot) bool { return s.ID == id }); i >= 0 {
			remote = slices.Clone(remote)
			remote[i].Backup = true
			u.publish(j, remote)
		}
	}
	u.Pending(len(failed))
	kept := 0
	for _, suffixes := range found {
		if slices.Contains(suffixes, backupSuffix) {
			kept++
		}
	}
	if max(len(remote), kept) > j.Keep {
		if err := j.Prune(ctx); err != nil {
			return errors.Join(append(failed, err)...)
		}
		u.publish(j, remote[max(0, len(remote)-j.Keep):])
	}
	return errors.Join(failed...)
}

// missingBackups returns the backups that are not among the objects found, the oldest first.
func missingBackups(d *disk.Dir, keep int, found map[string][]string) ([]string, error) {
	local, err := d.Backups()
	if err != nil {
		return nil, err
	}
	ids := newest(slices.Collect(maps.Keys(local)))
	ids = slices.DeleteFunc(ids[:min(len(ids), keep)], func(id string) bool { return slices.Contains(found[id], backupSuffix) })
	slices.Reverse(ids)
	return ids, nil
}

func uploadBackup(ctx context.Context, j *Job, d *disk.Dir, id string) error {
	f, err := d.OpenBackup(id)
	if err != nil {
		return err
	}
	return errors.Join(j.UploadBackup(ctx, id, f), f.Close())
}

func (u *Uploader) upload(ctx context.Context, j *Job, d *disk.Dir, id string) (s disk.Snapshot, err error) {
	c, err := d.Contents(id, j.Blobs)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	return c.Snapshot, j.Upload(ctx, c)
}

// publish sets what Remote returns.
func (u *Uploader) publish(j *Job, list []disk.Snapshot) {
	u.mu.Lock()
	changed := u.of != j.Prefix || !slices.Equal(u.remote, list)
	u.remote, u.of = slices.Clone(list), j.Prefix
	u.mu.Unlock()
	if changed {
		select {
		case u.done <- struct{}{}:
		default:
		}
	}
}
