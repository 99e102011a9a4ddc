package archive

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/secretrefs"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/failure"
)

// Field is the path of the object storage in the spec of a GatewaySync. Errors name it.
const Field = string(secretrefs.Storage)

// Store is object storage. Implementations are safe for concurrent use, return when ctx is done, and hold at most a few megabytes of an
// object in memory. Their errors show no credentials. archivetest.Run tests an implementation.
type Store interface {
	// Put writes an object of unknown size, and replaces an older one. After an error, the object is unchanged or does not exist.
	Put(ctx context.Context, key string, r io.Reader) error
	// Get reads an object, and the caller closes it. The error is fs.ErrNotExist if there is none.
	Get(ctx context.Context, key string) (io.ReadCloser, error)
	// List returns the keys with a prefix. The error has the reason LimitExceeded if there are more than MaxList.
	List(ctx context.Context, prefix string) ([]string, error)
	// Delete removes an object, if there is one.
	Delete(ctx context.Context, key string) error
}

const (
	// MaxList bounds a listing: a gateway keeps at most a hundred snapshots, of a few objects each.
	MaxList = 10_000
	maxKey  = 1024 // bytes, as in S3, Google Cloud Storage and Azure
)

// Listing collects the keys with a prefix that a server lists, within bounds.
type Listing struct {
	Prefix string
	Keys   []string
	n      int // number of keys, also of those with another prefix
}

// Add adds a key, if it has the prefix. The error has the reason LimitExceeded for a key that is too long for any server, and for more than
// MaxList keys.
func (l *Listing) Add(key string) error {
	l.n++
	switch {
	case l.n > MaxList:
		return failure.New(v1alpha1.ReasonLimitExceeded, "there are more than %d objects below %s", MaxList, l.Prefix)
	case len(key) > maxKey:
		return failure.New(v1alpha1.ReasonLimitExceeded, "the server lists a key of %d bytes below %s, more than %d", len(key), l.Prefix, maxKey)
	case strings.HasPrefix(key, l.Prefix):
		l.Keys = append(l.Keys, key)
	}
	return nil
}

// The objects of a snapshot are its id with these suffixes.
const (
	archiveSuffix = ".tar.gz"
	labelSuffix   = ".json"
	backupSuffix  = ".gwbk" // of the whole gateway
)

const (
	maxLabel = 64 << 10 // bytes
	// maxLabels bounds the labels that a listing reads: twice the snapshots that a gateway can keep.
	maxLabels = 200
	// maxPacked bounds the object of an archive if Limits do not.
	maxPacked = 16 << 30
	// stallTimeout is how long object storage may take to accept the next bytes, or to deliver the next stride.
	stallTimeout = 2 * time.Minute
	stride       = 1 << 20
	// transferTimeout bounds the transfer of one object.
	transferTimeout = 4 * time.Hour
)

// Bucket is the place of one gateway in object storage.
type Bucket struct {
	Store
	// Location identifies the bucket at its provider. Two Buckets with the same Location and Prefix are the same place, even if their Stores
	// differ.
	Location string
	// Prefix begins all keys, and ends with a slash.
	Prefix  string
	Gateway string
	// Keep is how many snapshots and how many backups are kept.
	Keep int
}

// same reports whether two buckets are one place.
func (b Bucket) same(other Bucket) bool {
	return b.Location == other.Location && b.Prefix == other.Prefix
}

// NewBucket returns the place of a gateway below keyPrefix, which the spec sets.
func NewBucket(s Store, location, keyPrefix, namespace, gatewaySync, gateway string, keep int) *Bucket {
	return &Bucket{Store: s, Location: location, Prefix: keyPrefix + namespace + "/" + gatewaySync + "/" + gateway + "/", Gateway: gateway, Keep: keep}
}

// label describes an archive, and is written after the archive.
type label struct {
	Format int `json:"format"`
	disk.Snapshot
	ArchiveBytes int64  `json:"archiveBytes"`
	SHA256       string `json:"sha256"` // of the archive
}

// Upload writes the archive of a snapshot and its label.
func (b *Bucket) Upload(ctx context.Context, c *disk.Contents) error {
	l := label{Format: formatVersion, Snapshot: c.Snapshot}
	sum := sha256.New()
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := Write(ctx, io.MultiWriter(w, sum, counter{&l.ArchiveBytes}), c)
		w.CloseWithError(err)
		written <- err
	}()
	err := b.put(ctx, c.ID+archiveSuffix, r)
	_ = r.Close() // ends Write if the store gave up
	if packed := <-written; err == nil {
		err = packed
	}
	if err != nil {
		return err
	}
	l.SHA256 = hex.EncodeToString(sum.Sum(nil))
	text, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("encode the label: %w", err)
	}
	return b.put(ctx, c.ID+labelSuffix, bytes.NewReader(text))
}

