package fleet

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"

	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/fleet/plant"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/ociregistry"
	"stoker.io/stoker/test/program"
)

// notLeading is what an agent logs when its term has ended. After that it no longer writes as lead.
const notLeading = `"msg":"not leading any more"`

func TestLeadFailover(t *testing.T) {
	t.Parallel()
	p := plant.New(t, 3)
	p.Start()
	p.Converges("first", p.First)
	advertisements := p.Git.Stats().Advertisements
	uploads := p.Git.Stats().UploadPacks
	t.Logf("first sync of 3 gateways: %d advertisements, %d fetches", advertisements, uploads)

	lead := p.Lead()
	require.NotNil(t, lead)
	require.Error(t, lead.Agent.End(t, syscall.SIGKILL))
	second := p.Push("second")
	p.Eventually("another agent leads", func() bool { l := p.Lead(); return l != nil && l != lead })
	lead.Start()
	p.Converges("second", second)

	old := p.Lead()
	held := p.Target().Lead.Holder
	began := time.Now()
	old.Agent.Signal(t, syscall.SIGTERM)
	require.NoError(t, old.Agent.Wait(t))
	assert.NotEqual(t, held, p.Target().Lead.Holder, "the agent must release the lock before it ends")
	p.Eventually("another agent leads", func() bool { l := p.Lead(); return l != nil && l != old })
	t.Logf("handed over in %s", time.Since(began))
	third := p.Push("third")
	old.Start()
	p.Converges("third", third)
}

// C4: A lead's process is stopped for longer than its lock is valid. When it resumes, another agent leads,
// and the old lead overwrites neither the target nor the status.
func TestSuspendedLeadOverwritesNothing(t *testing.T) {
	t.Parallel()
	p := plant.New(t, 2)
	p.Start()
	p.Converges("first", p.First)
	old := p.Lead()
	require.NotNil(t, old)
	old.Agent.Signal(t, syscall.SIGSTOP)
	second := p.Push("second")
	p.Eventually("another agent leads", func() bool { l := p.Lead(); return l != nil && l != old })
	next := p.Lead()
	p.Eventually("the running gateway has the commit", func() bool { return next.Title() == "second" })
	target := p.Target()
	assert.Equal(t, second, target.Commit)
	// A watch starts with the current objects, so the new lead must have replaced the last status of the
	// old one first.
	p.Eventually("the status names the second commit", func() bool { st := p.Status(); return st.Target != nil && st.Target.Commit == second })

	seen := p.Watch()
	old.Agent.Signal(t, syscall.SIGCONT)
	p.Converges("second", second)
	p.Eventually("the suspended agent stops leading", func() bool { return strings.Contains(old.Agent.Log.String(), notLeading) })
	require.NotEmpty(t, seen())
	for _, gs := range seen() {
		assert.Equal(t, second, gs.Status.Target.Commit, "the suspended lead must not write a status")
		assert.Len(t, gs.Status.DiscoveredGateways, 2)
	}
	assert.Equal(t, next, p.Lead())
	assert.Equal(t, target.Lead.Transitions, p.Target().Lead.Transitions)
	assert.Equal(t, second, p.Target().Commit)
}

// An outage of the API server only delays the fleet. The gateways keep running.
func TestFleetSurvivesAPIServerOutage(t *testing.T) {
	t.Parallel()
	p := plant.NewIn(t, kubetest.Control(t, kubetest.Private()), 2)
	p.Start()
	p.Converges("first", p.First)
	lead := p.Lead()
	require.NotNil(t, lead)
	p.Cluster.Kill(t, kubetest.APIServer)
	second := p.Push("second")
	p.Eventually("no agent leads", func() bool { return strings.Contains(lead.Agent.Log.String(), notLeading) })
	for _, g := range p.Gateways() {
		assert.Equal(t, "first", g.Title())
	}
	p.Cluster.Start(t, kubetest.APIServer)
	p.Converges("second", second)
}

