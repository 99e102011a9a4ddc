package safe

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// AgentFolder is the open folder .stoker, which has the agent's own files. Users and the gateway can write there, too, so the
// methods expect anything at the names of the agent's files.
type AgentFolder struct {
	*Folder
	Vol      *Volume
	ReadOnly bool // the methods that read change nothing
}

// Write replaces a file atomically; see Volume.WriteFile.
func (a *AgentFolder) Write(name string, content func(io.Writer) error) (renamed bool, err error) {
	return a.Vol.WriteFile(a.Folder, name, content)
}

// WriteBytes is Write for content in memory.
func (a *AgentFolder) WriteBytes(name string, content []byte) error {
	_, err := a.Write(name, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
	return err
}

// OpenFile opens a file for reading. If it is not a regular file, the error is ErrDamaged. If its permission bits forbid reading,
// OpenFile restores them.
func (a *AgentFolder) OpenFile(name string) (*os.File, fs.FileInfo, error) {
	f, fi, err := a.File(name, os.O_RDONLY)
	if errors.Is(err, fs.ErrPermission) && !a.ReadOnly {
		cerr := a.Vol.Effect(Effect{Op: "chmod", Path: a.Join(name)}, func() error { return a.Chmod(name, 0o600) })
		if cerr == nil {
			f, fi, err = a.File(name, os.O_RDONLY)
		}
	}
	if _, irregular := errors.AsType[*IrregularError](err); irregular {
		return nil, nil, Damaged("%w", err)
	}
	return f, fi, err
}

// Read returns the content of a file, or nil if it does not exist. A file of more than limit bytes is ErrDamaged. A nil
// AgentFolder has no files.
func (a *AgentFolder) Read(name string, limit int64) ([]byte, error) {
	if a == nil {
		return nil, nil
	}
	f, fi, err := a.OpenFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", a.Join(name), err)
	}
	defer func() { _ = f.Close() }() // opened for reading
	if fi.Size() > limit {
		return nil, Damaged("%s has %d bytes; the limit is %d", a.Join(name), fi.Size(), limit)
	}
	b := make([]byte, fi.Size())
	if _, err := io.ReadFull(f, b); err != nil {
		return nil, fmt.Errorf("read %s: %w", a.Join(name), err)
	}
	return b, nil
}

// OpenExisting opens a folder, or returns nil if there is none. A nil AgentFolder has no folders.
func (a *AgentFolder) OpenExisting(name string) (*Folder, error) {
	if a == nil {
		return nil, nil
	}
	n, err := a.Open(name)
	if NotThere(err) {
		return nil, nil
	}
	return n, err
}

// OpenOrMake opens a folder, and makes it if it is missing; see Volume.OpenOrMake.
func (a *AgentFolder) OpenOrMake(name string) (*Folder, error) {
	return a.Vol.OpenOrMake(a.Folder, name)
}

// Drop removes a file, durably. If something else has its name, Drop sets that aside.
func (a *AgentFolder) Drop(name string) error {
	err := a.Vol.Vacate(a.Folder, name)
	if err == nil {
		err = a.Vol.SyncDir(a.Folder)
	}
	return WriteError(err, "remove %s", a.Join(name))
}

// DropFolder removes a folder with its content, durably.
func (a *AgentFolder) DropFolder(name string) error {
	return errors.Join(a.Vol.ClearTree(a.Folder, name), a.Vol.SyncDir(a.Folder))
}
