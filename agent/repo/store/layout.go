package store

import (
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
)

// The layout of a store is that of a bare git repository, in a subdirectory with our own name: other files in the directory
// that the user gave are never touched.
const (
	bareDir    = "stoker.git"
	packDir    = "objects/pack"
	tipFile    = "refs/stoker/tip"
	lockName   = "stoker.lock"
	packPrefix = packDir + "/pack-"
	packExt    = ".pack"
	indexExt   = ".idx"
	partialExt = ".promisor" // git's own mark of a pack whose trees name blobs that are not there
	tempPrefix = "tmp-"
	maxNames   = 10_000 // entries of the pack directory that are read
)

// Dir returns the directory of the bare repository, as git --git-dir takes it.
func (s *Store) Dir() string { return filepath.Join(s.dir, bareDir) }

// lockStore creates the directory and takes its lock.
func lockStore(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, onDisk(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, onDisk(err)
	}
	defer func() { _ = root.Close() }()
	f, err := root.OpenFile(lockName, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, onDisk(err)
	}
	if err := lockFile(f); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("the repository's store %s is in use by another process (%w): give each agent a directory of its own", dir, err)
	}
	return f, nil
}

// openRoot opens the store's directory and creates what a bare repository needs. It is called for each piece of work, because
// another process may have removed or replaced the directory.
func (s *Store) openRoot() (*os.Root, error) {
	outer, err := os.OpenRoot(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(s.dir, 0o700); err == nil {
			outer, err = os.OpenRoot(s.dir)
		}
	}
	if err != nil {
		return nil, onDisk(err)
	}
	defer func() { _ = outer.Close() }()
	if err := makeDir(outer, bareDir); err != nil {
		return nil, err
	}
	root, err := outer.OpenRoot(bareDir)
	if err != nil {
		return nil, onDisk(err)
	}
	if err := fillBare(root); err != nil {
		_ = root.Close()
		return nil, err
	}
	return root, nil
}

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
			return onDisk(err)
		}
		if err := root.WriteFile(name, []byte(text), 0o600); err != nil {
			return onDisk(err)
		}
	}
	return nil
}

// makeDir creates a directory. If something else has its name, that is removed.
func makeDir(root *os.Root, name string) error {
	st, err := root.Lstat(name)
	if err == nil && !st.IsDir() {
		err = root.Remove(name)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return onDisk(err)
	}
	if err := root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return onDisk(err)
	}
	return nil
}

// load opens the packs. If one is damaged, the next transfer must bring everything.
func (s *Store) load() error {
	root, err := s.openRoot()
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	names, err := listPacks(root, true)
	if err != nil {
		return err
	}
	var packs []*pack
	damaged := false
	for _, name := range names {
		p, err := openPack(root, name)
		if err != nil {
			s.log.Warn("a pack of the repository's store cannot be used; the store is fetched again", "pack", name, "error", err)
			damaged = true
			continue
		}
		p.seq = int64(len(packs))
		packs = append(packs, p)
	}
	tip := readTip(root)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.packs, s.tip, s.damaged = packs, tip, damaged
	return nil
}

// asideDir holds a repository that could not be read. There is at most one.
const asideDir = bareDir + ".unreadable"

// setAside makes room for a new repository. The old one is a cache; its content is fetched again.
func (s *Store) setAside() error {
	outer, err := os.OpenRoot(s.dir)
	if err != nil {
		return onDisk(err)
	}
	defer func() { _ = outer.Close() }()
	if err := remove(outer, asideDir); err != nil {
		return err
	}
	if err := outer.Rename(bareDir, asideDir); err != nil {
		return onDisk(err)
	}
	_ = outer.RemoveAll(asideDir) // fails if it is unreadable
	return nil
}

// listPacks returns the packs, oldest first, and removes what a crash left behind: halves of a pair, and at the start, when no
// transfer uses them, temporary files.
func listPacks(root *os.Root, start bool) ([]string, error) {
	d, err := root.Open(packDir)
	if err != nil {
		return nil, onDisk(err)
	}
	defer func() { _ = d.Close() }()
	files, err := d.ReadDir(maxNames)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, onDisk(err)
	}
	have := map[string]fs.DirEntry{}
	for _, f := range files {
		have[packDir+"/"+f.Name()] = f
	}
	age := map[string]time.Time{}
	var names []string
	for path, f := range have {
		base, ext := strings.TrimSuffix(path, filepath.Ext(path)), filepath.Ext(path)
		switch {
		case strings.HasPrefix(f.Name(), tempPrefix):
			if !start {
				continue
			}
		case strings.HasPrefix(path, packPrefix) && ext == partialExt:
			if have[base+packExt] != nil && have[base+indexExt] != nil {
				continue
			}
		case !strings.HasPrefix(path, packPrefix) || (ext != packExt && ext != indexExt):
			continue // not ours
		case have[base+packExt] != nil && have[base+indexExt] != nil:
			if ext == packExt {
				if st, err := f.Info(); err == nil {
					age[base] = st.ModTime()
				}
				names = append(names, base)
			}
			continue
		}
		if err := root.RemoveAll(path); err != nil {
			return nil, onDisk(err)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		if c := age[a].Compare(age[b]); c != 0 {
			return c
		}
		return strings.Compare(a, b)
	})
	return names, nil
}

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
		return onDisk(err)
	}
	return onDisk(root.Rename(temp, tipFile))
}

// sweep removes the packs that could not be opened and so are not part of the store. It keeps temporary files, which another
// transfer may be using.
func (s *Store) sweep(root *os.Root) error {
	names, err := listPacks(root, false)
	if err != nil {
		return err
	}
	packs := s.acquire()
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

// removePack removes a pack: its index first, its mark last.
func removePack(root *os.Root, name string) error {
	return errors.Join(remove(root, name+indexExt), remove(root, name+packExt), remove(root, name+partialExt))
}

// remove removes a file or directory. It is not an error if there is none.
func remove(root *os.Root, name string) error { return onDisk(root.RemoveAll(name)) }
