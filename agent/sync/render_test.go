package sync_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/trees"
)

const systemProperties = "config/resources/core/ignition/system-properties"

// sealedJSON returns a resource.json that a gateway signed for one file.
func sealedJSON(t *testing.T, file, content string) string {
	t.Helper()
	s, err := resource.ParseSigned([]byte("{\n  \"scope\": \"G\",\n  \"version\": 1,\n  \"restricted\": false,\n  \"overridable\": true,\n  \"files\": [\n    \"" +
		file + "\"\n  ],\n  \"attributes\": {\n    \"lastModification\": {\n      \"actor\": \"admin\",\n      \"timestamp\": \"2026-01-02T03:04:05Z\"\n    },\n" +
		"    \"lastModificationSignature\": \"00\"\n  }\n}"))
	require.NoError(t, err)
	sum, err := s.Signature(resource.Form83, func(w io.Writer, _ string) error {
		_, err := io.WriteString(w, content)
		return err
	})
	require.NoError(t, err)
	return string(s.WithSignature(sum))
}

// rendering returns a bench that renders a title, a name and a version file for its gateway.
func rendering(t *testing.T, o simulator.Options) *bench {
	b := newBench(t, o)
	b.target.Facts = plan.Facts{GatewayName: "line-1", Namespace: "north"}
	b.target.Profile.Vars = map[string]string{"site": "042"}
	b.target.Profile.SystemNameTemplate = "{{.site}}-{{.GatewayName}}"
	m := b.target.Profile.Mappings
	m[0].Template = true
	m[0].Patches = []v1alpha1.Patch{{File: "line/**/view.json", Set: map[string]v1alpha1.PatchValue{"title": "{{.site}}"}}}
	return b
}

// sealedFiles returns the edits of a commit with what the bench renders. A gateway has signed the resources.
func sealedFiles(t *testing.T) []gitserver.Edit {
	const viewJSON, name = `{"title":"none"}`, `{"systemName":"dev"}`
	return append(firstCommit(),
		gitserver.Write(view, viewJSON), gitserver.Write(viewDir+"/resource.json", sealedJSON(t, "view.json", viewJSON)),
		gitserver.Write(systemProperties+"/config.json", name), gitserver.Write(systemProperties+"/resource.json", sealedJSON(t, "config.json", name)),
		gitserver.Write("projects/line/version.txt", "{{.Ref}} {{.GatewayName}}"),
	)
}

// The signature of a rendered resource must match the gateway's own, so that the gateway rewrites nothing.
func TestRenderedResourceIsStable(t *testing.T) {
	b := rendering(t, simulator.Options{Unknowns: simulator.Unknowns{SignConfig: true}})
	b.push(sealedFiles(t)...)
	r := b.synced()
	assert.JSONEq(t, `{"title":"042"}`, b.read(view))
	assert.JSONEq(t, `{"systemName":"042-line-1"}`, b.read(systemProperties+"/config.json"))
	assert.Equal(t, "main line-1", b.read("projects/line/version.txt"))
	assert.Empty(t, r.Notes)
	sealed := map[string]string{}
	for _, dir := range []string{viewDir, systemProperties} {
		sealed[dir] = b.read(dir + "/resource.json")
		assert.Contains(t, sealed[dir], `"actor": "admin"`, "the gateway has not signed %s as external", dir)
	}
	b.gw.Requests.Reset()
	b.synced()
	assert.Empty(t, b.gw.Requests.List())

	b.target.Profile.Vars = map[string]string{"site": "043"}
	r = b.synced()
	assert.Equal(t, 4, r.Files.Modified, "%s", r.Changes)
	assert.JSONEq(t, `{"title":"043"}`, b.read(view))
	for dir, was := range sealed {
		now := b.read(dir + "/resource.json")
		assert.NotEqual(t, was, now)
		assert.Contains(t, now, `"actor": "admin"`)
	}
	assert.Zero(t, b.drift(true).Files)
}

