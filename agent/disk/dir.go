package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"stoker.io/stoker/agent/plan"
)

// Options are the settings of a Dir. The zero value is what an agent uses.
type Options struct {
	Log *slog.Logger // nil: no log
	// LostFoundMax is the size of lost+found in bytes above which its oldest folders go; 256 MiB where it is zero.
	LostFoundMax int64
	// LostFoundAge is how long a folder of lost+found stays at least, and half of how long at most; 30 days where it is zero.
	LostFoundAge time.Duration
	// AllowUnseeded takes a directory that Ignition has not seeded: for a directory that never had a gateway.
	AllowUnseeded bool
	// ReadOnly opens only to look: nothing is written, no lock is taken, what a crash left stays as it is.
	ReadOnly bool
	// MaxFiles is how many files of a gateway may be ours, at least 500,000. What is read of .stoker is bounded by it.
	MaxFiles int
	// MaxBlob is the size in bytes above which a file is not hashed: git has none of that size. 0 is no limit.
	MaxBlob int64
	// FsyncFiles is up to how many changed files are made durable one by one, above it by one syncfs; 64 where it is zero.
	FsyncFiles int
	// Wanted writes the bytes of a blob that git wanted, as plan.Objects.WriteBlob does. Drift needs it to tell a
	// re-signed resource.json from a changed one; without it each counts as changed.
	Wanted func(w io.Writer, id plan.ID) (int64, error)
	// Now is the clock; time.Now where it is nil.
	Now func() time.Time

	// For tests: a seam around each step, a file system that cannot exchange two names, and another kernel's flock.
	around func(e effect, do func() error) error
	plain  bool
	flock  func(f *os.File) error
}

func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.LostFoundMax == 0 {
		o.LostFoundMax = 256 << 20
	}
	if o.LostFoundAge == 0 {
		o.LostFoundAge = 30 * 24 * time.Hour
	}
	o.MaxFiles = max(o.MaxFiles, 500_000)
	if o.FsyncFiles == 0 {
		o.FsyncFiles = 64
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.flock == nil {
		o.flock = flock
	}
	return o
}

// Dir is a gateway's data directory. It implements plan.State. One Stage, Apply or Drift runs at a time; the methods of
// plan.State, Manifest and the lists may be called beside them.
type Dir struct {
	o    Options
	log  *slog.Logger
	path string // as Open was asked for it
	is   identity
	top  *os.Root
	own  *node // .stoker; nil where it is not there, only under ReadOnly
	lock *os.File
	// plainRename is set when the file system turned out not to know exchange.
	plainRename atomic.Bool
	noModes     sync.Map // the devices of the volumes that keep no modes; see modes.go

	work      sync.Mutex // held by what writes
	unsettled bool       // a journal or leftovers may be there
	staged    *Staged    // the last one
	pruned    time.Time  // when lost+found was last looked through
	saved     string     // the run in lost+found that was written last
	unadopted bool       // the last Drift could not write the manifest
	looked    looked     // what the last Drift saw

	mu        sync.Mutex // guards the fields below
	man       *manifest
	cur       cursor
	buf       []byte
	recovered *Recovery
}

