package archive

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1/syntax"
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

// Uploader copies the snapshots and backups of a data directory to a bucket, in the background and beside syncs. No sync waits for it or
// fails because of it.
//
// Programs on the gateway can write to the volume, so what is there decides neither what is uploaded nor what is deleted from the bucket. The
// Uploader uploads only what a sync of this process made (see Add), and each upload allows it to delete one older object of the same kind.
// So after a restart, the agent no longer uploads what was pending; the next sync has a complete archive again.
type Uploader struct {
	// Now is the clock; time.Now by default. Set it and the functions below before SetJob.
	Now func() time.Time
	// OnUpload is called with the result of each upload, and with the error if the bucket cannot be listed. OnPending is called with the
	// number of snapshots and backups that the bucket lacks; 0 without a job. They must not block.
	OnUpload  func(err error)
	OnPending func(n int)

	log           *slog.Logger
	wake          chan struct{}
	remoteChanged chan struct{} // receives when the list has changed

	mu           sync.Mutex
	job          *Job
	cancelPass   context.CancelFunc
	cancelRun    context.CancelFunc // nil before the first job
	ended        chan struct{}      // closed when run has returned
	remote       []disk.Snapshot
	remoteBucket Bucket // that remote lists; zero if none was listed
	uploads      [kinds]uploads
	bucket       Bucket // of the last pass; uploads.uploaded and uploads.deletions hold only for it
	problem      string // the last error that was logged
}

// NewUploader returns an Uploader without a job.
func NewUploader(log *slog.Logger) *Uploader {
	return &Uploader{
		OnUpload: func(error) {}, OnPending: func(int) {},
		Now: time.Now, log: log, wake: make(chan struct{}, 1), remoteChanged: make(chan struct{}, 1), cancelPass: func() {},
	}
}

// SetJob sets the job; nil or another bucket stops the running upload. A new job starts at once, or after the running pass.
func (u *Uploader) SetJob(j *Job) {
	u.mu.Lock()
	defer u.mu.Unlock()
	previous := u.job
	u.job = j
	switch {
	case j == nil:
		u.cancelPass()
	case previous != nil && previous.Bucket == j.Bucket && previous.DataDir == j.DataDir:
		return
	case previous != nil && !previous.same(j.Bucket): // its pass may wait for hours
		u.cancelPass()
	case u.cancelRun == nil:
		var ctx context.Context
		ctx, u.cancelRun = context.WithCancel(context.Background())
		u.ended = make(chan struct{})
		go u.run(ctx, u.ended)
	}
	u.Wake()
}

// Wake makes the Uploader try at once to upload what is pending, or after the running pass.
func (u *Uploader) Wake() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// RemoteChanged returns a channel that receives when Remote may return something else.
func (u *Uploader) RemoteChanged() <-chan struct{} { return u.remoteChanged }

// Remote returns the snapshots in the bucket of a job, oldest first, and whether they are known.
func (u *Uploader) Remote(j *Job) ([]disk.Snapshot, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.remoteBucket.same(j.Bucket) {
		return nil, false
	}
	return u.remote, true
}

// Close stops the running upload and waits for its end. It may be called again.
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

// run makes a pass whenever Wake is called, and again after a failed one, until ctx is done. Then it closes ended.
func (u *Uploader) run(ctx context.Context, ended chan<- struct{}) {
	defer close(ended)
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
		passing, cancel := context.WithCancel(ctx)
		u.cancelPass = cancel
		u.mu.Unlock()
		if j == nil {
			cancel()
			u.OnPending(0)
			continue
		}
		err := u.Pass(passing, j)
		cancel()
		if err == nil {
			failures = 0
		} else if ctx.Err() == nil {
			failures++
			retry = time.After(backoff.Retry(failures, maxPause))
		}
	}
}