func TestRefNameOfSameCommit(t *testing.T) {
	b := rendering(t, simulator.Options{})
	b.push(sealedFiles(t)...)
	b.synced()
	b.target.Ref, b.target.Name = "v1", ""
	r := b.synced()
	assert.Equal(t, 1, r.Files.Modified)
	assert.Equal(t, "v1 line-1", b.read("projects/line/version.txt"))
	assert.False(t, b.synced().Wrote())

	b.target.Profile.Mappings[0].Template = false
	b.target.Ref = "v2"
	b.synced()
	assert.Equal(t, "{{.Ref}} {{.GatewayName}}", b.read("projects/line/version.txt"))
}

// It is not drift if the gateway signs a rendered resource again, even for an agent that has just started and rendered nothing. An
// edit is drift.
func TestDriftOfRenderedFilesAfterRestart(t *testing.T) {
	for name, restart := range map[string]bool{"same engine": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) {
			b := rendering(t, simulator.Options{})
			b.push(sealedFiles(t)...)
			b.synced()
			if restart {
				b.again()
				b.synced()
			}
			file := filepath.Join(b.data, viewDir, "resource.json")
			rewritten := strings.Replace(b.read(viewDir+"/resource.json"), `"admin"`, `"external"`, 1)
			require.NoError(t, os.WriteFile(file, []byte(rewritten), 0o644))
			b.put(view, `{ "title": "042" }`)
			d := b.drift(false)
			assert.Zero(t, d.Files, "%+v", d)
			assert.GreaterOrEqual(t, d.Adopted, 2, "all files that the gateway signed")

			b.put(view, `{"title":"by hand"}`)
			assert.Equal(t, 1, b.drift(false).Files)
			b.target.Repair = true
			b.synced()
			assert.JSONEq(t, `{"title":"042"}`, b.read(view))
		})
	}
}

// If a commit cannot be rendered, the sync fails before any file changes.
func TestRenderFailureKeepsLastCommit(t *testing.T) {
	b := rendering(t, simulator.Options{})
	good := b.push(sealedFiles(t)...)
	b.synced()
	before := b.read(view)
	for name, c := range map[string]struct {
		edit   gitserver.Edit
		reason v1alpha1.Reason
		says   string
	}{
		"template": {gitserver.Write("projects/line/x.json", "\n{{.Nobody}}"), v1alpha1.ReasonTemplateFailed, "projects/line/x.json:2"},
		"patch":    {gitserver.Write(view, `{"title": 7}`), v1alpha1.ReasonPatchFailed, view},
		"syntax":   {gitserver.Write("projects/line/x.json", `{"a": {{.site}}x}`), v1alpha1.ReasonConfigSyntaxError, "projects/line/x.json:1"},
	} {
		t.Run(name, func(t *testing.T) {
			b.push(append(sealedFiles(t), gitserver.Write("projects/line/x.json", "{}"), c.edit)...)
			r := b.ended(v1alpha1.GatewayError, c.reason)
			assert.Contains(t, r.Message, c.says, name)
			assert.Equal(t, good, r.Commit, name)
			assert.Equal(t, before, b.read(view), name)
		})
	}
	b.push(append(sealedFiles(t), gitserver.Write("projects/line/x.json", "{}"))...)
	b.synced()
}

// If a signature does not show its form, the agent signs as the gateway's version does.
func TestSignatureFormByVersion(t *testing.T) {
	for version, form := range map[string]resource.Form{"8.3.8": resource.Form83, "8.1.44": resource.Form81} {
		t.Run(version, func(t *testing.T) {
			b := rendering(t, simulator.Options{Version: version, NoWriteBack: true})
			b.push(append(sealedFiles(t), gitserver.Write(viewDir+"/resource.json", sealedJSON(t, "view.json", "another content")))...)
			check := func() {
				t.Helper()
				s, err := resource.ParseSigned([]byte(b.read(viewDir + "/resource.json")))
				require.NoError(t, err)
				want, err := s.Signature(form, func(w io.Writer, name string) error {
					_, err := io.WriteString(w, b.read(viewDir+"/"+name))
					return err
				})
				require.NoError(t, err)
				assert.Equal(t, want, s.Stored())
			}
			b.sync()
			check()
			if form == resource.Form83 { // the REST client of 8.1 asks, too, to explain a missing route
				assert.Equal(t, 1, b.gw.Requests.Count("GET /system/gwinfo"), "the sync asks for the version once")
			}
			b.set(simulator.Down) // the engine remembers the version
			b.again()
			b.target.Profile.Vars = map[string]string{"site": "044"}
			b.sync()
			assert.JSONEq(t, `{"title":"044"}`, b.read(view))
			check()
		})
	}
}

