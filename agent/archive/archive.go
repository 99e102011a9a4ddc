// Package archive keeps snapshots in object storage, and the backups of whole gateways. From there a gateway can be restored after its data
// volume was lost, or after the snapshot was removed from the volume.
//
// An archive contains every file of a snapshot (see disk.Contents). Restoring it needs neither another archive nor git, so each archive can
// be deleted alone. It is a .tar.gz file that tar can unpack:
//
//	snapshot.json   describes the snapshot: see head
//	files/<path>    the files, sorted by path
//	files.jsonl     one line per file with its path, blob id and record in the manifest: see record
//
// Next to each archive is a second object with the suffix .json, the label. It is uploaded last: an archive without a label is incomplete.
// A backup is one object with the suffix .gwbk.
//
// Archives are not signed. A user who can write to the bucket decides which files a restore writes.
package archive

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/failure"
)

const (
	headName   = "snapshot.json"
	filesDir   = "files/"
	recordName = "files.jsonl"

	formatVersion = 1
	maxHead       = 1 << 20 // bytes of snapshot.json
	maxTrailer    = 1 << 20 // bytes after the end of the tar archive
	// maxRecord is the maximum size of a line in files.jsonl: the longest path of Linux, escaped, and two ids.
	maxRecord = 32 << 10
	// maxPaths bounds the total length of the paths in bytes, which are in memory.
	maxPaths = 64 << 20
	// maxUnpacked is the maximum total size of the files in bytes. Without it, a small archive could unpack to more than the disk can store.
	maxUnpacked = 64 << 30
)

// head is the content of snapshot.json. Rules and Mappings are from the manifest of the snapshot: see plan.Header.
type head struct {
	Format int `json:"format"`
	disk.Snapshot
	Rules    string        `json:"rules"`
	Mappings []plan.Origin `json:"mappings,omitempty"`
}

// record is a line of files.jsonl.
type record struct {
	Path string  `json:"path"`
	ID   plan.ID `json:"id"`
	// Want and Origin are from the record in the manifest, if disk.Content.Recorded is set.
	Want   *plan.ID `json:"want,omitempty"`
	Origin uint16   `json:"origin,omitempty"`
}

// Write writes an archive. It streams the files, so that no whole file is in memory. If a file changes meanwhile, the error is
// disk.ErrChanged, and what was written is not a whole archive.
func Write(ctx context.Context, to io.Writer, c *disk.Contents) error {
	gz, err := gzip.NewWriterLevel(to, gzip.BestSpeed)
	if err != nil {
		return err
	}
	w := tar.NewWriter(gz)
	entry := func(name string, mode, size int64) error {
		return w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: size, ModTime: c.Time, Typeflag: tar.TypeReg, Format: tar.FormatPAX})
	}
	b, err := json.Marshal(head{formatVersion, c.Snapshot, c.Header.Rules, c.Header.Mappings})
	if err != nil {
		return fmt.Errorf("encode %s: %w", headName, err)
	}
	if err := entry(headName, 0o644, int64(len(b))); err != nil {
		return err
	}
	if _, err := w.Write(b); err != nil {
		return err
	}
	var packed bytes.Buffer // compressed files.jsonl; 100,000 records take about four megabytes
	index, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
	if err != nil {
		return err
	}
	var size int64
	records := json.NewEncoder(io.MultiWriter(index, counter{&size}))
	err = c.Each(ctx, func(f disk.Content, size int64, write func(io.Writer) error) error {
		mode := int64(0o644)
		if f.Exec {
			mode = 0o755
		}
		if err := entry(filesDir+f.Path, mode, size); err != nil {
			return fmt.Errorf("pack %s: %w", f.Path, err)
		}
		sum := plan.NewBlob(size)
		if err := write(io.MultiWriter(w, sum)); err != nil {
			return fmt.Errorf("pack %s: %w", f.Path, err)
		}
		if plan.ID(sum.Sum(nil)) != f.ID {
			return fmt.Errorf("pack %s: %w", f.Path, disk.ErrChanged)
		}
		r := record{Path: f.Path, ID: f.ID, Origin: f.Origin}
		if f.Recorded {
			r.Want = &f.Want
		}
		return records.Encode(r)
	})
	if err == nil {
		err = index.Close()
	}
	if err != nil {
		return err
	}
	if err := entry(recordName, 0o644, size); err != nil {
		return err
	}
	unpacked, err := gzip.NewReader(&packed)
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, unpacked); err != nil {
		return err
	}
	return errors.Join(w.Close(), gz.Close())
}

// counter is a writer that adds the number of written bytes to n.
type counter struct{ n *int64 }

func (c counter) Write(p []byte) (int, error) {
	*c.n += int64(len(p))
	return len(p), nil
}

// Limits bound an archive, the number of its files, and the size and the path of each. Zero means no limit other than those of this package.
type Limits struct {
	Files, PathBytes        int
	FileBytes, ArchiveBytes int64
}

