package lostfound

import (
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// exact uses RawPath only if it fits Path and File. Otherwise it leaves the entry as it is.
func TestEntryNames(t *testing.T) {
	const file = "20261120T063000.000Z-0123456/projects/p/caf\ufffd"
	for name, l := range map[string]Entry{
		"raw name of another path":    {Path: "projects/p/caf\ufffd", RawPath: []byte("config/secret\xe9"), File: file},
		"raw name beside a valid one": {Path: "projects/p/other", RawPath: []byte("projects/p/caf\xe9"), File: file},
		"file of another path":        {Path: "projects/p/other\ufffd", RawPath: []byte("projects/p/other\xe9"), File: file},
		"no raw name":                 {Path: "projects/p/caf\ufffd", File: file},
		"only a raw name":             {RawPath: []byte("/")},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, l, l.exact()) })
	}
	saved := Entry{Path: "projects/p/caf\ufffd", RawPath: []byte("projects/p/caf\xe9"), File: file + ".1"}
	assert.Equal(t, "20261120T063000.000Z-0123456/projects/p/caf\xe9.1", saved.exact().File, "the second file of that name")
}

func TestSaveWithoutHardLinks(t *testing.T) {
	const run = "20261120T063000.000Z-0123456"
	for name, c := range map[string]struct {
		create func(path string) error
		saved  bool
	}{
		"regular file":  {func(path string) error { return os.WriteFile(path, []byte("text"), 0o600) }, true},
		"symbolic link": {func(path string) error { return os.Symlink("elsewhere", path) }, true},
		"pipe":          {func(path string) error { return syscall.Mkfifo(path, 0o600) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			require.NoError(t, c.create(filepath.Join(root, "displaced")))
			top, err := os.OpenRoot(root)
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, top.Close()) })
			vol := &safe.Volume{Top: top, Log: slog.New(slog.DiscardHandler), Now: time.Now, Around: func(e safe.Effect, do func() error) error {
				if e.Op == "link" {
					return syscall.EXDEV
				}
				return do()
			}}
			from := &safe.Folder{Root: top}
			t.Cleanup(from.CloseFile)
			own, err := vol.OwnFolder(from)
			require.NoError(t, err)
			t.Cleanup(own.Close)
			lost := New(&safe.AgentFolder{Folder: own, Vol: vol}, 1<<20, time.Hour)
			saver := lost.NewSaver(run, plan.ID{})
			require.NoError(t, saver.Save(from, "displaced", "projects/p/displaced", "neither file nor directory"))
			require.NoError(t, saver.Sync())
			list, err := lost.List()
			require.NoError(t, err)
			if !c.saved {
				assert.Empty(t, list)
				return
			}
			require.Len(t, list, 1)
			_, err = os.Lstat(filepath.Join(root, safe.OwnDir, DirName, list[0].File))
			assert.NoError(t, err)
		})
	}
}