// F32: the lead resolves a tag of a registry, and all gateways run its artifact: after a push under the same tag, and after a rollback to the
// artifact that no tag has any more.
func TestRegistry(t *testing.T) {
	t.Parallel()
	registry := ociregistry.Start(t)
	push := func(title string) string {
		return registry.Push("stable", ociregistry.Files(t, map[string]string{
			"projects/line/project.json": fmt.Sprintf(`{"title": %q, "description": "", "parent": "", "enabled": true, "inheritable": false}`, title),
		}), map[string]string{"org.opencontainers.image.revision": title})
	}
	push("one")
	lines := document.Open(t)
	p := plant.NewAt(t, kubetest.Control(t), "line", "line", 3, func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Git.Repo, gs.Spec.Git.Ref = registry.Repo(), "stable"
	})
	p.Start()
	runs := func(title, other string) string {
		t.Helper()
		p.Eventually(title+" everywhere", func() bool {
			c := p.Target().Commit
			return c != "" && c != other && p.Ready(c)
		})
		commit := p.Target().Commit
		p.Converges(title, commit)
		return commit
	}
	first := runs("one", "")
	assert.Equal(t, "refs/tags/stable", p.Target().RefName)
	push("two")
	second := runs("two", first)

	// No tag has the first artifact any more, and each agent knows it from its store.
	shell := terminal(t, p, t.TempDir())
	shell.Type(t, "stoker rollback line --to "+first[:7])
	p.Converges("one", first)
	assert.Equal(t, first, p.Target().Ref)

	// A push ends the rollback, as one to a branch does.
	push("three")
	third := runs("three", first)
	assert.NotEqual(t, second, third)
	t.Run("by digest", func(t *testing.T) {
		digest := push("four")
		fourth := runs("four", third)
		push("five")
		fifth := runs("five", fourth)
		assert.NotEqual(t, fourth, fifth)
		admin := office(t, p.Cluster, map[string]string{})
		admin.Dir = t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(admin.Dir, "cosign.pub"), nil, 0o600))
		for c := range lines.Of("docs/how-to/registry.md") {
			if strings.HasPrefix(c.Text, "kubectl") {
				admin.Type(t, c.Text)
				continue
			}
			shell.Type(t, strings.Replace(c.Text, "sha256:6e6f…", digest, 1))
		}
		p.Converges("four", fourth)
		assert.Equal(t, digest, p.Target().Ref)
	})
}

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

// oldestCompatible is the oldest commit whose agents and commands work beside those of this tree. It stands for the last release until there is one.
// Before it, reports and targets had other fields; see the formats in docs/reference/compatibility.md.
const oldestCompatible = "3c03957b834f"

// lastRelease returns the tag of the last release before this commit, or oldestCompatible.
func lastRelease(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("git", "tag", "--list", "v*", "--merged", "HEAD", "--no-contains", "HEAD", "--sort=-version:refname").Output()
	require.NoError(t, err)
	if tags := strings.Fields(string(out)); len(tags) > 0 {
		return tags[0]
	}
	return oldestCompatible
}

// While a release is installed, old and new agents of a GatewaySync work together, whichever of them leads, and so do commands.
func TestVersionSkew(t *testing.T) {
	t.Parallel()
	release := lastRelease(t)
	old := map[string]string{"agent": program.BuildAt(t, release, "agent"), "hooks": program.BuildAt(t, release, "hooks")}
	now := map[string]string{"agent": program.Build(t, "agent"), "hooks": program.Build(t, "hooks")}
	for name, c := range map[string]struct{ lead, follower, command string }{
		"old lead":    {old["agent"], now["agent"], now["hooks"]},
		"new lead":    {now["agent"], old["agent"], now["hooks"]},
		"old command": {now["agent"], now["agent"], old["hooks"]},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := plant.New(t, 2)
			who := newPerson(t, p)
			who.binary = c.command
			gw := p.Gateways()
			gw[0].StartProgram(c.lead)
			p.Eventually("the first agent leads", func() bool { return p.Lead() == gw[0] })
			gw[1].StartProgram(c.follower)
			requests(t, p, who)
			assert.Equal(t, gw[0], p.Lead(), "the lead must not have changed")
			commit := p.Status().LastGood.Commit

			t.Run("the other agent leads", func(t *testing.T) {
				require.NoError(t, gw[0].Agent.End(t, syscall.SIGTERM))
				p.Eventually("the second agent leads", func() bool { return p.Lead() == gw[1] })
				gw[0].StartProgram(c.follower)
				p.Converges("fourth", commit)
				last := p.Push("last")
				p.Converges("last", last)
			})
		})
	}
}
