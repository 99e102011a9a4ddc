package storage

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/program"
)

const (
	azureAccount = "plants"
	azureKey     = "UzNDUjNULUtFWQ==" // S3CR3T-KEY
)

// startAzure starts a server with the API of Azure Blob Storage and a container, and returns its endpoint. It is an npm package.
func startAzure(t *testing.T) string {
	t.Helper()
	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Skip("npm is not installed: no server of Azure's API")
	}
	servers.Lock()
	defer servers.Unlock()
	const bin = "node_modules/.bin/azurite-blob"
	if _, err := os.Stat(bin); err != nil {
		out, err := exec.CommandContext(t.Context(), npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund").CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	dir, address := t.TempDir(), free(t)
	host, port, _ := strings.Cut(address, ":")
	file, err := filepath.Abs(bin)
	require.NoError(t, err)
	cmd := exec.Command(file, "--blobHost", host, "--blobPort", port, "--location", dir, "--silent", "--disableTelemetry")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "AZURITE_ACCOUNTS=" + azureAccount + ":" + azureKey}
	program.Start(t, "azurite", cmd)
	listens(t, address)
	endpoint := "http://" + address
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, endpoint+"/"+azureAccount+"/backups?restype=container&"+signature(time.Now().Add(time.Hour)), nil)
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusCreated, res.StatusCode)
	return endpoint
}

// signature returns a shared access signature of the account.
func signature(expires time.Time) string {
	const version, permissions, services, types = "2019-12-12", "racwdl", "b", "sco"
	until := expires.UTC().Format(time.RFC3339)
	key, _ := base64.StdEncoding.DecodeString(azureKey)
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(strings.Join([]string{azureAccount, permissions, services, types, "", until, "", "", version, ""}, "\n")))
	return url.Values{
		"sv": {version}, "sp": {permissions}, "ss": {services}, "srt": {types}, "se": {until}, "sig": {base64.StdEncoding.EncodeToString(mac.Sum(nil))},
	}.Encode()
}
