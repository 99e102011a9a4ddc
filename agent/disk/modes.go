package disk

import (
	"errors"
	"io/fs"

	"stoker.io/stoker/agent/plan"
)

// Some volumes keep no modes: on SMB shares and in some FUSE file systems chmod does nothing, and each file has the bits
// of the mount. What such a volume says of a file's executable bits was written by nobody.

// probeModes finds out whether the volume of .stoker keeps modes, as git's core.fileMode does: by a chmod, here of the
// lock file, that has to be seen. Where the chmod itself fails, the file may be another user's, as all are on some shares, or
// as this one is where the pod ran as another user before: then a file that we make tells.
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
	case err != nil && statOf(was).Exec && d.makesExecutable():
		d.log.Info("the data volume keeps no modes; whether a file is executable is not compared", "error", err)
		d.noModes.Store(attrsOf(was).dev, true)
		return nil
	case err != nil:
		d.log.Debug("the mode of the lock file cannot be changed; the data volume counts as one that keeps modes", "error", err)
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

// makesExecutable reports whether a file comes out executable that is made as one that is not. Where none can be made, as the
// volume is full, or read-only for now, the manifest tells, which was made so. Without one nothing is known, and the volume
// counts as one that keeps modes: what is staged on it tells.
func (d *Dir) makesExecutable() bool {
	fi, err := d.sample()
	if err != nil {
		d.log.Debug("no file can be made to look at the modes of the data volume", "error", err)
		fi, err = d.own.root.Lstat(manifestFile)
	}
	return err == nil && statOf(fi).Exec
}

// sample says what becomes of a file that is made as one that is not executable.
func (d *Dir) sample() (fs.FileInfo, error) {
	if err := d.vacate(d.own, modesFile); err != nil {
		return nil, err
	}
	f, err := d.create(d.own, modesFile, 0o600)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err := errors.Join(f.Close(), d.remove(d.own, modesFile)); err != nil {
		d.log.Debug("cannot remove the file that was made to look at the modes", "error", err)
	}
	return fi, err
}

// seeModes is probeModes for who must not write: nobody but a volume without modes makes the lock file executable, or else
// somebody who could not make so the manifest that was written since.
func (d *Dir) seeModes() {
	fi, err := d.own.root.Lstat(lockFile)
	if err != nil || !statOf(fi).Exec {
		return
	}
	if man, err := d.own.root.Lstat(manifestFile); err == nil && !statOf(man).Exec {
		return
	}
	d.noModes.Store(attrsOf(fi).dev, true)
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
