package document

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	scripts "stoker.io/stoker/test/program"
)

const page = `# Page

Text, and ` + "`kubectl get code`" + ` in it.

    kubectl get pods \
      --all-namespaces    # all of them

    FOO=$(date)
    for one in a b; do
      docker push $one
    done
    stoker get [flags]

## More

    0000000 → 8c1f2ab: 42 created
    kubectl: what a program says

1. An item:

       helm list

   kubectl get text

- Another,
    kubectl that goes on

` + "```sh\n# a comment\nmkdir -p x\nunheard --of\n```\n" + "\n```yaml\nkubectl: no command\nmake: up\n```\n\n```\nkubectl get nodes\nsome output\n```\n"

// Other tests check what these commands do. This one checks only that make has the targets.
func TestMakeTargets(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("no make on this machine")
	}
	lines := Open(t)
	s := NewShell(t, Root(t), nil, "MAKEFLAGS=n")
	for _, document := range []string{"README.md", "docs/how-to/air-gap.md", "docs/how-to/installation.md", "docs/internals/performance.md"} {
		for c := range lines.Of(document) {
			assert.Contains(t, s.Type(t, c.Text), "go ", c.Text)
		}
	}
}

func TestDocumentedHostKeys(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("no ssh-keygen on this machine")
	}
	lines := Open(t)
	scan := filepath.Join(t.TempDir(), "ssh-keyscan") // simulates a host, with the key of the page
	scripts.Script(t, scan, "#!/bin/sh\necho \"$1 $(cat identity.pub)\"\n")
	s := NewShell(t, t.TempDir(), map[string]string{"ssh-keyscan": scan})
	for c := range lines.Of("docs/how-to/git.md") {
		s.Type(t, c.Text)
	}
	private, err := os.ReadFile(filepath.Join(s.Dir, "identity"))
	require.NoError(t, err)
	key, err := ssh.ParsePrivateKey(private)
	require.NoError(t, err)
	public, err := os.ReadFile(filepath.Join(s.Dir, "identity.pub"))
	require.NoError(t, err)
	assert.Contains(t, string(public), string(ssh.MarshalAuthorizedKey(key.PublicKey()))[:60])
}