// UploadBackup writes a backup of the whole gateway. The object is complete or does not exist, so it needs no label.
func (b *Bucket) UploadBackup(ctx context.Context, id string, r io.Reader) error {
	return b.put(ctx, id+backupSuffix, r)
}

func (b *Bucket) put(ctx context.Context, name string, r io.Reader) error {
	return transfer(ctx, "write "+name, func(ctx context.Context, stall *time.Timer) error {
		return b.Put(ctx, b.Prefix+name, &watchedReader{Reader: r, stall: stall})
	})
}

// get copies an object of at most limit bytes to w.
func (b *Bucket) get(ctx context.Context, name string, limit int64, w io.Writer) error {
	return transfer(ctx, "read "+name, func(ctx context.Context, stall *time.Timer) error {
		r, err := b.Get(ctx, b.Prefix+name)
		if err != nil {
			return err
		}
		n, err := io.Copy(w, io.LimitReader(&watchedReader{Reader: r, stall: stall, stride: stride}, limit+1))
		if err == nil && n > limit {
			err = fmt.Errorf("it has more than %d bytes", limit)
		}
		return errors.Join(err, r.Close())
	})
}

var (
	errStalled = fmt.Errorf("too few bytes moved for %s", stallTimeout)
	errTimeout = fmt.Errorf("not complete within %s", transferTimeout)
)

// transfer runs f, and cancels its context with errTimeout after transferTimeout, and with errStalled when the timer stall fires. A
// watchedReader restarts the timer. what begins the error.
func transfer(ctx context.Context, what string, f func(ctx context.Context, stall *time.Timer) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, transferTimeout, errTimeout)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	stall := time.AfterFunc(stallTimeout, func() { stop(errStalled) })
	defer stall.Stop()
	err := f(ctx, stall)
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); errors.Is(cause, errStalled) || errors.Is(cause, errTimeout) {
		err = cause
	}
	return fmt.Errorf("%s: %w", what, err)
}

// watchedReader restarts the timer of a transfer after each read, or each stride of bytes if stride is positive.
type watchedReader struct {
	io.Reader
	stall     *time.Timer
	stride, n int
}

func (r *watchedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if r.n += n; r.n >= r.stride {
		r.n = 0
		r.stall.Reset(stallTimeout)
	}
	return n, err
}

// objects returns the suffixes of the objects of this gateway, by the id of the snapshot. It leaves out anything else below the prefix, so
// that it is never deleted.
func (b *Bucket) objects(ctx context.Context) (map[string][]string, error) {
	var keys []string
	err := transfer(ctx, "list the snapshots", func(ctx context.Context, _ *time.Timer) (err error) {
		keys, err = b.List(ctx, b.Prefix)
		return err
	})
	if err != nil {
		return nil, err
	}
	found := map[string][]string{}
	for _, key := range keys {
		name, ok := strings.CutPrefix(key, b.Prefix)
		for _, suffix := range []string{archiveSuffix, labelSuffix, backupSuffix} {
			// RestoresOn returns the id only if it is one of this gateway.
			if id, is := strings.CutSuffix(name, suffix); ok && is && annotation.RestoresOn(id, b.Gateway) == id && id != "" {
				found[id] = append(found[id], suffix)
			}
		}
	}
	return found, nil
}

// Snapshots returns the complete snapshots, oldest first. Those in known are not read again.
func (b *Bucket) Snapshots(ctx context.Context, known []disk.Snapshot) ([]disk.Snapshot, error) {
	found, err := b.objects(ctx)
	if err != nil {
		return nil, err
	}
	return b.complete(ctx, found, known)
}

// complete returns the newest complete snapshots among the objects that were found.
func (b *Bucket) complete(ctx context.Context, found map[string][]string, known []disk.Snapshot) ([]disk.Snapshot, error) {
	var ids []string
	for id, suffixes := range found {
		if slices.Contains(suffixes, labelSuffix) && slices.Contains(suffixes, archiveSuffix) {
			ids = append(ids, id)
		}
	}
	var list []disk.Snapshot
	ids = newestFirst(slices.Values(ids))
	for _, id := range slices.Backward(ids[:min(len(ids), maxLabels)]) {
		backup := slices.Contains(found[id], backupSuffix)
		if i := slices.IndexFunc(known, func(s disk.Snapshot) bool { return s.ID == id }); i >= 0 {
			list = append(list, known[i])
			list[len(list)-1].Backup = backup
			continue
		}
		l, err := b.label(ctx, id)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errDamaged) {
			continue // removed since, or not written by an agent
		}
		if err != nil {
			return nil, err
		}
		l.Backup = backup
		list = append(list, l.Snapshot)
	}
	return list, nil
}

