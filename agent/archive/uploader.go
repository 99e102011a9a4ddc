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

// Job says which snapshots an Uploader copies, and to which bucket.
type Job struct {
	Bucket
	DataDir string
	Disk    disk.Options
	// Blobs supplies the bytes of files that are damaged in a snapshot.
	Blobs plan.Objects
}

// Uploader copies the snapshots and backups of a data directory to a bucket, in the background and beside syncs. It has no queue. Each pass
// compares the volume with the bucket and uploads what the bucket does not have, newest first. So a restart loses nothing, and the Uploader
// does not upload a snapshot that is removed from the volume while the bucket cannot be reached. No sync waits for it or fails because of it.
type Uploader struct {
	// OnUpload is called with the result of each upload, and with the error if the bucket cannot be listed. OnPending is called with the
	// number of snapshots and backups that the bucket is known not to have; 0 without a job. They must not block.
	OnUpload  func(err error)
	OnPending func(n int)

	log  *slog.Logger
	wake chan struct{}
	done chan struct{} // receives when the list has changed

	mu           sync.Mutex
	job          *Job
	cancelPass   context.CancelFunc
	cancelRun    context.CancelFunc // nil before the first job
	ended        chan struct{}      // closed when run has returned
	remote       []disk.Snapshot
	remotePrefix string // of the bucket that remote lists; "" if none was listed
	problem      string // the last error that was logged
}

// NewUploader returns an Uploader without a job.
func NewUploader(log *slog.Logger) *Uploader {
	return &Uploader{
		OnUpload: func(error) {}, OnPending: func(int) {},
		log: log, wake: make(chan struct{}, 1), done: make(chan struct{}, 1), cancelPass: func() {},
	}
}

// Follow sets the job; nil stops the running upload. A job for another bucket or data directory starts at once, or after the running pass.
func (u *Uploader) Follow(j *Job) {
	u.mu.Lock()
	defer u.mu.Unlock()
	previous := u.job
	u.job = j
	switch {
	case j == nil:
		u.cancelPass()
	case previous != nil && previous.Bucket == j.Bucket && previous.DataDir == j.DataDir:
		return
	case u.cancelRun == nil:
		var ctx context.Context
		ctx, u.cancelRun = context.WithCancel(context.Background())
		u.ended = make(chan struct{})
		go u.run(ctx)
	}
	u.Wake()
}

// Wake makes the Uploader look for new snapshots.
func (u *Uploader) Wake() {
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
	if u.remotePrefix != j.Prefix {
		return nil, false
	}
	return u.remote, true
}

// Close stops the running upload and waits for its end.
func (u *Uploader) Close() {
	u.mu.Lock()
	cancel, ended := u.cancelRun, u.ended
	u.job, u.cancelRun = nil, nil
	u.mu.Unlock()
	if cancel != nil {
		cancel()
		<-ended
	}
}

// run makes a pass whenever Wake is called, and again after a failed one, until ctx is done.
func (u *Uploader) run(ctx context.Context) {
	defer close(u.ended)
	failures := 0
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-u.wake:
		case <-retry:
		}
		retry = nil
		u.mu.Lock()
		j := u.job
		u.mu.Unlock()
		if j == nil {
			u.OnPending(0)
			continue
		}
		if err := u.Pass(ctx, j); err == nil {
			failures = 0
		} else if ctx.Err() == nil {
			failures++
			retry = time.After(backoff.Retry(failures, maxPause))
		}
	}
}

// Pass uploads what the bucket lacks, and prunes the bucket. It is for a caller that does not Follow the job.
func (u *Uploader) Pass(ctx context.Context, j *Job) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	u.mu.Lock()
	u.cancelPass = cancel
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

