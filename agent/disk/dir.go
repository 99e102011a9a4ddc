package disk

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/lock"
	"stoker.io/stoker/agent/disk/lostfound"
	"stoker.io/stoker/agent/disk/records"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/disk/single"
	"stoker.io/stoker/agent/disk/snapshot"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// ErrLocked means that another agent writes this data directory.
var ErrLocked = lock.ErrHeld

// ErrReadOnly means that the Dir was opened read-only.
var ErrReadOnly = errors.New("the data directory is open read-only")

// ErrMoved means that the path of the Dir, or of the agent's files in it, no longer leads to what is open, or that the open
// manifest was overwritten or damaged; see Dir.CheckOpen.
var ErrMoved = errors.New("files of the agent were replaced or damaged while they were open")

// singleFiles has the methods of a Dir that change single files.
type singleFiles = single.Files

// The errors of singleFiles.
var (
	ErrOwned   = single.ErrOwned
	ErrUnsaved = single.ErrUnsaved
)

// Options configure a Dir. The zero value is suitable for an agent.
type Options struct {
	Log *slog.Logger // nil: no log
	// LostFoundMax is the size of lost+found in bytes above which its oldest folders are removed. 0 means 256 MiB.
	LostFoundMax int64
	// LostFoundAge is how long a folder of lost+found is kept at least, unless LostFoundMax is exceeded. Usually it is kept about twice as
	// long. 0 means 30 days.
	LostFoundAge time.Duration
	// AllowUnseeded accepts a directory that Ignition has not seeded, for a directory without a gateway.
	AllowUnseeded bool
	// ReadOnly opens the directory without a lock and without recovery. Nothing is written.
	ReadOnly bool
	// MaxFiles is the maximum number of owned files. The limits for the manifest and the journal follow from it. Values below
	// 500,000 count as 500,000.
	MaxFiles int
	// MaxBlob is the size in bytes above which a file is not hashed, because the agent accepts no blob of that size
	// from git. 0 means no limit.
	MaxBlob int64
	// FsyncFiles is the number of changed files up to which each is synced by itself; more are synced by one syncfs. 0 means 64.
	FsyncFiles int
	// Wanted writes the content of a blob that git wanted, like plan.Objects.WriteBlob. Drift needs it to distinguish a
	// file that was signed again, or is JSON of the same meaning, from a changed one; if it is nil, both count as changed.
	Wanted func(w io.Writer, id plan.ID) (int64, error)
	// Watch reports whether Drift lists a file in its result's Watched; nil means that it lists none.
	Watch func(path string) bool
	// Now is the clock; nil means time.Now.
	Now func() time.Time

	// For tests: a hook around each step, a file system without exchange, and another kernel's flock.
	Around func(e safe.Effect, do func() error) error
	plain  bool
	flock  func(f *os.File) error
}

func (o Options) withDefaults() Options {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.LostFoundMax = cmp.Or(o.LostFoundMax, 256<<20)
	o.LostFoundAge = cmp.Or(o.LostFoundAge, 30*24*time.Hour)
	o.MaxFiles = max(o.MaxFiles, 500_000)
	o.FsyncFiles = cmp.Or(o.FsyncFiles, 64)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.flock == nil {
		o.flock = lock.Flock
	}
	return o
}

// maxJournal is the maximum size in bytes of the journal of one apply, and so of the memory that recovery needs. It suffices for a
// commit that moves every file that a gateway may have. No agent writes a larger journal, and reading one could crash the agent
// at every start.
func (o *Options) maxJournal() int64 { return int64(o.MaxFiles) * 640 }

func (o *Options) snapshotLimits() snapshot.Limits {
	return snapshot.Limits{Files: o.MaxFiles, JournalBytes: o.maxJournal(), FileBytes: o.MaxBlob}
}

