package render

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/configsync/kustomize"
)

func TestMain(m *testing.M) {
	builder.Main(Functions())
	os.Exit(m.Run())
}

// folder is a commit with one file.
type folder struct{ name, text string }

func (f folder) Stat(path string) (builder.Kind, error) {
	if path == f.name {
		return builder.File, nil
	}
	return builder.Nothing, nil
}

func (f folder) Fetch(context.Context, []string) (map[string][]byte, error) {
	return map[string][]byte{f.name: []byte(f.text)}, nil
}

// G5: a slow kustomization of one ConfigSync does not use up the time of others.
func TestTimeWithoutOtherKustomizations(t *testing.T) {
	other, err := builder.NewBuilder(t.Context(), "")
	require.NoError(t, err)
	defer other.Close()
	t.Run("with a kustomization", func(t *testing.T) {
		sources, err := kustomize.Read(t.Context(), folder{"kustomization.yaml", "namePrefix: x"}, ".")
		require.NoError(t, err)
		ctx, stop := context.WithCancelCause(t.Context())
		defer stop(nil)
		stopped := errors.New("the run was stopped")
		time.AfterFunc(50*time.Millisecond, func() { stop(stopped) })
		_, err = objects(ctx, Input{Layers: [][]File{{{Path: ".", Kustomization: sources}}}}, time.Nanosecond)
		require.ErrorIs(t, err, stopped, "the time has not begun")
	})
	t.Run("without one", func(t *testing.T) {
		list, err := Objects(t.Context(), Input{Layers: [][]File{{{Path: "a.yaml", Content: []byte("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}")}}}})
		require.NoError(t, err)
		require.Len(t, list, 1)
	})
}
