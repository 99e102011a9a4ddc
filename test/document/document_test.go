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

func TestParse(t *testing.T) {
	t.Parallel()
	assert.Equal(t, []Command{
		{"page.md", "Page", 5, "kubectl get pods --all-namespaces    # all of them"},
		{"page.md", "Page", 8, "FOO=$(date)"},
		{"page.md", "Page", 9, "for one in a b; do\ndocker push $one\ndone"},
		{"page.md", "More", 21, "helm list"},
		{"page.md", "More", 30, "mkdir -p x"},
		{"page.md", "More", 31, "unheard --of"},
		{"page.md", "More", 40, "kubectl get nodes"},
	}, Parse("page.md", page))
}

func TestShellKeepsVariables(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	s := NewShell(t, t.TempDir(), map[string]string{"myself": self}, "ONE=1")
	s.Type(t, `TWO=$(echo 2; echo 3)`)
	assert.Equal(t, "1 2\n3\n", s.Type(t, `echo "$ONE $TWO" > file; cat file`))
	assert.FileExists(t, filepath.Join(s.Dir, "file"))
	s.Type(t, "command -v myself")
	said, code := s.Try(t, "echo no >&2; exit 7")
	assert.Equal(t, "no\n", said)
	assert.Equal(t, 7, code)
	s.Watch(t, "sh -c 'echo begins; echo goes on >&2; exec sleep 600'", "begins", "goes on")
}

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