// After a store was lost, the agent fetches only trees. It then fetches the files that it renders, as it fetches those that differ.
func TestLostStoreRendersTemplates(t *testing.T) {
	b := rendering(t, simulator.Options{})
	b.push(sealedFiles(t)...)
	b.synced()
	b.loseStore()
	b.push(gitserver.Write(db+"/config.json", `{"url": "other"}`))
	r := b.synced()
	for _, c := range r.Changes.List { // a gateway that signs its configuration has rewritten the adjacent resource.json
		assert.True(t, c.Op == plan.Adopt || c.Path == db+"/config.json" || c.Path == db+"/resource.json", "%s", r.Changes)
	}
	assert.JSONEq(t, `{"title":"042"}`, b.read(view))
	b.target.Profile.Vars = map[string]string{"site": "043"}
	b.synced()
	assert.JSONEq(t, `{"title":"043"}`, b.read(view))
	for path, content := range map[string]string{view: `{ "title": "043" }`, db + "/config.json": `{"url":"other"}`} {
		b.put(path, content)
	}
	assert.Zero(t, b.drift(false).Files)
}

// The agent reads a binary file only up to its first NUL byte. The store must not report this short read as damage.
func TestBinaryFileInTemplateMapping(t *testing.T) {
	b := rendering(t, simulator.Options{})
	binary := "\x00{{.Nobody}}" + strings.Repeat("0123456789abcdef", 20_000)
	b.push(append(sealedFiles(t), gitserver.Write("projects/line/logo.bin", binary))...)
	b.synced()
	assert.Equal(t, binary, b.read("projects/line/logo.bin"))
	b.push(gitserver.Write("projects/line/logo.bin", binary+"1"))
	r := b.synced()
	assert.Equal(t, string(repo.FetchIncremental), r.Fetch.Kind)
	assert.Equal(t, 1, r.Files.Modified)
}

// A patch changes every resource of a real gateway. A gateway that verifies all signatures must leave each one unchanged. The
// simulator computes the signatures independently.
func TestPatchedRealTreeIsStable(t *testing.T) {
	files := trees.Files(t, trees.Gateway83(t))
	b := newBench(t, simulator.Options{Mode: "dev", Unknowns: simulator.Unknowns{SignConfig: true}})
	b.engine.MaxBlob = 0
	b.target.Facts = plan.Facts{GatewayName: "line-1"}
	b.target.Profile.SystemNameTemplate, b.target.Profile.DeploymentMode = "plant-{{.GatewayName}}", "dev"
	// The permissions of that gateway do not admit our token.
	b.target.Profile.ExcludePatterns = append(v1alpha1.BuiltinExcludes(), "**/security-properties/", "**/api-token/")
	for i := range b.target.Profile.Mappings {
		b.target.Profile.Mappings[i].Patches = []v1alpha1.Patch{{
			File: "**/resource.json", Set: map[string]v1alpha1.PatchValue{"attributes.probe": "{{.GatewayName}}"},
		}}
	}
	b.push(gitserver.Files(files))
	r := b.sync()
	require.Equal(t, b.target.Commit, r.Commit, r.String())
	require.NotEmpty(t, r.Scans, r.String())
	require.Empty(t, b.gw.Data.LoadErrors())

	checked := 0
	for path, content := range files {
		before, err := resource.ParseSigned([]byte(content))
		now := b.read(path)
		if !strings.HasSuffix(path, "/"+resource.File) || err != nil || before.Stored() == "" || !strings.Contains(now, `"probe"`) {
			continue
		}
		after, err := resource.ParseSigned([]byte(now))
		require.NoError(t, err)
		want := string(before.WithSignature(after.Stored()))
		assert.Equal(t, want, withoutProbe(now), "the gateway rewrote %s", path)
		assert.NotEqual(t, before.Stored(), after.Stored())
		checked++
	}
	assert.Greater(t, checked, 400, "the tree has hundreds of signed resources")
	name := b.read("config/resources/core/ignition/system-properties/config.json")
	assert.Contains(t, name, `"systemName": "plant-line-1"`)
}