// Archive is an archive that Open has read and checked.
type Archive struct {
	disk.Snapshot
	// Header is that of the manifest of the snapshot, but never Complete: an archive lacks the records of files that a user had changed or
	// deleted, so only a full plan finds them.
	Header plan.Header
	Files  []disk.Content

	file *os.File
	gz   *gzip.Reader // of file
	tar  *tar.Reader  // of gz
}

// Open reads a whole archive. It checks that the bytes of every file match its record, and that the files are within l;
// Bucket.Download checks l.ArchiveBytes. It does not check the paths; disk.PlanReplace does. The reason of an error is SnapshotFailed. The
// Archive reads from f, which must stay open.
func Open(ctx context.Context, f *os.File, l Limits) (*Archive, error) {
	a := &Archive{file: f}
	err := a.read(ctx, l)
	if err == nil {
		err = a.Restart()
	}
	if _, local := errors.AsType[*fs.PathError](err); local {
		return nil, failure.New(v1alpha1.ReasonSnapshotFailed, "the downloaded archive cannot be read: %w", err)
	}
	if err != nil {
		return nil, failure.New(v1alpha1.ReasonSnapshotFailed, "the archive cannot be used: %w; %w", err, errBroken)
	}
	return a, nil
}

// Restart moves to the first entry of the archive, so that Source starts again at the first file.
func (a *Archive) Restart() error {
	if _, err := a.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	var err error
	if a.gz, err = gzip.NewReader(a.file); err != nil {
		return err
	}
	a.tar = tar.NewReader(a.gz)
	return nil
}

// read reads all entries. It sets everything but the bytes of the files.
func (a *Archive) read(ctx context.Context, l Limits) error {
	if err := a.Restart(); err != nil {
		return err
	}
	if err := a.readHead(); err != nil {
		return err
	}
	if err := a.readFiles(ctx, l); err != nil {
		return err
	}
	if _, err := a.tar.Next(); !errors.Is(err, io.EOF) {
		return errors.Join(fmt.Errorf("it continues after %s", recordName), err)
	}
	if n, err := io.Copy(io.Discard, io.LimitReader(a.gz, maxTrailer)); err != nil || n == maxTrailer { // the checksum is at the end
		return errors.Join(errors.New("it is damaged, or has data after its end"), err)
	}
	for _, f := range a.Files {
		if f.Recorded {
			a.Header.Files++
		}
	}
	return nil
}

func (a *Archive) readHead() error {
	h, err := a.tar.Next()
	if err != nil {
		return err
	}
	if h.Name != headName || h.Typeflag != tar.TypeReg || h.Size > maxHead {
		return fmt.Errorf("it does not begin with %s", headName)
	}
	b, err := io.ReadAll(a.tar)
	if err != nil {
		return err
	}
	var first head
	if err := json.Unmarshal(b, &first); err != nil {
		return fmt.Errorf("read %s: %w", headName, err)
	}
	if first.Format != formatVersion {
		return fmt.Errorf("it has format %d, but this agent reads only format %d: update the agent", first.Format, formatVersion)
	}
	a.Snapshot = first.Snapshot
	a.Header = plan.Header{Ref: first.Ref, Commit: first.Commit, Rules: first.Rules, Mappings: first.Mappings}
	return nil
}

// readFiles reads the files and files.jsonl.
func (a *Archive) readFiles(ctx context.Context, l Limits) error {
	remaining, paths := int64(maxUnpacked), maxPaths
	buf := make([]byte, 64<<10)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := a.tar.Next()
		if err != nil {
			return fmt.Errorf("it is truncated: %w", err)
		}
		if h.Typeflag != tar.TypeReg {
			return fmt.Errorf("%s is not a file", failure.Quote(h.Name))
		}
		if h.Name == recordName {
			return a.readRecords()
		}
		path, ok := strings.CutPrefix(h.Name, filesDir)
		paths -= len(path)
		switch remaining -= h.Size; {
		case !ok:
			return fmt.Errorf("it contains %s, which is not part of a snapshot", failure.Quote(h.Name))
		case l.Files > 0 && len(a.Files) >= l.Files:
			return fmt.Errorf("it has more than %d files (--max-files)", l.Files)
		case l.PathBytes > 0 && len(path) > l.PathBytes:
			return fmt.Errorf("%s has a path of %d bytes, more than %d", failure.Quote(path), len(path), l.PathBytes)
		case paths < 0:
			return fmt.Errorf("its paths have more than %d bytes", maxPaths)
		case l.FileBytes > 0 && h.Size > l.FileBytes:
			return fmt.Errorf("%s has %d bytes, more than %d (--max-blob)", failure.Quote(path), h.Size, l.FileBytes)
		case remaining < 0:
			return fmt.Errorf("its files have more than %d bytes", int64(maxUnpacked))
		}
		sum := plan.NewBlob(h.Size)
		if _, err := io.CopyBuffer(struct{ io.Writer }{sum}, struct{ io.Reader }{a.tar}, buf); err != nil {
			return fmt.Errorf("read %s: %w", failure.Quote(path), err)
		}
		a.Files = append(a.Files, disk.Content{Path: path, ID: plan.ID(sum.Sum(nil)), Exec: h.Mode&0o111 != 0})
	}
}

