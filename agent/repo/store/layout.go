package store

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// A store is a bare git repository in the subdirectory bareDir of the directory that the user gave. The store touches no other
// files there, except lockName and asideDir.
const (
	bareDir    = "stoker.git"
	packDir    = "objects/pack"
	tipFile    = "refs/stoker/tip"
	lockName   = "stoker.lock"
	packPrefix = packDir + "/pack-"
	packExt    = ".pack"
	indexExt   = ".idx"
	partialExt = ".promisor" // marks a pack that lacks blobs of its trees, as in git
	tempPrefix = "tmp-"
	maxNames   = 10_000 // files of a pack directory that are read
)

// Dir returns the directory of the bare repository, as git --git-dir takes it.
func (s *Store) Dir() string { return filepath.Join(s.dir, bareDir) }

// lockStore creates the directory and locks it.
func lockStore(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, asDiskError(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, asDiskError(err)
	}
	defer func() { _ = root.Close() }()
	f, err := root.OpenFile(lockName, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, asDiskError(err)
	}
	if err := lockFile(f); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("the repository's store %s is in use by another process (%w): give each agent a directory of its own", dir, err)
	}
	return f, nil
}

// openRoot opens the repository of the store in dir, and creates what is missing. Call it again for each operation, because
// another process may have removed or replaced the directory.
func openRoot(dir string) (*os.Root, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, asDiskError(err)
	}
	outer, err := os.OpenRoot(dir)
	if err != nil {
		return nil, asDiskError(err)
	}
	defer func() { _ = outer.Close() }()
	if err := makeDir(outer, bareDir); err != nil {
		return nil, err
	}
	root, err := outer.OpenRoot(bareDir)
	if err != nil {
		return nil, asDiskError(err)
	}
	if err := fillBare(root); err != nil {
		_ = root.Close()
		return nil, err
	}
	return root, nil
}

// fillBare creates the files and directories of a bare repository that are missing.
func fillBare(root *os.Root) error {
	for _, dir := range []string{"objects", packDir, "refs", "refs/stoker"} {
		if err := makeDir(root, dir); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{
		"HEAD":   "ref: refs/stoker/tip\n",
		"config": "[core]\n\trepositoryformatversion = 0\n\tbare = true\n",
	} {
		if st, err := root.Lstat(name); err == nil && st.Mode().IsRegular() {
			continue
		}
		if err := root.RemoveAll(name); err != nil {
			return asDiskError(err)
		}
		if err := root.WriteFile(name, []byte(text), 0o600); err != nil {
			return asDiskError(err)
		}
	}
	return nil
}

// makeDir creates a directory. It removes a file with this name.
func makeDir(root *os.Root, name string) error {
	st, err := root.Lstat(name)
	if err == nil && !st.IsDir() {
		err = root.Remove(name)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return asDiskError(err)
	}
	if err := root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return asDiskError(err)
	}
	return nil
}

// load opens the packs. If one cannot be opened, the store is damaged.
func (s *Store) load() error {
	root, err := openRoot(s.dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	names, err := listPacks(root, false)
	if err != nil {
		return err
	}
	var packs []*pack
	damaged := false
	for _, name := range names {
		p, err := openPack(root, name)
		if err != nil {
			s.log.Warn("damaged pack; fetching the git store again", "pack", name, "error", err)
			damaged = true
			continue
		}
		p.seq = int64(len(packs))
		packs = append(packs, p)
	}
	s.packs.load(packs, readTip(root), damaged)
	return nil
}

// asideDir is the name of a repository that could not be read, until it can be removed.
const asideDir = bareDir + ".unreadable"

// setAside renames the repository in dir, which cannot be read, and tries to remove it.
func setAside(dir string) error {
	outer, err := os.OpenRoot(dir)
	if err != nil {
		return asDiskError(err)
	}
	defer func() { _ = outer.Close() }()
	if err := remove(outer, asideDir); err != nil {
		return err
	}
	if err := outer.Rename(bareDir, asideDir); err != nil {
		return asDiskError(err)
	}
	_ = outer.RemoveAll(asideDir) // fails if it is unreadable
	return nil
}

// listPacks returns the packs, oldest first. It removes what a crash left behind: a pack without an index, an index without a
// pack, and, if no transfer is running, temporary files.
func listPacks(root *os.Root, transferring bool) ([]string, error) {
	d, err := root.Open(packDir)
	if err != nil {
		return nil, asDiskError(err)
	}
	defer func() { _ = d.Close() }()
	files, err := d.ReadDir(maxNames)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, asDiskError(err)
	}
	have := map[string]fs.DirEntry{}
	for _, f := range files {
		have[packDir+"/"+f.Name()] = f
	}
	modified := map[string]time.Time{}
	var names []string
	for path, f := range have {
		ext := filepath.Ext(path)
		base := strings.TrimSuffix(path, ext)
		complete := have[base+packExt] != nil && have[base+indexExt] != nil
		temporary := strings.HasPrefix(f.Name(), tempPrefix)
		ours := strings.HasPrefix(path, packPrefix) && slices.Contains([]string{packExt, indexExt, partialExt}, ext)
		switch {
		case temporary && !transferring, ours && !complete:
			if err := remove(root, path); err != nil {
				return nil, err
			}
		case ours && ext == packExt:
			if st, err := f.Info(); err == nil {
				modified[base] = st.ModTime()
			}
			names = append(names, base)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(modified[a].Compare(modified[b]), strings.Compare(a, b))
	})
	return names, nil
}

