package disk

import (
	"errors"
	"io/fs"

	"stoker.io/stoker/agent/disk/safe"
)

// modeProbe detects whether the volume of .stoker keeps modes, like git's core.fileMode, and records the result in
// Volume.NoModes. On SMB shares and some FUSE file systems, each file has the mode of the mount. The executable bits of such a
// volume have no meaning.
type modeProbe struct{ *safe.AgentFolder }

// run creates a file without executable bits, and one that only its owner may execute, and checks their modes.
func (a modeProbe) run() {
	for _, perm := range []fs.FileMode{0o600, 0o700} {
		fi, err := a.sample(perm)
		if err != nil { // the volume is full or read-only
			a.Vol.Log.Debug("cannot create a file to check modes", "error", err)
			a.readOnly()
			return
		}
		a.Vol.LearnModes(fi, perm)
	}
}

// sample returns the file info of a new file with a mode.
func (a modeProbe) sample(perm fs.FileMode) (fs.FileInfo, error) {
	if err := a.Vol.Vacate(a.Folder, modesFile); err != nil {
		return nil, err
	}
	f, err := a.Vol.Create(a.Folder, modesFile, perm)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err := errors.Join(f.Close(), a.Vol.Remove(a.Folder, modesFile)); err != nil {
		a.Vol.Log.Debug("cannot remove the file that checks modes", "error", err)
	}
	return fi, err
}

// readOnly is run without writing: the manifest was created without executable bits. Without a manifest, the volume counts as one that keeps
// modes, until a staged file shows otherwise.
func (a modeProbe) readOnly() {
	if fi, err := a.Lstat(manifestFile); err == nil {
		a.Vol.LearnModes(fi, 0)
	}
}
