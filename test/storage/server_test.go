// Package storage tests the packages below agent/archive, and agents that use them, against real servers of object storage.
package storage

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/program"
)

var servers struct {
	sync.Mutex
	dir   string
	files map[string]string
}

func TestMain(m *testing.M) {
	var err error
	if servers.dir, err = os.MkdirTemp("", "stoker-storage-"); err != nil {
		panic(err)
	}
	servers.files = map[string]string{}
	code := program.M{Tests: m}.Run()
	_ = os.RemoveAll(servers.dir)
	os.Exit(code)
}

// build builds a server of this module's tools, once.
func build(t *testing.T, pkg string) string {
	t.Helper()
	servers.Lock()
	defer servers.Unlock()
	file, ok := servers.files[pkg]
	if ok {
		return file
	}
	file = filepath.Join(servers.dir, filepath.Base(pkg))
	out, err := exec.Command("go", "build", "-o", file, pkg).CombinedOutput()
	require.NoError(t, err, "%s", out)
	servers.files[pkg] = file
	return file
}

// free returns a free address.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	return l.Addr().String()
}

// listens waits until a server accepts connections.
func listens(t *testing.T, address string) {
	t.Helper()
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}, time.Minute, 20*time.Millisecond)
}

const (
	accessKey = "AKIDEXAMPLE"
	secretKey = "S3CR3T-KEY"
)

// credentials are those of the S3 server, as its Secret has them.
func credentials(secretKey string) string {
	return fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key=%s\n", accessKey, secretKey)
}

// startS3 starts an S3 server with a bucket, and returns its endpoint.
func startS3(t *testing.T) string {
	t.Helper()
	dir, address := t.TempDir(), free(t)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "data", "backups"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "meta"), 0o755))
	cmd := exec.Command(build(t, "github.com/versity/versitygw/cmd/versitygw"), "--access", accessKey, "--secret", secretKey, "--port", address,
		"posix", "--sidecar", filepath.Join(dir, "meta"), filepath.Join(dir, "data"))
	cmd.Env = []string{"HOME=" + dir}
	program.Start(t, "versitygw", cmd)
	listens(t, address)
	return "http://" + address
}

func text(s string) func() (secret.String, error) {
	return func() (secret.String, error) { return secret.New(s), nil }
}