// missing returns the ids of those of the newest Keep local snapshots that the bucket does not have, newest first.
func (j *Job) missing(local, remote []disk.Snapshot) (ids []string) {
	for _, s := range slices.Backward(local[max(0, len(local)-j.Keep):]) {
		if !slices.ContainsFunc(remote, func(r disk.Snapshot) bool { return r.ID == s.ID }) {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

// pass is one comparison of the volume with the bucket.
type pass struct {
	job     *Job
	dir     *disk.Dir
	objects map[string][]string // in the bucket: see Bucket.objects
	remote  []disk.Snapshot     // the complete snapshots in the bucket, oldest first
}

// upload is a snapshot or a backup that the bucket does not have.
type upload struct {
	kind, id string
	send     func(ctx context.Context, id string) error
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
	known, _ := u.Remote(j)
	p := &pass{job: j, dir: d}
	p.objects, err = j.objects(ctx)
	if err == nil {
		p.remote, err = j.complete(ctx, p.objects, known)
	}
	if err != nil {
		u.OnPending(len(j.missing(local, known)))
		u.OnUpload(err)
		return err
	}
	u.publish(j, p.remote)
	missing, err := p.missing(local)
	if err != nil {
		return err
	}
	var failed []error
	for i, m := range missing {
		u.OnPending(len(missing) - i + len(failed))
		err := m.send(ctx, m.id)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, fs.ErrNotExist): // removed from the volume meanwhile
			continue
		}
		u.OnUpload(err)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		u.log.Info(m.kind+" uploaded", m.kind, m.id)
		u.publish(j, p.remote)
	}
	u.OnPending(len(failed))
	backups := 0
	for _, suffixes := range p.objects {
		if slices.Contains(suffixes, backupSuffix) {
			backups++
		}
	}
	if max(len(p.remote), backups) > j.Keep {
		if err := j.Prune(ctx); err != nil {
			return errors.Join(append(failed, err)...)
		}
		u.publish(j, p.remote[max(0, len(p.remote)-j.Keep):])
	}
	return errors.Join(failed...)
}

// missing returns what to upload: snapshots first, and the newest of each kind first.
func (p *pass) missing(local []disk.Snapshot) ([]upload, error) {
	var list []upload
	for _, id := range p.job.missing(local, p.remote) {
		list = append(list, upload{"snapshot", id, p.sendSnapshot})
	}
	backups, err := p.dir.Backups()
	if err != nil {
		return nil, err
	}
	ids := newestFirst(maps.Keys(backups))
	for _, id := range ids[:min(len(ids), p.job.Keep)] {
		if !slices.Contains(p.objects[id], backupSuffix) {
			list = append(list, upload{"backup", id, p.sendBackup})
		}
	}
	return list, nil
}

func (p *pass) sendSnapshot(ctx context.Context, id string) error {
	c, err := p.dir.Contents(id, p.job.Blobs)
	if err != nil {
		return err
	}
	if err := errors.Join(p.job.Upload(ctx, c), c.Close()); err != nil {
		return err
	}
	p.remote = append(p.remote, c.Snapshot)
	slices.SortFunc(p.remote, func(a, b disk.Snapshot) int { return a.Time.Compare(b.Time) })
	return nil
}

func (p *pass) sendBackup(ctx context.Context, id string) error {
	f, err := p.dir.OpenBackup(id)
	if err != nil {
		return err
	}
	if err := errors.Join(p.job.UploadBackup(ctx, id, f), f.Close()); err != nil {
		return err
	}
	p.objects[id] = append(p.objects[id], backupSuffix)
	if i := slices.IndexFunc(p.remote, func(s disk.Snapshot) bool { return s.ID == id }); i >= 0 {
		p.remote[i].Backup = true
	}
	return nil
}

// publish sets what Remote returns.
func (u *Uploader) publish(j *Job, list []disk.Snapshot) {
	u.mu.Lock()
	changed := u.remotePrefix != j.Prefix || !slices.Equal(u.remote, list)
	u.remote, u.remotePrefix = slices.Clone(list), j.Prefix
	u.mu.Unlock()
	if changed {
		select {
		case u.done <- struct{}{}:
		default:
		}
	}
}
