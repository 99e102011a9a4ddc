package archive

import (
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
	"stoker.io/stoker/internal/failure"
)

// Store is object storage. Implementations are safe for concurrent use, end when ctx is done, and hold no more than a few megabytes of an
// object in memory. Their errors name no credentials. archivetest.Run is the contract.
type Store interface {
	// Put writes an object of unknown size, in place of an older one. After an error the object is as it was before, or is not there.
	Put(ctx context.Context, key string, r io.Reader) error
	// Get reads an object. The error is fs.ErrNotExist if there is none.
	Get(ctx context.Context, key string) (io.ReadCloser, error)
	// List returns the keys with a prefix, and LimitExceeded if there are more than MaxList.
	List(ctx context.Context, prefix string) ([]string, error)
	// Delete removes an object, if there is one.
	Delete(ctx context.Context, key string) error
}

// MaxList bounds a listing: a gateway keeps at most a hundred snapshots, of a few objects each.
const MaxList = 10_000

// The objects of a snapshot are its id with these suffixes.
const (
	archiveSuffix = ".tar.gz"
	labelSuffix   = ".json"
	backupSuffix  = ".gwbk" // of the whole gateway
)

const (
	maxLabel = 64 << 10
	// maxPacked bounds the object of an archive.
	maxPacked = 16 << 30
	// stall is how long object storage may take to accept or deliver the next bytes.
	stall = 2 * time.Minute
)

// Bucket is the place of one gateway in object storage.
type Bucket struct {
	Store
	// Prefix begins all keys, and ends with a slash.
	Prefix  string
	Gateway string
	// Keep is how many snapshots are kept.
	Keep int
}

// NewBucket returns the place of a gateway below the prefix of the spec.
func NewBucket(s Store, keyPrefix, namespace, gatewaySync, gateway string, keep int) *Bucket {
	return &Bucket{Store: s, Prefix: keyPrefix + namespace + "/" + gatewaySync + "/" + gateway + "/", Gateway: gateway, Keep: keep}
}

// label describes an archive. It is written after it.
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
	packed, pack := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		pack.CloseWithError(Write(ctx, io.MultiWriter(pack, sum, counter{&l.ArchiveBytes}), c))
	}()
	err := b.put(ctx, c.ID+archiveSuffix, packed)
	_ = packed.Close() // ends Write if the store gave up
	<-done
	if err != nil {
		return err
	}
	l.SHA256 = hex.EncodeToString(sum.Sum(nil))
	text, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("encode the label: %w", err)
	}
	return b.put(ctx, c.ID+labelSuffix, strings.NewReader(string(text)))
}

// UploadBackup writes a backup of the whole gateway. The object is complete or not there, so it needs no label.
func (b *Bucket) UploadBackup(ctx context.Context, id string, r io.Reader) error {
	return b.put(ctx, id+backupSuffix, r)
}

// put writes an object, and gives up if the store stalls.
func (b *Bucket) put(ctx context.Context, name string, r io.Reader) error {
	ctx, w := watch(ctx)
	defer w.stop()
	if err := b.Put(ctx, b.Prefix+name, w.reader(r)); err != nil {
		return fmt.Errorf("write %s: %w", name, w.cause(ctx, err))
	}
	return nil
}

// get reads an object of at most limit bytes into w.
func (b *Bucket) get(ctx context.Context, name string, limit int64, to io.Writer) error {
	ctx, w := watch(ctx)
	defer w.stop()
	r, err := b.Get(ctx, b.Prefix+name)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, w.cause(ctx, err))
	}
	n, err := io.Copy(to, io.LimitReader(w.reader(r), limit+1))
	err = errors.Join(err, r.Close())
	if err != nil {
		return fmt.Errorf("read %s: %w", name, w.cause(ctx, err))
	}
	if n > limit {
		return fmt.Errorf("read %s: it has more than %d bytes", name, limit)
	}
	return nil
}

// watcher cancels a transfer that stalls.
type watcher struct {
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

var errStalled = fmt.Errorf("no bytes moved for %s", stall)

func watch(ctx context.Context) (context.Context, watcher) {
	ctx, cancel := context.WithCancelCause(ctx)
	return ctx, watcher{time.AfterFunc(stall, func() { cancel(errStalled) }), cancel}
}

func (w watcher) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

func (w watcher) reader(r io.Reader) io.Reader { return watchedReader{w, r} }

// cause returns why a transfer failed.
func (w watcher) cause(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errStalled) {
		return errStalled
	}
	return err
}

