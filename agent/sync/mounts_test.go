//go:build linux

package sync_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

const envInside = "SYNC_TEST_INSIDE"

// inside reruns the test in its own process, in namespaces that allow mounts. It returns true in that process and false in the
// parent.
func inside(t *testing.T) bool {
	t.Helper()
	if os.Getenv(envInside) == t.Name() {
		return true
	}
	if err := exec.Command("unshare", "-rm", "true").Run(); err != nil {
		t.Skipf("unshare -rm does not work here: %v", err)
	}
	cmd := exec.Command("unshare", "-rm", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), envInside+"="+t.Name())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	return false
}

// container is a process with its own mount that no other process sees, like the container of the gateway.
type container struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Reader
}

// mountsOver starts a container that mounts what over a file and ends with the test.
func mountsOver(t *testing.T, what, file string) *container {
	t.Helper()
	cmd := exec.Command("unshare", "-m", "sh", "-c",
		`mount --make-rprivate / && mount --bind "$0" "$1" && while read line; do cat "$1" 2>&1; echo; done`, what, file)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		assert.NoError(t, in.Close())
		assert.NoError(t, cmd.Wait())
	})
	return &container{t, in, bufio.NewReader(out)}
}

// sees returns the content of the file as the container sees it.
func (c *container) sees() string {
	c.t.Helper()
	_, err := io.WriteString(c.in, "\n")
	require.NoError(c.t, err)
	line, err := c.out.ReadString('\n')
	require.NoError(c.t, err)
	return strings.TrimSuffix(line, "\n")
}

// Users keep a password out of git with a placeholder in git and a Secret mounted over it. The agent sees only the file below.
// Renaming a new file over it would remove the Secret from the gateway's container.
func TestMountedSecretOverGitFile(t *testing.T) {
	if !inside(t) {
		return
	}
	b := newBench(t, simulator.Options{}).delivered()
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("SECRET"), 0o600))
	gateway := mountsOver(t, secret, filepath.Join(b.data, db, "config.json"))
	require.Equal(t, "SECRET", gateway.sees())

	b.engine.Mounts = []string{db + "/config.json"} // from the injector; the agent itself sees no mount
	b.push(gitserver.Write(db+"/config.json", `{"url": "other"}`), gitserver.Write(view, `{"two": 2}`))
	r := b.synced()
	assert.Equal(t, "SECRET", gateway.sees())
	assert.Equal(t, `{"url": "jdbc"}`, b.read(db+"/config.json"), "the file below the mount is unchanged")
	assert.Equal(t, `{"two": 2}`, b.read(view))
	assert.Contains(t, r.Message, "not synced because the gateway has mounts there: "+db+"/config.json")
	assert.Contains(t, strings.Join(r.Notes, "\n"), "remove it from git")

	b.push(gitserver.Delete(db + "/config.json"))
	b.synced()
	assert.Equal(t, "SECRET", gateway.sees())
	assert.Zero(t, b.drift(true).Files)
}

// A file mounted from a ConfigMap in the agent's container, too, cannot be replaced. It must not block the rest of the commit.
func TestMountedFileDoesNotBlock(t *testing.T) {
	if !inside(t) {
		return
	}
	b := newBench(t, simulator.Options{}).delivered()
	given, file := filepath.Join(t.TempDir(), "given"), filepath.Join(b.data, db, "config.json")
	require.NoError(t, os.WriteFile(given, []byte(`{"url": "of the ConfigMap"}`), 0o600))
	require.NoError(t, unix.Mount(given, file, "", unix.MS_BIND, ""))
	b.push(gitserver.Write(db+"/config.json", `{"url": "other"}`), gitserver.Write(view, `{"two": 2}`))
	r := b.synced()
	assert.Equal(t, `{"two": 2}`, b.read(view))
	assert.Equal(t, `{"url": "of the ConfigMap"}`, b.read(db+"/config.json"))
	assert.Contains(t, r.Message, "not synced because the gateway has mounts there: "+db+"/config.json")

	require.NoError(t, unix.Unmount(file, 0))
	b.target.Profile.ConflictPolicy = v1alpha1.ConflictGitWins
	require.Equal(t, v1alpha1.GatewaySynced, b.sync().Phase)
	assert.Equal(t, `{"url": "other"}`, b.read(db+"/config.json"), "without the mount, the same commit replaces the file")
}
