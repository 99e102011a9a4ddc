package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// A large run writes files while its source reads the next ones.
func TestReadAhead(t *testing.T) {
	const last = "projects/p/099"
	want := tree{}
	for i := range 100 {
		want[fmt.Sprintf("projects/p/%03d", i)] = file{content: strings.Repeat(string(rune('a'+i%26)), i*i*40)} // 40 of them are large
	}
	bySize := map[plan.ID]int64{}
	for _, f := range want {
		bySize[plan.BlobID([]byte(f.content))] = int64(len(f.content))
	}
	order := func(id plan.ID) int64 { return bySize[id] }
	stage := func(t *testing.T, o Options, src Source) (*Staged, string, error) {
		root := seeded(t)
		o.FsyncFiles = 1
		d := open(t, root, o)
		s, err := d.Stage(t.Context(), planFor(t, d, want), order, src)
		return s, root, err
	}
	t.Run("all files", func(t *testing.T) {
		s, root, err := stage(t, Options{}, want.source())
		require.NoError(t, err)
		_, err = s.Apply(t.Context(), head(want))
		require.NoError(t, err)
		got := readTree(t, root)
		for path, f := range want {
			assert.True(t, strings.HasSuffix(got[path], f.content), path)
		}
	})
	failed := errors.New("no more")
	for name, src := range map[string]Source{
		"the source fails": func(w io.Writer, c plan.Change) error {
			if c.Path == last {
				return failed
			}
			return want.source()(w, c)
		},
		"the source fails in a large file": func(w io.Writer, c plan.Change) error {
			err := want.source()(w, c)
			if c.Path == last {
				return failed
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, root, err := stage(t, Options{}, src)
			require.ErrorIs(t, err, failed)
			assertNoLeftovers(t, root)
		})
	}
	t.Run("other bytes", func(t *testing.T) {
		_, root, err := stage(t, Options{}, func(w io.Writer, c plan.Change) error {
			if c.Path == "projects/p/010" {
				_, err := io.WriteString(w, "other")
				return err
			}
			return want.source()(w, c)
		})
		require.ErrorContains(t, err, "stage projects/p/010: expected blob")
		assertNoLeftovers(t, root)
	})
	t.Run("the disk is full", func(t *testing.T) {
		files, read := 0, 0
		_, _, err := stage(t, Options{Around: func(e safe.Effect, do func() error) error {
			if e.Op == "fill" {
				if files++; files == 5 {
					return syscall.ENOSPC
				}
			}
			return do()
		}}, func(w io.Writer, c plan.Change) error {
			read++
			return want.source()(w, c)
		})
		require.ErrorIs(t, err, syscall.ENOSPC)
		assert.Less(t, read, 5+2*aheadBlobs, "the source must not be read to its end")
	})
	t.Run("canceled", func(t *testing.T) {
		root := seeded(t)
		d := open(t, root, Options{FsyncFiles: 1})
		ctx, cancel := context.WithCancel(t.Context())
		_, err := d.Stage(ctx, planFor(t, d, want), order, func(w io.Writer, c plan.Change) error {
			if c.Path == "projects/p/050" {
				cancel()
			}
			return want.source()(w, c)
		})
		require.ErrorIs(t, err, context.Canceled)
		assertNoLeftovers(t, root)
	})
}