var errDamaged = errors.New("the label is damaged")

// label reads the label of a snapshot. It corrects or clears fields that an agent would not have written.
func (b *Bucket) label(ctx context.Context, id string) (label, error) {
	var text bytes.Buffer
	if err := b.get(ctx, id+labelSuffix, maxLabel, &text); err != nil {
		return label{}, err
	}
	var l label
	if err := json.Unmarshal(text.Bytes(), &l); err != nil || l.ID != id || l.ArchiveBytes < 0 {
		return label{}, fmt.Errorf("read %s: %w", id+labelSuffix, errDamaged)
	}
	l.Time, l.Files, l.Bytes = syntax.SnapshotTime(id), max(l.Files, 0), max(l.Bytes, 0)
	if len(l.Ref) > 255 {
		l.Ref = ""
	}
	return l, nil
}

// Download reads the archive of a snapshot into f and checks it. The error is fs.ErrNotExist if there is none.
func (b *Bucket) Download(ctx context.Context, id string, f *os.File, limits Limits) (*Archive, error) {
	l, err := b.label(ctx, id)
	if err != nil {
		return nil, err
	}
	return b.download(ctx, l, f, limits)
}

// errBroken is part of the error for an archive that does not get better by itself.
var errBroken = errors.New("nothing was changed")

// download reads the archive with a label.
func (b *Bucket) download(ctx context.Context, l label, f *os.File, limits Limits) (*Archive, error) {
	id := l.ID
	if most := cmp.Or(limits.ArchiveBytes, maxPacked); l.ArchiveBytes > most {
		return nil, failure.New(v1alpha1.ReasonLimitExceeded, "%s has %d bytes, more than %d: raise spec.snapshots.maxSize", id+archiveSuffix, l.ArchiveBytes, most)
	}
	if err := disk.CheckSpace(f, l.ArchiveBytes); err != nil {
		return nil, fmt.Errorf("read %s: %w", id+archiveSuffix, err)
	}
	sum := sha256.New()
	if err := b.get(ctx, id+archiveSuffix, l.ArchiveBytes, io.MultiWriter(f, sum)); err != nil {
		return nil, err
	}
	if hex.EncodeToString(sum.Sum(nil)) != l.SHA256 {
		return nil, failure.New(v1alpha1.ReasonSnapshotFailed, "%s is damaged: its checksum is not that of its label; %w", id+archiveSuffix, errBroken)
	}
	a, err := Open(ctx, f, limits)
	if err == nil && a.ID != id {
		err = failure.New(v1alpha1.ReasonSnapshotFailed, "%s is the archive of %s; %w", id+archiveSuffix, failure.Quote(a.ID), errBroken)
	}
	return a, err
}

// minAge is the age below which nothing is deleted from a bucket, however many newer objects it has.
const minAge = 24 * time.Hour

// surplus returns the ids, oldest first, whose objects of a kind may be deleted: the ids that are older than the newest Keep complete ones,
// older than uploaded, and older than limit. It returns nil if uploaded is not in the bucket. What an interrupted upload left can be
// deleted, too, but does not count towards Keep.
func (b *Bucket) surplus(k kind, objects map[string][]string, uploaded string, limit time.Time) []string {
	has := func(id string, suffixes ...string) bool {
		return slices.ContainsFunc(suffixes, func(s string) bool { return slices.Contains(objects[id], s) })
	}
	whole, parts := []string{labelSuffix}, []string{labelSuffix, archiveSuffix}
	if k == backups {
		whole, parts = []string{backupSuffix}, []string{backupSuffix}
	}
	if !has(uploaded, whole...) {
		return nil
	}
	kept, ids := 0, []string(nil)
	for _, id := range newestFirst(maps.Keys(objects)) {
		switch {
		case kept < b.Keep:
			if has(id, whole...) {
				kept++
			}
		case has(id, parts...) && syntax.SnapshotTime(id).Before(syntax.SnapshotTime(uploaded)) && syntax.SnapshotTime(id).Before(limit):
			ids = append(ids, id)
		}
	}
	slices.Reverse(ids)
	return ids
}

// delete removes the objects of a snapshot or of a backup: those with suffixes of kind k. It deletes the label first, so that an
// incomplete snapshot does not count as a complete one.
func (b *Bucket) delete(ctx context.Context, k kind, id string, suffixes []string) error {
	for _, suffix := range []string{labelSuffix, archiveSuffix, backupSuffix} {
		if !slices.Contains(suffixes, suffix) || (suffix == backupSuffix) != (k == backups) {
			continue
		}
		err := transfer(ctx, "delete "+id+suffix, func(ctx context.Context, _ *time.Timer) error { return b.Delete(ctx, b.Prefix+id+suffix) })
		if err != nil {
			return err
		}
	}
	return nil
}