type watchedReader struct {
	w watcher
	r io.Reader
}

func (r watchedReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.w.timer.Reset(stall)
	return n, err
}

// objects returns the objects of this gateway by snapshot. Anything else below the prefix is left out, so nothing deletes it.
func (b *Bucket) objects(ctx context.Context) (map[string][]string, error) {
	ctx, w := watch(ctx)
	defer w.stop()
	keys, err := b.List(ctx, b.Prefix)
	if err != nil {
		return nil, fmt.Errorf("list the snapshots: %w", w.cause(ctx, err))
	}
	found := map[string][]string{}
	for _, key := range keys {
		name, ok := strings.CutPrefix(key, b.Prefix)
		for _, suffix := range []string{archiveSuffix, labelSuffix, backupSuffix} {
			if id, is := strings.CutSuffix(name, suffix); ok && is && v1alpha1.RestoresOn(id, b.Gateway) == id && id != "" {
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

// complete returns the complete snapshots among the objects that were found.
func (b *Bucket) complete(ctx context.Context, found map[string][]string, known []disk.Snapshot) ([]disk.Snapshot, error) {
	var ids []string
	for id, suffixes := range found {
		if slices.Contains(suffixes, labelSuffix) && slices.Contains(suffixes, archiveSuffix) {
			ids = append(ids, id)
		}
	}
	var list []disk.Snapshot
	for _, id := range slices.Backward(newest(ids)) {
		backup := slices.Contains(found[id], backupSuffix)
		if i := slices.IndexFunc(known, func(s disk.Snapshot) bool { return s.ID == id }); i >= 0 {
			list = append(list, known[i])
			list[len(list)-1].Backup = backup
			continue
		}
		l, err := b.label(ctx, id)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errDamaged) {
			continue // removed since, or not one of ours
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

func (b *Bucket) label(ctx context.Context, id string) (label, error) {
	var text strings.Builder
	if err := b.get(ctx, id+labelSuffix, maxLabel, &text); err != nil {
		return label{}, err
	}
	var l label
	if err := json.Unmarshal([]byte(text.String()), &l); err != nil || l.ID != id || l.ArchiveBytes < 0 {
		return label{}, fmt.Errorf("read %s: %w", id+labelSuffix, errDamaged)
	}
	l.Time, l.Files, l.Bytes = timeOf(id), max(l.Files, 0), max(l.Bytes, 0)
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
	sum := sha256.New()
	if err := b.get(ctx, id+archiveSuffix, min(l.ArchiveBytes, maxPacked), io.MultiWriter(f, sum)); err != nil {
		return nil, err
	}
	if hex.EncodeToString(sum.Sum(nil)) != l.SHA256 {
		return nil, failure.New(v1alpha1.ReasonSnapshotFailed, "%s is damaged: its checksum is not that of its label; nothing was changed", id+archiveSuffix)
	}
	a, err := Open(ctx, f, limits)
	if err == nil && a.ID != id {
		err = failure.New(v1alpha1.ReasonSnapshotFailed, "%s is the archive of %s; nothing was changed", id+archiveSuffix, failure.Quote(a.ID))
	}
	return a, err
}

// Prune removes all but the newest snapshots and backups, and what older uploads left. The label goes first, so that no part of a snapshot
// counts as a whole one.
func (b *Bucket) Prune(ctx context.Context) error {
	found, err := b.objects(ctx)
	if err != nil {
		return err
	}
	kept, backups, oldest := 0, 0, ""
	for _, id := range newest(slices.Collect(maps.Keys(found))) {
		var gone []string
		if slices.Contains(found[id], labelSuffix) && kept < b.Keep {
			kept, oldest = kept+1, id
		} else if kept >= b.Keep && stamp(id) < stamp(oldest) { // otherwise it is an upload that has not ended
			gone = []string{labelSuffix, archiveSuffix}
		}
		if slices.Contains(found[id], backupSuffix) {
			if backups++; backups > b.Keep {
				gone = append(gone, backupSuffix)
			}
		}
		for _, suffix := range gone {
			if !slices.Contains(found[id], suffix) {
				continue
			}
			if err := b.remove(ctx, id+suffix); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *Bucket) remove(ctx context.Context, name string) error {
	ctx, w := watch(ctx)
	defer w.stop()
	if err := b.Delete(ctx, b.Prefix+name); err != nil {
		return fmt.Errorf("delete %s: %w", name, w.cause(ctx, err))
	}
	return nil
}
