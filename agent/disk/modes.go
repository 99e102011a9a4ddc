package disk

import (
	"errors"
	"io/fs"
	"os"

	"stoker.io/stoker/agent/disk/lock"
	"stoker.io/stoker/agent/disk/safe"
)

// modeProbe detects whether the volume of .stoker keeps modes, like git's core.fileMode, and records the result in
// Volume.NoModes. On SMB shares and some FUSE file systems, chmod does nothing, and each file has the mode of the mount. The
// executable bits of such a volume have no meaning.
type modeProbe struct{ *safe.AgentFolder }

// run checks that a chmod of the lock file has an effect. The chmod fails if the file belongs to another user, as all files of
// some shares do, or because the pod ran as another user before. Then run creates a file and checks its mode.
func (a modeProbe) run(locked *os.File) error {
	before, err := locked.Stat()
	if err != nil {
		return err
	}
	perm, path := before.Mode().Perm(), a.Join(lock.FileName)
	chmod := func(perm fs.FileMode) error {
		return a.Vol.Effect(safe.Effect{Op: "chmod", Path: path}, func() error { return locked.Chmod(perm) })
	}
	if err := chmod(perm ^ 0o100); err != nil {
		if safe.StatOf(before).Exec && a.makesExecutable() {
			a.foundNoModes(before)
		} else {
			a.Vol.Log.Debug("cannot change the mode of the lock file", "error", err)
		}
		return nil
	}
	after, err := locked.Stat()
	if err != nil {
		return err
	}
	if after.Mode() == before.Mode() {
		a.foundNoModes(after)
		return nil
	}
	// A read-only Dir relies on these bits, so clear any left by a user or a crash.
	if err := chmod(perm &^ 0o111); err != nil {
		a.Vol.Log.Debug("cannot restore the mode of the lock file", "error", err)
	}
	return nil
}

// foundNoModes records that the volume of a file keeps no modes.
func (a modeProbe) foundNoModes(fi fs.FileInfo) {
	a.Vol.Log.Info("data volume ignores modes; executable bits not compared")
	a.Vol.NoModes.Store(safe.AttrsOf(fi).Dev, true)
}

// makesExecutable reports whether a file created without executable bits gets some. If no file can be created, because
// the volume is full or read-only, the mode of the manifest decides, because it was also created without executable bits.
// Without a manifest, the volume counts as one that keeps modes, until a staged file shows otherwise.
func (a modeProbe) makesExecutable() bool {
	fi, err := a.sample()
	if err != nil {
		a.Vol.Log.Debug("cannot create a file to check modes", "error", err)
		fi, err = a.Lstat(manifestFile)
	}
	return err == nil && safe.StatOf(fi).Exec
}

// sample returns the file info of a file created without executable bits.
func (a modeProbe) sample() (fs.FileInfo, error) {
	if err := a.Vol.Vacate(a.Folder, modesFile); err != nil {
		return nil, err
	}
	f, err := a.Vol.Create(a.Folder, modesFile, 0o600)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err := errors.Join(f.Close(), a.Vol.Remove(a.Folder, modesFile)); err != nil {
		a.Vol.Log.Debug("cannot remove the file that checks modes", "error", err)
	}
	return fi, err
}

// readOnly is run without writing. Because run clears the executable bits of the lock file, an executable one means that the
// volume keeps no modes. But if the manifest is not executable, a user changed the mode of the lock file.
func (a modeProbe) readOnly() {
	fi, err := a.Lstat(lock.FileName)
	if err != nil || !safe.StatOf(fi).Exec {
		return
	}
	if man, err := a.Lstat(manifestFile); err == nil && !safe.StatOf(man).Exec {
		return
	}
	a.Vol.NoModes.Store(safe.AttrsOf(fi).Dev, true)
}
