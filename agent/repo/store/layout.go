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
)

// A store is a bare git repository in the subdirectory bareDir of the directory that New gets. The store touches no other
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
// pack, the mark of a partial pack without these, and, if no transfer is running, temporary files.
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
