package disk

import (
	"errors"
	"io/fs"

	"stoker.io/stoker/agent/plan"
)

// Some volumes keep no modes: on SMB shares and some FUSE file systems chmod does nothing, and each file has the mode
// of the mount. The executable bits of such a volume have no meaning.

// probeModes detects whether the volume of .stoker keeps modes, like git's core.fileMode: by a chmod of the lock file
// that must have an effect. If the chmod fails, the file may belong to another user, as all files of some shares do, or
// after the pod ran as another user. Then a new file decides.
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
	// A read-only Dir relies on these bits, so clear any left by a user or a crash.
	if err := chmod(was.Mode().Perm() &^ 0o111); err != nil {
		d.log.Debug("cannot give the lock file its mode again", "error", err)
	}
	return nil
}

// makesExecutable reports whether a file created without executable bits gets some. If no file can be created, because
// the volume is full or read-only, the manifest decides, which was created that way. Without a manifest, the volume
// counts as one that keeps modes, until a staged file shows otherwise.
func (d *Dir) makesExecutable() bool {
	fi, err := d.sample()
	if err != nil {
		d.log.Debug("no file can be made to look at the modes of the data volume", "error", err)
		fi, err = d.own.root.Lstat(manifestFile)
	}
	return err == nil && statOf(fi).Exec
}

// sample returns the file info of a file created without executable bits.
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

// seeModes is probeModes without writing: an executable lock file means a volume without modes, unless the manifest is
// not executable, because then a user changed the lock file.
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

// learnModes does the same by a staged file, for other volumes in the data directory.
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

// sameExec reports whether a file's executable bit is as wanted, as far as the volume can tell.
func (d *Dir) sameExec(fi fs.FileInfo, exec bool) bool {
	st := d.stat(fi)
	return st.NoModes || st.Exec == exec
}
