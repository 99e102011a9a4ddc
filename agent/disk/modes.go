package disk

import (
	"io/fs"

	"stoker.io/stoker/agent/plan"
)

// Some volumes keep no modes: on SMB shares and in some FUSE file systems chmod does nothing, and each file has the bits
// of the mount. What such a volume says of a file's executable bits was written by nobody.

// probeModes finds out whether the volume of .stoker keeps modes, as git's core.fileMode does: by a chmod, here of the
// lock file, that has to be seen. Where the chmod itself fails, nothing is known, and it counts as one that does.
func (d *Dir) probeModes() error {
	was, err := d.lock.Stat()
	if err != nil {
		return err
	}
	path := d.own.join(lockFile)
	chmod := func(perm fs.FileMode) error {
		return d.effect(effect{op: "chmod", path: path}, func() error { return d.lock.Chmod(perm) })
	}
	switch err := chmod(was.Mode().Perm() ^ 0o100); {
	case err != nil && statOf(was).Exec: // nobody but the mount of a share that belongs to another user gave it that
		d.log.Info("the data volume keeps no modes; whether a file is executable is not compared", "error", err)
		d.noModes.Store(attrsOf(was).dev, true)
		return nil
	case err != nil:
		d.log.Debug("cannot tell whether the data volume keeps modes", "error", err)
		return nil
	}
	is, err := d.lock.Stat()
	if err != nil {
		return err
	}
	if is.Mode() == was.Mode() {
		d.log.Info("the data volume keeps no modes; whether a file is executable is not compared")
		d.noModes.Store(attrsOf(is).dev, true)
		return nil
	}
	// Who only looks goes by these bits, so that none stay that somebody gave it, or that a crash left.
	if err := chmod(was.Mode().Perm() &^ 0o111); err != nil {
		d.log.Debug("cannot give the lock file its mode again", "error", err)
	}
	return nil
}

// seeModes is probeModes for who must not write: nobody but a volume without modes makes the lock file executable.
func (d *Dir) seeModes() {
	if fi, err := d.own.root.Lstat(lockFile); err == nil && statOf(fi).Exec {
		d.noModes.Store(attrsOf(fi).dev, true)
	}
}

// learnModes sees it by a staged file, for the other volumes that the data directory is made of.
func (d *Dir) learnModes(fi fs.FileInfo, perm fs.FileMode) {
	if (fi.Mode()^perm)&0o111 != 0 {
		d.noModes.Store(attrsOf(fi).dev, true)
	}
}

func (d *Dir) stat(fi fs.FileInfo) plan.Stat {
	st := statOf(fi)
	_, st.NoModes = d.noModes.Load(attrsOf(fi).dev)
	return st
}

// sameExec reports whether a file is executable as it should be, as far as that can be told.
func (d *Dir) sameExec(fi fs.FileInfo, exec bool) bool {
	st := d.stat(fi)
	return st.NoModes || st.Exec == exec
}
