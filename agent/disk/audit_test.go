package disk

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/records"
)

func TestDiffReports(t *testing.T) {
	noon := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	t.Run("ten reports are kept", func(t *testing.T) {
		root := seeded(t)
		d := open(t, root, Options{})
		var ids []string
		for i := range 12 {
			id, err := d.AddDiff("area-4", noon, fmt.Append(nil, i))
			require.NoError(t, err)
			ids = append(ids, id)
		}
		assert.Equal(t, "area-4-diff-20261124-120000.json", ids[0])
		assert.Equal(t, "area-4-diff-20261124-120011.json", ids[11], "one report a second")
		for i, id := range ids {
			b, err := ReadDiff(root, id)
			require.NoError(t, err)
			if i < 2 {
				assert.Nil(t, b, id)
			} else {
				assert.Equal(t, fmt.Sprint(i), string(b))
			}
		}
	})
	t.Run("names", func(t *testing.T) {
		root := seeded(t)
		d := open(t, root, Options{})
		put(t, root, ".stoker/history/notes.txt", "a user's")
		put(t, root, ".stoker/history/a-diff-20261124-120000.json.new", "half")
		long, err := d.AddDiff(strings.Repeat("a", 253), noon, []byte("x"))
		require.NoError(t, err)
		b, err := ReadDiff(root, long)
		require.NoError(t, err)
		assert.Equal(t, "x", string(b))
		assert.NoFileExists(t, filepath.Join(root, ".stoker/history/a-diff-20261124-120000.json.new"))
		assert.FileExists(t, filepath.Join(root, ".stoker/history/notes.txt"))
		_, err = d.AddDiff("../x", noon, nil)
		assert.Error(t, err)
		_, err = d.AddDiff("x", noon, make([]byte, MaxDiff+1))
		assert.Error(t, err)
		for _, id := range []string{"", "../manifest", "a-diff-20261124-120000.json", "a/../b-diff-20261124-120000.json", "notes.txt"} {
			b, err := ReadDiff(root, id)
			assert.NoError(t, err, id)
			assert.Nil(t, b, id)
		}
	})
	for name, stamp := range map[string]string{"an impossible date": "99999999-999999", "the last date": "99991231-235959"} {
		t.Run("a name with "+name, func(t *testing.T) {
			root := seeded(t)
			d := open(t, root, Options{})
			put(t, root, ".stoker/history/x-diff-"+stamp+".json", "the gateway's")
			one, err := d.AddDiff("a", noon, []byte("1"))
			require.NoError(t, err)
			two, err := d.AddDiff("a", noon, []byte("2"))
			require.NoError(t, err)
			assert.NotEqual(t, one, two)
		})
	}
	t.Run("a link instead of the directory", func(t *testing.T) {
		root := seeded(t)
		d := open(t, root, Options{})
		require.NoError(t, os.Symlink("../projects", filepath.Join(root, ".stoker/history")))
		id, err := d.AddDiff("a", noon, []byte("x"))
		require.NoError(t, err)
		assert.NoFileExists(t, filepath.Join(root, "projects", id))
		b, err := ReadDiff(root, id)
		require.NoError(t, err)
		assert.Equal(t, "x", string(b))
	})
}

func TestAudit(t *testing.T) {
	read := func(t *testing.T, root string) string {
		b, err := ReadAudit(root)
		require.NoError(t, err)
		return string(b)
	}
	t.Run("a restart keeps the lines", func(t *testing.T) {
		root := seeded(t)
		assert.Empty(t, read(t, root))
		d, err := Open(root, Options{})
		require.NoError(t, err)
		require.NoError(t, d.AddAudit([]byte(`{"a":1}`)))
		require.NoError(t, d.Close())
		require.NoError(t, open(t, root, Options{}).AddAudit([]byte(`{"a":2}`)))
		assert.Equal(t, "{\"a\":1}\n{\"a\":2}\n", read(t, root))
	})
	t.Run("the oldest lines are dropped", func(t *testing.T) {
		root := seeded(t)
		d := open(t, root, Options{})
		pad := strings.Repeat("x", 8000)
		for i := range 140 {
			require.NoError(t, d.AddAudit(fmt.Appendf(nil, "%d %s", i, pad)))
		}
		got := read(t, root)
		assert.LessOrEqual(t, len(got), records.MaxAudit)
		lines := strings.Split(strings.TrimSpace(got), "\n")
		assert.Greater(t, len(got), records.MaxAudit-10_000)
		assert.True(t, strings.HasPrefix(lines[0], fmt.Sprint(140-len(lines), " ")), "the record starts with a complete line")
		assert.True(t, strings.HasPrefix(lines[len(lines)-1], "139 "))
	})
	t.Run("a line that is too long, two lines", func(t *testing.T) {
		d := open(t, seeded(t), Options{})
		assert.Error(t, d.AddAudit(make([]byte, records.MaxAuditLine+1)))
		assert.Error(t, d.AddAudit([]byte("a\nb")))
	})
	t.Run("a record without a final newline", func(t *testing.T) {
		root := seeded(t)
		d := open(t, root, Options{})
		put(t, root, ".stoker/audit.jsonl", `{"a":`)
		require.NoError(t, d.AddAudit([]byte("b")))
		assert.Equal(t, "{\"a\":\nb\n", read(t, root))
	})
	t.Run("a link instead of .stoker", func(t *testing.T) {
		root := seeded(t)
		put(t, root, "elsewhere/audit.jsonl", "a user's")
		require.NoError(t, os.Symlink("elsewhere", filepath.Join(root, ".stoker")))
		_, err := ReadAudit(root)
		assert.Error(t, err)
	})
	// F21: the gateway's programs write below the data directory.
	for name, place := range map[string]func(t *testing.T, name string){
		"link":      func(t *testing.T, name string) { require.NoError(t, os.Symlink("../ignition.conf", name)) },
		"directory": func(t *testing.T, name string) { require.NoError(t, os.MkdirAll(filepath.Join(name, "x"), 0o700)) },
		"too large": func(t *testing.T, name string) {
			require.NoError(t, os.WriteFile(name, make([]byte, records.MaxAudit+1), 0o600))
		},
	} {
		t.Run("set aside/"+name, func(t *testing.T) {
			root := seeded(t)
			d := open(t, root, Options{})
			place(t, filepath.Join(root, ".stoker/audit.jsonl"))
			if b, err := ReadAudit(root); name == "too large" {
				assert.Len(t, b, records.MaxAudit)
			} else {
				assert.Error(t, err)
			}
			require.NoError(t, d.AddAudit([]byte("b")))
			assert.Equal(t, "b\n", read(t, root))
			b, err := os.ReadFile(filepath.Join(root, "ignition.conf"))
			require.NoError(t, err)
			assert.Equal(t, "wrapper", string(b))
		})
	}
}