// withoutProbe removes the patched attribute.
func withoutProbe(resourceJSON string) string {
	before, after, _ := strings.Cut(resourceJSON, ",\n    \"probe\": \"line-1\"")
	return before + after
}

// F24 of docs/internals/threats.md: a commit that is not signed is never planned, and what is on the gateway stays.
func TestSignedCommits(t *testing.T) {
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("no ssh-keygen on this machine")
	}
	key := repotest.NewSSHKey(t, "ed25519", "")
	file := filepath.Join(t.TempDir(), "id")
	require.NoError(t, os.WriteFile(file, []byte(key.Private), 0o600))
	begin := func(t *testing.T) (b *bench, signed func(...gitserver.Edit) plan.ID) {
		b = newBench(t, simulator.Options{})
		b.conn.Verifier = repo.NewVerifier(v1alpha1.GitVerify{Mode: v1alpha1.VerifyHead}, "spec.git.verify.keysSecretRef",
			func() ([]byte, error) { return []byte(key.Public), nil })
		return b, func(edits ...gitserver.Edit) plan.ID {
			b.push()
			b.target.Commit = repotest.ParseID(t, b.repo.SignedCommit(file, "signed", edits...))
			return b.target.Commit
		}
	}
	t.Run("the first commit", func(t *testing.T) {
		b, _ := begin(t)
		b.push(firstCommit()...)
		r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonSignatureInvalid)
		assert.Equal(t, v1alpha1.ClassStalled, r.Class())
		assert.Nil(t, r.Changes, "no plan")
		assert.Empty(t, b.read(view))
	})
	t.Run("a later commit", func(t *testing.T) {
		b, signed := begin(t)
		good := signed(firstCommit()...)
		b.synced()
		b.push(gitserver.Write(view, `{"one": 2}`))
		unsigned := b.target.Commit
		r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonSignatureInvalid)
		assert.Equal(t, good, r.Commit)
		assert.Equal(t, `{"one": 1}`, b.read(view))
		assert.Contains(t, r.Message, "commit "+unsigned.Short()+" is not signed")

		for name, change := range map[string]func(*sync.Task){
			"forced": func(t *sync.Task) { t.Force = "now" }, "a rollback": func(t *sync.Task) { t.RequestedRollback = true },
			"a dry run": func(t *sync.Task) { t.Profile.DryRun = true }, "before the start": func(t *sync.Task) { t.BeforeStart = true },
		} {
			t.Run(name, func(t *testing.T) {
				was := b.target
				defer func() { b.target = was }()
				change(&b.target)
				b.ended(v1alpha1.GatewayError, v1alpha1.ReasonSignatureInvalid)
				assert.Equal(t, `{"one": 1}`, b.read(view))
			})
		}
		signed(gitserver.Write(view, `{"one": 3}`))
		b.synced()
		assert.Equal(t, `{"one": 3}`, b.read(view), "a signed commit after an unsigned one")
	})
	t.Run("delivered before verification", func(t *testing.T) {
		b, _ := begin(t)
		v := b.conn.Verifier
		b.conn.Verifier = nil
		b.delivered()
		b.conn.Verifier = v
		b.synced()
		b.put(view, `{"edited": true}`)
		b.target.Repair = true
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonSignatureInvalid)
		assert.Equal(t, `{"edited": true}`, b.read(view), "no file of the unsigned commit is written again")
	})
}