// readRecords reads files.jsonl. It has one line for each file, in the order of the files.
func (a *Archive) readRecords() error {
	lines := bufio.NewReaderSize(a.tar, maxRecord)
	for i := range a.Files {
		line, err := lines.ReadSlice('\n')
		if err != nil && (!errors.Is(err, io.EOF) || len(line) == 0) { // bufio.ErrBufferFull for a line that is too long
			return fmt.Errorf("read %s: %w", recordName, err)
		}
		var rec record
		if err := json.Unmarshal(line, &rec); err != nil {
			return fmt.Errorf("read %s: %w", recordName, err)
		}
		f := &a.Files[i]
		if rec.Path != f.Path || rec.ID != f.ID {
			return fmt.Errorf("%s is damaged: it does not match its line in %s", failure.Quote(f.Path), recordName)
		}
		if f.Origin = rec.Origin; rec.Want != nil {
			f.Recorded, f.Want = true, *rec.Want
		}
	}
	if _, err := lines.ReadByte(); !errors.Is(err, io.EOF) {
		return errors.Join(fmt.Errorf("%s has more lines than there are files", recordName), err)
	}
	return nil
}

// Source implements disk.Source for the changes of disk.PlanReplace. It reads the archive forward only, so the caller must pass the changes
// in the order of their paths.
func (a *Archive) Source(w io.Writer, c plan.Change) error {
	for {
		h, err := a.tar.Next()
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		if h.Name != filesDir+c.Path {
			continue
		}
		if _, err := io.Copy(w, a.tar); err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		return nil
	}
}

// newestFirst returns snapshot ids, sorted from the newest to the oldest.
func newestFirst(ids iter.Seq[string]) []string {
	return slices.SortedFunc(ids, func(a, b string) int { return syntax.SnapshotTime(b).Compare(syntax.SnapshotTime(a)) })
}

// Download is an archive that is read from object storage beside the syncs, or was read and is not restored yet. It outlives a sync: a slow
// download delays no other commit, and a restore that waits for a Designer is tried many times. The zero value holds no archive.
type Download struct {
	broken broken // survives Close

	id     string
	file   *os.File // nil without an archive
	cancel context.CancelFunc
	done   chan struct{} // closed when archive or err is set

	archive *Archive
	err     error
}

// broken is an archive that is not downloaded again for brokenFor, unless its label changes.
type broken struct {
	id, sum string // of the snapshot; the SHA256 of the archive by its label
	err     error  // nil while no archive is broken
	at      time.Time
}

// brokenFor is how long an archive stays broken.
const brokenFor = time.Hour

// ID returns the id of the snapshot whose archive is read or was; "" if the Download holds none.
func (d *Download) ID() string { return d.id }

// Close stops and drops the download. It may be called again, and the Download used again.
func (d *Download) Close() error {
	f := d.file
	if f == nil {
		return nil
	}
	d.cancel()
	<-d.done
	*d = Download{broken: d.broken}
	return f.Close()
}

// downloadWait is how long Get waits for a download.
const downloadWait = 5 * time.Second

// ErrDownloading is the error of Get, with the reason Progressing, until the archive is read.
var ErrDownloading = errors.New("the snapshot is read from object storage")

// Get waits up to downloadWait for the archive of a snapshot in b. The first call for a snapshot drops any other download, and reads into the
// file that newFile returns, which the Download closes. The error is ErrDownloading if the archive is not read yet. After any other error but
// that of ctx, the next call starts again.
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
		return nil, failure.New(v1alpha1.ReasonProgressing, "%w, %.1f MiB so far; a new commit ends this", ErrDownloading, float64(read)/(1<<20))
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
	ctx, cancel := context.WithCancel(context.Background()) // the download outlives the sync
	*d = Download{broken: d.broken, id: id, file: file, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(d.done)
		d.archive, d.err = d.read(ctx, b, limits)
	}()
	return nil
}

// read reads the archive, unless it is known to be broken.
func (d *Download) read(ctx context.Context, b *Bucket, limits Limits) (*Archive, error) {
	l, err := b.label(ctx, d.id)
	if err != nil {
		return nil, err
	}
	if d.broken.id == d.id && d.broken.sum == l.SHA256 && time.Since(d.broken.at) < brokenFor {
		return nil, d.broken.err
	}
	a, err := b.download(ctx, l, d.file, limits)
	if errors.Is(err, errBroken) && ctx.Err() == nil {
		now := time.Now()
		d.broken = broken{d.id, l.SHA256, fmt.Errorf("%w; it is downloaded again after %s", err, now.Add(brokenFor).UTC().Format("15:04 UTC")), now}
	}
	return a, err
}