// Pass uploads what is pending, and prunes the bucket. A caller that does not use SetJob may call it directly.
func (u *Uploader) Pass(ctx context.Context, j *Job) error {
	err := u.pass(ctx, j)
	if ctx.Err() != nil { // canceled by SetJob, Close or the caller
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

// kind is what an Uploader uploads.
type kind int

const (
	snapshots kind = iota
	backups
	kinds int = iota
)

func (k kind) String() string { return [...]string{"snapshot", "backup"}[k] }

// uploads is what this process knows of the objects of one kind, without the volume.
type uploads struct {
	pending   []string // ids of syncs of this process that are not uploaded, oldest first
	uploaded  string   // the newest id that this process uploaded
	deletions int      // how many older objects may be deleted: one for each upload
}

// Add tells the Uploader of a sync that this process ran, by the ids of its snapshots and of its backups.
func (u *Uploader) Add(snapshotIDs, backupIDs []string) {
	if len(snapshotIDs)+len(backupIDs) == 0 {
		return
	}
	u.mu.Lock()
	for k, ids := range [][]string{snapshots: snapshotIDs, backups: backupIDs} {
		u.uploads[k].pending = append(u.uploads[k].pending, ids...)
	}
	u.mu.Unlock()
	u.Wake()
}

// pass is one attempt to upload what is pending.
type pass struct {
	*Uploader
	job     *Job
	dir     *disk.Dir
	objects map[string][]string // in the bucket: see Bucket.objects
	remote  []disk.Snapshot     // the complete snapshots in the bucket, oldest first
}

func (u *Uploader) pass(ctx context.Context, j *Job) (err error) {
	o := j.Disk
	o.ReadOnly, o.AllowUnseeded, o.Log = true, true, nil
	d, err := disk.Open(j.DataDir, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	known, _ := u.Remote(j)
	p := &pass{Uploader: u, job: j, dir: d}
	if err := p.prunePending(); err != nil {
		return err
	}
	p.resetForBucket()
	p.objects, err = j.objects(ctx)
	if err == nil {
		p.remote, err = j.complete(ctx, p.objects, known)
	}
	if err != nil {
		u.OnPending(p.lacking())
		u.OnUpload(err)
		return err
	}
	u.publish(j, p.remote)
	var failed []error
	for k, send := range []func(context.Context, string) error{snapshots: p.sendSnapshot, backups: p.sendBackup} {
		for _, id := range slices.Backward(u.pendingIDs(kind(k))) { // the newest first
			u.OnPending(p.lacking())
			err := send(ctx, id)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if errors.Is(err, fs.ErrNotExist) { // a sync removed it, or moved a file of it
				if has, listErr := p.onVolume(); listErr == nil && !has[k](id) {
					p.drop(kind(k), id)
					continue
				}
			}
			u.OnUpload(err)
			if err != nil {
				failed = append(failed, err)
				continue
			}
			p.record(kind(k), id)
			u.log.Info(kind(k).String()+" uploaded", kind(k).String(), id)
			u.publish(j, p.remote)
		}
	}
	u.OnPending(p.lacking())
	if err := p.pruneBucket(ctx); err != nil {
		failed = append(failed, err)
	}
	u.publish(j, p.remote)
	return errors.Join(failed...)
}

// pendingIDs returns the ids of one kind that are not uploaded.
func (u *Uploader) pendingIDs(k kind) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.uploads[k].pending)
}

// pendingCount returns the number of ids of all kinds that are not uploaded.
func (u *Uploader) pendingCount() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.uploads[snapshots].pending) + len(u.uploads[backups].pending)
}

// lacking returns how many snapshots and backups the bucket lacks. Besides what is pending, those are the snapshots of another commit that are
// newer than all in the bucket: an earlier process did not upload them. An empty bucket is probably a new one, which gets only later snapshots.
func (p *pass) lacking() int {
	n := p.pendingCount()
	remote, listed := p.Remote(p.job)
	local, err := p.dir.ListSnapshots()
	if err != nil || listed && len(remote) == 0 { // the sync reports the error
		return n
	}
	pending := p.pendingIDs(snapshots)
	for _, s := range local[max(0, len(local)-p.job.Keep):] {
		stored := slices.ContainsFunc(remote, func(r disk.Snapshot) bool { return !s.Time.After(r.Time) })
		if s.Commit != s.To && !stored && !slices.Contains(pending, s.ID) {
			n++
		}
	}
	return n
}

