package charts

import (
	"bytes"
	"debug/elf"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const root = "../.."

func stages(t *testing.T) map[string]instructions.Stage {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	require.NoError(t, err)
	tree, err := parser.Parse(bytes.NewReader(text))
	require.NoError(t, err)
	list, _, err := instructions.Parse(tree.AST, nil)
	require.NoError(t, err)
	found := map[string]instructions.Stage{}
	for _, s := range list {
		found[s.Name] = s
	}
	return found
}

func commands[T any](s instructions.Stage) []T {
	var found []T
	for _, c := range s.Commands {
		if c, ok := c.(T); ok {
			found = append(found, c)
		}
	}
	return found
}

// Every image that the chart names is a target, runs its program and nothing else, and not as root.
func TestEveryImageOfTheChartIsATargetOfTheDockerfile(t *testing.T) {
	all := stages(t)
	for _, part := range []string{"agent", "injector"} {
		require.Contains(t, all, part)
		s := all[part]
		entry := commands[*instructions.EntrypointCommand](s)
		require.Len(t, entry, 1, part)
		assert.Equal(t, []string{"/" + part}, entry[0].CmdLine, "the injector gives the agent arguments, and no command")
		copies := commands[*instructions.CopyCommand](s)
		require.Len(t, copies, 1, part)
		assert.Equal(t, "build", copies[0].From)
		assert.Equal(t, []string{"/out/" + part}, copies[0].SourcePaths)
		assert.Empty(t, commands[*instructions.RunCommand](s), "there is no shell in it")
		base := all[s.BaseName]
		users := commands[*instructions.UserCommand](base)
		require.Len(t, users, 1, "%s: base %s", part, s.BaseName)
		uid, _, _ := strings.Cut(users[0].User, ":")
		assert.Regexp(t, "^[1-9][0-9]*$", uid, "by number: runAsNonRoot asks for it")
	}
	assert.Equal(t, "$BUILDPLATFORM", all["build"].Platform)
}

// The build stage's own command, run on what .dockerignore lets into the build: static programs that know their version.
func TestTheBuildOfTheImagesBuilds(t *testing.T) {
	build := stages(t)["build"]
	runs := commands[*instructions.RunCommand](build)
	require.Len(t, runs, 1)
	command := strings.Join(runs[0].CmdLine, " ")
	source := buildContext(t)
	out := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(command, "/out/", out+"/"))
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOTOOLCHAIN=local", "GOFLAGS=-mod=readonly", "TARGETOS=linux", "TARGETARCH="+runtime.GOARCH, "VERSION=1.2.3")
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", said)
	for _, part := range []string{"agent", "injector"} {
		program, err := elf.Open(filepath.Join(out, part))
		require.NoError(t, err)
		libraries, err := program.ImportedLibraries()
		require.NoError(t, err)
		assert.Empty(t, libraries, "it is static")
		require.NoError(t, program.Close())
		version, err := exec.CommandContext(t.Context(), filepath.Join(out, part), "--version").Output()
		require.NoError(t, err)
		assert.Equal(t, "1.2.3\n", string(version))
	}
}

// buildContext copies what .dockerignore lets through.
func buildContext(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, ".dockerignore"))
	require.NoError(t, err)
	var kept []string
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "!"); ok {
			kept = append(kept, name)
		}
	}
	require.Contains(t, string(text), "\n*\n", "nothing else")
	to := t.TempDir()
	for _, name := range kept {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, name), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || strings.HasSuffix(path, "_test.go") || slices.Contains(strings.Split(path, string(filepath.Separator)), "testdata") {
				return err
			}
			relative, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if err := os.MkdirAll(filepath.Dir(filepath.Join(to, relative)), 0o755); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(to, relative), content, 0o644)
		}))
	}
	return to
}
