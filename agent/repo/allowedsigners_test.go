package repo

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/repo/repotest"
)

// F24: a line of allowed_signers admits a key only if OpenSSH, which git uses, admits it.
func TestAllowedSignersLikeOpenSSH(t *testing.T) {
	keygen, err := exec.LookPath("ssh-keygen")
	if err != nil {
		t.Skip("no ssh-keygen on this machine")
	}
	key := repotest.NewSSHKey(t, "ed25519", "")
	payload, signature := signedBy(t, key)
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	for options, want := range map[string]bool{
		`namespaces="git"`:                   true,
		`namespaces="g?t,!file"`:             true,
		`namespaces="!git,*"`:                false,
		`namespaces="*,!git"`:                false,
		`namespaces="*,!g*"`:                 false,
		`namespaces="!file"`:                 false,
		`namespaces="[g]it"`:                 false,
		`namespaces="file",namespaces="git"`: false,
		`namespaces=git`:                     false,
		`valid-before=20300101000000Z`:       false,
		`valid-before="20300101000000Z`:      false,
		`valid-before="20250101000000Z",valid-before="20300101000000Z"`: false,
		`valid-before="20300101000000Z",valid-before="20250101000000Z"`: false,
		`valid-after="20300101000000Z",valid-after="20250101000000Z"`:   false,
		`valid-after="20250101000000Z",valid-before="20300101000000Z"`:  true,
	} {
		t.Run(options, func(t *testing.T) {
			line, dir := "a@b "+options+" "+strings.TrimSpace(key.Public)+"\n", t.TempDir()
			signers, sig := filepath.Join(dir, "signers"), filepath.Join(dir, "sig")
			require.NoError(t, os.WriteFile(signers, []byte(line), 0o600))
			require.NoError(t, os.WriteFile(sig, signature, 0o600))
			verify := exec.CommandContext(t.Context(), keygen, "-Y", "verify", "-f", signers, "-I", "a@b", "-n", "git", "-s", sig, "-O", "verify-time=20261125120000Z")
			verify.Stdin = bytes.NewReader(payload)
			out, err := verify.CombinedOutput()
			assert.Equal(t, want, err == nil, "OpenSSH: %s", out)
			err = checkKeys(line, payload, signature, now)
			assert.Equal(t, want, err == nil, "the agent: %v", err)
		})
	}
}