// prunePending forgets what the volume no longer has, and all but the newest Keep.
func (p *pass) prunePending() error {
	before := [][]string{snapshots: p.pendingIDs(snapshots), backups: p.pendingIDs(backups)} // a sync may add one that the lists below lack
	onVolume, err := p.onVolume()
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for k, has := range onVolume {
		m := &p.uploads[k]
		m.pending = slices.DeleteFunc(m.pending, func(id string) bool { return slices.Contains(before[k], id) && !has(id) })
		m.pending = m.pending[max(0, len(m.pending)-p.job.Keep):]
	}
	return nil
}

// onVolume returns, by kind, whether the volume has an id.
func (p *pass) onVolume() ([]func(id string) bool, error) {
	local, err := p.dir.ListSnapshots()
	if err != nil {
		return nil, err
	}
	list, err := p.dir.Backups()
	return []func(id string) bool{
		snapshots: func(id string) bool {
			return slices.ContainsFunc(local, func(s disk.Snapshot) bool { return s.ID == id })
		},
		backups: func(id string) bool { _, ok := list[id]; return ok },
	}, err
}

// resetForBucket forgets what held for another bucket than that of the job, or for another number of snapshots to keep: a smaller one must not
// delete many at once.
func (p *pass) resetForBucket() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bucket.same(p.job.Bucket) && p.bucket.Keep == p.job.Keep {
		return
	}
	p.bucket = p.job.Bucket
	for k := range p.uploads {
		p.uploads[k].uploaded, p.uploads[k].deletions = "", 0
	}
}

func (u *Uploader) drop(k kind, id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.uploads[k].pending = slices.DeleteFunc(u.uploads[k].pending, func(other string) bool { return other == id })
}

func (u *Uploader) record(k kind, id string) {
	u.drop(k, id)
	u.mu.Lock()
	defer u.mu.Unlock()
	m := &u.uploads[k]
	if m.deletions++; syntax.SnapshotTime(id).After(syntax.SnapshotTime(m.uploaded)) {
		m.uploaded = id
	}
}

// pruneBucket deletes from the bucket what is older than the newest Keep, as far as uploads of this process allow it.
func (p *pass) pruneBucket(ctx context.Context) error {
	for k := range p.uploads {
		m := &p.uploads[k] // only passes change these two fields
		surplus := p.job.surplus(kind(k), p.objects, m.uploaded, p.Now().Add(-minAge))
		for _, id := range surplus[:min(len(surplus), m.deletions)] {
			if err := p.job.delete(ctx, kind(k), id, p.objects[id]); err != nil {
				return err
			}
			m.deletions--
			if kind(k) == snapshots {
				p.remote = slices.DeleteFunc(p.remote, func(s disk.Snapshot) bool { return s.ID == id })
			}
		}
	}
	return nil
}

func (p *pass) sendSnapshot(ctx context.Context, id string) error {
	c, err := p.dir.Contents(id, p.job.Blobs)
	if err != nil {
		return err
	}
	if err := errors.Join(p.job.Upload(ctx, c), c.Close()); err != nil {
		return err
	}
	p.objects[id] = append(p.objects[id], archiveSuffix, labelSuffix)
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
	changed := !u.remoteBucket.same(j.Bucket) || !slices.Equal(u.remote, list)
	u.remote, u.remoteBucket = slices.Clone(list), j.Bucket
	u.mu.Unlock()
	if changed {
		select {
		case u.remoteChanged <- struct{}{}:
		default:
		}
	}
}
