package fleet

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"

	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/fleet/plant"
	"stoker.io/stoker/test/gitserver"
)

// F24: no gateway of a fleet takes a commit that is not signed, and the status says why.
func TestFleetOfSignedCommits(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("no ssh-keygen on this machine")
	}
	key := repotest.NewSSHKey(t, "ed25519", "")
	file := filepath.Join(t.TempDir(), "id")
	require.NoError(t, os.WriteFile(file, []byte(key.Private), 0o600))
	p := plant.New(t, 2, func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Git.Verify = &v1alpha1.GitVerify{KeysConfigMapRef: &v1alpha1.SecretKeyRef{Name: "authors", Key: "keys"}}
	})
	for _, g := range p.Gateways() {
		g.Mount("configmap_authors/keys", key.Public)
	}
	refused := func(what string) {
		t.Helper()
		p.Eventually(what, func() bool {
			c := meta.FindStatusCondition(p.Status().Conditions, v1alpha1.ConditionReady)
			return c != nil && c.Reason == string(v1alpha1.ReasonSignatureInvalid)
		})
	}
	p.Start()
	refused("the first commit is not signed")
	for _, g := range p.Gateways() {
		assert.Empty(t, g.Title(), g.Name)
	}
	const project = `{"title": "signed", "description": "", "parent": "", "enabled": true, "inheritable": false}`
	p.Converges("signed", p.SignedCommit(file, "signed", gitserver.Write("projects/line/project.json", project)))
	p.Push("unsigned")
	refused("a later commit is not signed")
	for _, g := range p.Gateways() {
		assert.Equal(t, "signed", g.Title(), g.Name)
	}
}