// Dir is a gateway's data directory. Stage, Apply, Drift and the other methods that write exclude each other. The methods of
// plan.State, Manifest, and the methods that return lists may be called concurrently with them.
type Dir struct {
	liveFiles       // the gateway's files
	manifestStore   // .stoker/manifest
	rewriteDetector // for Drift, and for what a sync displaces
	writeGuard
	agentRecords // empty if own is nil
	singleFiles  // empty if own is nil

	o         Options
	log       *slog.Logger
	path      string            // as passed to Open
	own       *safe.AgentFolder // nil if .stoker does not exist, which is possible only under ReadOnly
	lock      *lock.Lock        // nil under ReadOnly
	lost      *lostfound.Folder // nil like own
	snapshots *snapshot.Store   // empty if own is nil

	// Guarded by writing.
	needsRecovery bool        // there may be a journal or leftovers
	staged        *Staged     // the last one
	compared      knownCtimes // by the last Drift
	adoptFailed   bool        // the last Drift could not write the manifest

	recovered atomic.Pointer[Recovery]
}

// Open opens and locks the data directory at root, and finishes or rolls back what a crash left.
//
// A directory that Ignition has not seeded is not touched; the reason of the error is WaitingForGateway. If another agent has the
// directory, the error is ErrLocked and names that agent.
func Open(root string, o Options) (*Dir, error) {
	top, err := os.OpenRoot(root)
	if err != nil {
		return nil, fmt.Errorf("open the data directory: %w", err)
	}
	o = o.withDefaults()
	vol := &safe.Volume{Top: top, Log: o.Log, Now: o.Now, Around: o.Around}
	vol.NoExchange.Store(o.plain)
	d := &Dir{
		liveFiles:       liveFiles{top: top, vol: vol, maxBlob: o.MaxBlob, cur: safe.Cursor{Top: top}, buf: make([]byte, 64<<10)},
		manifestStore:   manifestStore{maxFiles: o.MaxFiles, current: format.NoManifest()},
		rewriteDetector: rewriteDetector{wanted: o.Wanted, log: o.Log},
		writeGuard:      writeGuard{readOnly: o.ReadOnly},
		o:               o, log: o.Log, path: root, snapshots: snapshot.New(nil, o.snapshotLimits()),
	}
	d.agentRecords = records.New(nil, &d.writing, d.exclusive)
	if err := d.open(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Dir) open() error {
	if !d.o.AllowUnseeded {
		if err := d.CheckSeeded(); err != nil {
			return err
		}
	}
	top := &safe.Folder{Root: d.top}
	defer top.CloseFile()
	if d.o.ReadOnly {
		return d.openReadOnly(top)
	}
	own, err := d.vol.OwnFolder(top)
	if err != nil {
		return err
	}
	d.setOwn(own)
	if d.lock, err = lock.Take(d.own, d.o.flock); err != nil {
		return err
	}
	modeProbe{d.own}.run()
	if err := guardOpenFiles(d); err != nil {
		return err
	}
	// If .stoker was removed before the lock was taken, another agent may hold another lock.
	if err := d.checkMoved(); err != nil {
		return err
	}
	if err := d.loadManifest(); err != nil {
		return err
	}
	d.PutBack()
	d.needsRecovery = true
	return recoverer{d}.recoverAndClean()
}

// openReadOnly opens what exists of .stoker, without writing.
func (d *Dir) openReadOnly(top *safe.Folder) error {
	own, err := top.Open(safe.OwnDir)
	missing := safe.NotThere(err)
	if err != nil && !missing {
		return fmt.Errorf("open %s: %w", safe.OwnDir, err)
	}
	if !missing {
		d.setOwn(own)
		modeProbe{d.own}.readOnly()
	}
	if err := guardOpenFiles(d); err != nil || missing {
		return err
	}
	if d.own.Has(journalFile) || d.own.Has(undoFile) {
		d.log.Warn("interrupted sync; files may be of two commits")
	}
	return d.loadManifest()
}

func (d *Dir) setOwn(folder *safe.Folder) {
	d.own = &safe.AgentFolder{Folder: folder, Vol: d.vol, ReadOnly: d.o.ReadOnly}
	d.manifestStore.own = d.own
	d.agentRecords = records.New(d.own, &d.writing, d.exclusive)
	d.lost = lostfound.New(d.own, d.o.LostFoundMax, d.o.LostFoundAge)
	d.snapshots = snapshot.New(d.own, d.o.snapshotLimits())
	d.singleFiles = single.New(d.own, d.lost, d.manifest, d.exclusive, d.o.MaxBlob)
}

// Close closes the directory. It waits for a running Apply.
func (d *Dir) Close() error {
	d.writing.Lock()
	defer d.writing.Unlock()
	d.reading.Lock()
	defer d.reading.Unlock()
	d.cur.Reset()
	var errs []error
	if d.lock != nil {
		errs = append(errs, d.lock.Release())
		d.lock = nil
	}
	if d.own != nil {
		d.own.Close()
		d.own = nil
		d.agentRecords.Close()
	}
	errs = append(errs, d.manifest().Close(), d.top.Close())
	d.setManifest(format.NoManifest())
	return errors.Join(errs...)
}

// Recovery describes how Open, or the next Stage, recovered from an interrupted run.
type Recovery struct {
	// From is the commit on the disk before the run; zero if there was none. Commit and Ref are those of the run.
	From, Commit plan.ID
	Ref          string
	Forward      bool // finished; otherwise rolled back
	Counts       plan.Counts
	// Paths are the sorted paths that the run wrote or deleted. The gateway may have seen either state.
	Paths []string
	Saved []Lost
}

// Recovered returns the last recovery, or nil if there was none.
func (d *Dir) Recovered() *Recovery { return d.recovered.Load() }

// CheckSeeded returns an error for a directory that Ignition has not filled yet: its image seeds only an empty directory, so
// even our lock file would leave the gateway without its data. A directory counts as seeded if it has one of
//
//   - .stoker/manifest: an agent was here before;
//   - .ignition-seed-complete: the mark of the Helm chart's init container;
//   - ignition.conf, gateway.xml or gateway.xml_clean: files at the root of every installation;
//   - config/resources/core: the resource collection of 8.3;
//   - db and projects: 8.1 with its other root files elsewhere.
func (d *Dir) CheckSeeded() error {
	folder := &safe.Folder{Root: d.top}
	defer folder.CloseFile()
	if folder.Has(safe.OwnDir, "manifest") || folder.Has("config", "resources", "core") || folder.Has("db") && folder.Has("projects") {
		return nil
	}
	for _, name := range []string{".ignition-seed-complete", "ignition.conf", "gateway.xml", "gateway.xml_clean"} {
		if fi, err := d.top.Lstat(name); err == nil && fi.Mode().IsRegular() {
			return nil
		}
	}
	return failure.New(v1alpha1.ReasonWaitingForGateway,
		"the data directory is not seeded yet (no .ignition-seed-complete, ignition.conf, gateway.xml or config/resources/core); start the gateway once, or check that the volume is the gateway's data directory")
}

// Lost is an entry of lost+found.
type Lost = lostfound.Entry

// LostAndFound lists the entries, oldest first.
func (d *Dir) LostAndFound() ([]Lost, error) { return d.lost.List() }

// LostAndFoundBytes returns the size of lost+found.
func (d *Dir) LostAndFoundBytes() (int64, error) { return d.lost.Bytes() }

// LostAndFoundMax returns the size above which the oldest folders of lost+found are removed.
func (d *Dir) LostAndFoundMax() int64 { return d.o.LostFoundMax }

// OpenLost opens the file of an entry; the caller closes it. Only regular files can be opened; a saved symbolic link is not followed.
func (d *Dir) OpenLost(l Lost) (*os.File, error) {
	f, _, err := d.lost.Open(l)
	return f, err
}

// agentRecords has the methods of a Dir for the audit record, for diffs and for notes.
type agentRecords = records.Records

const (
	// MaxDiff bounds a diff, in bytes.
	MaxDiff = records.MaxDiff
	// MaxAuditLine bounds an entry of the audit record, in bytes.
	MaxAuditLine = records.MaxAuditLine
	// DamagedNote replaces a note whose file was damaged; see Dir.Note.
	DamagedNote = records.DamagedNote
)

// ReadAudit returns the audit record of a data directory; see records.ReadAudit.
func ReadAudit(dataDir string) ([]byte, error) { return records.ReadAudit(dataDir) }

// ReadDiff returns a diff of a data directory; see records.ReadDiff.
func ReadDiff(dataDir, id string) ([]byte, error) { return records.ReadDiff(dataDir, id) }