// Open takes the data directory at root for this process and finishes, or takes back, what a crash left.
//
// A directory that Ignition has not seeded is not touched at all: the error is a failure WaitingForGateway. One that
// another agent holds is ErrLocked, and the text names the holder.
func Open(root string, o Options) (*Dir, error) {
	top, err := os.OpenRoot(root)
	if err != nil {
		return nil, fmt.Errorf("open the data directory: %w", err)
	}
	o = o.withDefaults()
	d := &Dir{o: o, log: o.Log, path: root, top: top, man: noManifest(), buf: make([]byte, 64<<10)}
	d.cur.top = top
	d.plainRename.Store(o.plain)
	if err := d.open(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Dir) open() error {
	if err := d.checkSeeded(); err != nil {
		return err
	}
	if d.o.ReadOnly {
		return d.look()
	}
	top := &node{root: d.top}
	defer func() {
		if top.f != nil {
			_ = top.f.Close() // opened for reading
		}
	}()
	var err error
	if d.own, err = d.ownFolder(top); err != nil {
		return err
	}
	if err := d.takeLock(); err != nil {
		return err
	}
	if err := d.probeModes(); err != nil {
		return fmt.Errorf("look at the modes of the data volume: %w", err)
	}
	if err := d.identify(); err != nil {
		return err
	}
	if err := d.there(); err != nil { // removed between opening and locking: another agent may have another lock
		return err
	}
	if err := d.loadManifest(); err != nil {
		return err
	}
	d.unsettled = true
	return d.settle()
}

// look opens what there is of our own folder without writing.
func (d *Dir) look() error {
	own, err := (&node{root: d.top}).open(ownDir)
	if notThere(err) {
		return d.identify()
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", ownDir, err)
	}
	d.own = own
	d.seeModes()
	if err := d.identify(); err != nil {
		return err
	}
	for _, name := range []string{journalFile, undoFile} {
		if _, err := own.root.Lstat(name); err == nil {
			d.log.Warn("a sync was interrupted and not ended yet; what is seen may be of two commits")
		}
	}
	return d.loadManifest()
}

// ownFolder opens .stoker in a directory and makes it where it is missing, for us and the owner of that directory. What is
// there and is no directory is set aside.
func (d *Dir) ownFolder(in *node) (*node, error) {
	path := in.join(ownDir)
	own, err := in.open(ownDir)
	if err == nil {
		return own, nil
	}
	if _, blocked := errors.AsType[*blockedError](err); blocked {
		if err = d.setAside(in, ownDir, err); err != nil {
			return nil, err
		}
		err = fs.ErrNotExist
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open the agent's own folder: %w", err)
	}
	parent, err := in.stat()
	if err != nil {
		return nil, err
	}
	if err := d.mkdir(in, ownDir, 0o700); err != nil {
		return nil, writing(err, "make %s", path)
	}
	if own, err = in.open(ownDir); err != nil {
		return nil, fmt.Errorf("open the agent's own folder: %w", err)
	}
	if err := errors.Join(d.ownDir(own, parent, 0o700), d.syncDir(in)); err != nil {
		own.close()
		return nil, writing(err, "make %s", path)
	}
	return own, nil
}

// ownDir gives a directory that we made the owner of another one.
func (d *Dir) ownDir(n *node, like fs.FileInfo, perm fs.FileMode) error {
	f, err := n.dirFile()
	if err != nil {
		return err
	}
	_, err = d.give(f, n.path, attrsOf(like), perm)
	return err
}

// Close lets go of the directory. An apply that runs is waited for.
func (d *Dir) Close() error {
	d.work.Lock()
	defer d.work.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cur.reset()
	var errs []error
	if d.lock != nil {
		unlock(d.lock)
		errs = append(errs, d.lock.Close())
		d.lock = nil
	}
	if d.own != nil {
		d.own.close()
		d.own = nil
	}
	errs = append(errs, d.man.close(), d.top.Close())
	d.man = noManifest()
	return errors.Join(errs...)
}

// Manifest returns the record of what is ours, as it is now. It is empty where there is none.
func (d *Dir) Manifest() plan.Manifest { return d.manifest() }

func (d *Dir) manifest() *manifest {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.man
}

// Recovery is what Open, or the next Stage, found of a run that did not end, and did with it.
type Recovery struct {
	Commit  plan.ID
	Forward bool // finished; else taken back
	// Paths are those that the run wrote or deleted, sorted: what the gateway may have seen in between.
	Paths []string
	Saved []Lost
}

// Recovered returns what became of the last run that a crash or an error had left behind, nil where there was none.
func (d *Dir) Recovered() *Recovery {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.recovered
}