// readTip returns the commit in tipFile, or zero if there is none.
func readTip(root *os.Root) plan.ID {
	b, err := root.ReadFile(tipFile)
	if err != nil {
		return plan.ID{}
	}
	id, err := plan.ParseID(strings.TrimSpace(string(b)))
	if err != nil {
		return plan.ID{}
	}
	return id
}

func writeTip(root *os.Root, id plan.ID) error {
	temp := "refs/stoker/" + tempPrefix + "tip"
	if st, err := root.Lstat(tipFile); err == nil && !st.Mode().IsRegular() {
		if err := remove(root, tipFile); err != nil {
			return err
		}
	}
	if err := root.WriteFile(temp, []byte(id.String()+"\n"), 0o600); err != nil {
		return asDiskError(err)
	}
	return asDiskError(root.Rename(temp, tipFile))
}

// removeUnknownPacks removes packs from root that are not among the known ones, because they could not be opened. It keeps
// temporary files, which another transfer may be using.
func removeUnknownPacks(root *os.Root, known *packSet) error {
	names, err := listPacks(root, true)
	if err != nil {
		return err
	}
	packs := known.acquire()
	defer releaseAll(packs)
	for _, name := range names {
		if slices.ContainsFunc(packs, func(p *pack) bool { return p.name == name }) {
			continue
		}
		if err := removePack(root, name); err != nil {
			return err
		}
	}
	return nil
}

// removePack removes a pack: the index first, and partialExt last.
func removePack(root *os.Root, name string) error {
	return errors.Join(remove(root, name+indexExt), remove(root, name+packExt), remove(root, name+partialExt))
}

// remove removes a file or a directory if it exists.
func remove(root *os.Root, name string) error { return asDiskError(root.RemoveAll(name)) }

// Limits bounds what a repository may cost. A zero field means the default.
type Limits struct {
	// Objects is the number of objects in one pack; default 4,000,000.
	Objects int
	// DeltaBytes is the inflated size of a delta, and of a blob that is its base or its result, because these need space beside
	// the packs. The default is 512 MiB: git makes no deltas of larger files (core.bigFileThreshold). Only PackBytes and
	// InflatedBytes bound other blobs: the sync decides whether a file is too large for a gateway.
	DeltaBytes int64
	// TreeBytes is the inflated size of a tree, a commit or a tag. These are read into memory. Default 32 MiB.
	TreeBytes int64
	// PackBytes is the size of one pack on disk; default 8 GiB.
	PackBytes int64
	// InflatedBytes is the sum of the inflated entries of one pack and the results of their deltas; default 64 GiB.
	InflatedBytes int64
	// DiskBytes is the size of all files of a store, for a volume that several stores share; default none. A new pack gets half of what is
	// left of it, and its index a quarter. The objects of deltas get a quarter of DiskBytes.
	DiskBytes int64
	// DeltaDepth is the length of a chain of deltas; default 4,095, the longest that git writes.
	DeltaDepth int
}

func (l Limits) withDefaults() Limits {
	setDefault(&l.Objects, 4_000_000)
	setDefault(&l.DeltaBytes, 512<<20)
	setDefault(&l.TreeBytes, 32<<20)
	setDefault(&l.PackBytes, 8<<30)
	setDefault(&l.InflatedBytes, 64<<30)
	setDefault(&l.DeltaDepth, 4095)
	return l
}

func setDefault[T int | int64](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}

// minIndexed is the disk space in bytes that an index needs for one object.
const minIndexed = 40

// within returns l, bounded by what a store that uses the given number of bytes may still use of DiskBytes.
func (l Limits) within(used int64) Limits {
	if l.DiskBytes <= 0 {
		return l
	}
	left := max(l.DiskBytes-used, 0)
	l.PackBytes = min(l.PackBytes, left/2)
	l.Objects = min(l.Objects, int(left/4/minIndexed))
	l.DeltaBytes = min(l.DeltaBytes, l.scratchBytes())
	return l
}

// scratchBytes bounds the temporary file of a scratch; 0 means no bound.
func (l Limits) scratchBytes() int64 { return max(l.DiskBytes, 0) / 4 }

// checkSize checks the inflated size that an entry of a pack claims.
func (l *Limits) checkSize(k kind, n int64) error {
	switch {
	case k.delta():
		return l.checkDeltaSize(k, n)
	case k != kindBlob && n > l.TreeBytes:
		return OverLimit("a %s is %d bytes, more than %d", k, n, l.TreeBytes)
	}
	return nil
}

// checkDeltaSize is checkSize for a delta, and for the base or the result of a delta.
func (l *Limits) checkDeltaSize(k kind, n int64) error {
	if n > l.DeltaBytes {
		return OverLimit("an object is packed as a delta and has %d bytes, more than the %d for such objects", n, l.DeltaBytes)
	}
	if k.delta() {
		return nil
	}
	return l.checkSize(k, n)
}

// OverLimit returns the error for a repository that exceeds a limit.
func OverLimit(format string, args ...any) error {
	return failure.New(v1alpha1.ReasonLimitExceeded, "the repository is over a limit: "+format, args...)
}

// ErrCorrupt is wrapped by every error that reports malformed git data.
var ErrCorrupt = errors.New("damaged git data")

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrCorrupt}, args...)...)
}

// maxTreeDepth is the maximum depth of nested directories.
const maxTreeDepth = 1 << 10
