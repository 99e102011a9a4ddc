package preflight

import (
	"context"
	"encoding/json"
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

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/decode"
	"stoker.io/stoker/test/gitserver"
)

const token = "S3CR3T-1"

// world is a private repository behind HTTPS, and the Secrets that a Job mounts.
type world struct {
	repo   *gitserver.Repo
	server *gitserver.Server
	url    string
	dir    string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	root := t.TempDir()
	w := &world{repo: gitserver.NewRepo(t, filepath.Join(root, "plant.git")), dir: t.TempDir()}
	server, err := gitserver.Start(root, gitserver.Options{TLS: true, Auth: gitserver.Token(token)})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, server.Close()) })
	w.server, w.url = server, server.URL("plant.git")
	w.mount(t, "git/token", token)
	w.mount(t, "ca/ca.crt", string(server.CA()))
	return w
}

func (w *world) mount(t *testing.T, name, content string) {
	t.Helper()
	file := filepath.Join(w.dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
}

// sync returns a GatewaySync for the repository with the given profiles in YAML.
func (w *world) sync(t *testing.T, sync string) *v1alpha1.GatewaySync {
	t.Helper()
	gs, err := decode.GatewaySync(fmt.Appendf(nil, `
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: plant, namespace: plant}
spec:
  git: {repo: %q, ref: main, caSecretRef: {name: ca, key: ca.crt}, auth: {token: {secretRef: {name: git, key: token}}}}
  sync: %s
`, w.url, sync))
	require.NoError(t, err)
	return gs
}

func (w *world) look(t *testing.T, asked Input) Result {
	t.Helper()
	asked.Secrets.Dir, asked.Form = w.dir, resource.Form83
	found, err := Run(t.Context(), asked)
	require.NoError(t, err)
	raw, err := json.Marshal(found)
	require.NoError(t, err)
	assert.NotContains(t, string(raw), token, "C7 of docs/internals/threats.md")
	return found
}

func says(p []Problem) string {
	var lines []string
	for _, one := range p {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s: %s %s", one.Reason, one.Message, strings.Join(one.Gateways, ","))))
	}
	return strings.Join(lines, "\n")
}

const oneProfile = `{profiles: {default: {mappings: [{source: projects, destination: projects, required: true}]}}}`

func TestMountedCredentials(t *testing.T) {
	w := newWorld(t)
	commit := w.repo.Commit("first", gitserver.Write("projects/a/x.json", "{}"))
	gs := w.sync(t, oneProfile)
	found := w.look(t, Input{GatewaySync: gs})
	assert.Empty(t, found.Problems)
	assert.Equal(t, Result{Ref: "main", Commit: commit, Checked: []Checked{{Profile: "default", Files: 1}}, Problems: []Problem{}}, found)

	t.Run("wrong token", func(t *testing.T) {
		w.mount(t, "git/token", "S3CR3T-1-old")
		defer w.mount(t, "git/token", token)
		assert.Contains(t, says(w.look(t, Input{GatewaySync: gs}).Problems), "AuthFailed: ")
	})
	t.Run("missing mounts", func(t *testing.T) {
		other := gs.DeepCopy()
		other.Spec.Git.Auth.Token.SecretRef.Key, other.Spec.Git.CASecretRef.Name = "password", "authority"
		w.server.Forget()
		said := says(w.look(t, Input{GatewaySync: other}).Problems)
		assert.Contains(t, said, "spec.git.auth.token references key password of Secret git, which is not mounted: mount the Secret at "+w.dir+"/git, or pass --secret git/password=FILE")
		assert.Contains(t, said, "spec.git.caSecretRef references key ca.crt of Secret authority, which is not mounted")
		assert.Empty(t, w.server.Requests())
	})
	t.Run("file instead of mount", func(t *testing.T) {
		other := gs.DeepCopy()
		other.Spec.Git.Auth.Token.SecretRef.Name = "elsewhere"
		found := w.look(t, Input{GatewaySync: other, Secrets: Mounts{Files: map[string]string{"elsewhere/token": filepath.Join(w.dir, "git/token")}}})
		assert.Empty(t, found.Problems)
	})
	t.Run("process substitution", func(t *testing.T) {
		pipe := filepath.Join(t.TempDir(), "pipe")
		require.NoError(t, syscall.Mkfifo(pipe, 0o600))
		go func() { // ends after the first read of the pipe
			if f, err := os.OpenFile(pipe, os.O_WRONLY, 0); err == nil {
				_, _ = f.WriteString(token)
				_ = f.Close()
				_ = os.Remove(pipe)
			}
		}()
		found := w.look(t, Input{GatewaySync: gs, Secrets: Mounts{Files: map[string]string{"git/token": pipe}}})
		assert.Empty(t, found.Problems)
	})
	t.Run("empty secret", func(t *testing.T) {
		w.mount(t, "git/token", "\n")
		defer w.mount(t, "git/token", token)
		assert.Contains(t, says(w.look(t, Input{GatewaySync: gs}).Problems), "is empty")
	})
}

func TestRequestableRefs(t *testing.T) {
	w := newWorld(t)
	first := w.repo.Commit("first", gitserver.Write("projects/a/x.json", "{}"))
	second := w.repo.Commit("second", gitserver.Write("projects/a/x.json", "{ }"))
	w.repo.Tag("v1", first)
	w.repo.Branch("feature", w.repo.Orphan("foreign", gitserver.Write("projects/a/x.json", "[]")))
	foreign := strings.TrimSpace(w.repo.Git("rev-parse", "feature"))
	w.repo.ForcePush(second)
	gs := w.sync(t, oneProfile)
	gs.Spec.Git.AllowedRefs = []string{"main"}
	for ref, want := range map[string]string{
		"":       "",
		"main":   "",
		second:   "",
		first:    "", // behind main
		"v1":     "RefNotAllowed: a request may not name refs/tags/v1: allowedRefs of the spec admits main",
		foreign:  "RefNotAllowed: commit " + foreign,
		"absent": "RefNotFound: ",
		"a..b":   "RefNotFound: ",
	} {
		t.Run(ref, func(t *testing.T) {
			found := w.look(t, Input{GatewaySync: gs, Ref: ref})
			if want == "" {
				assert.Empty(t, found.Problems)
			} else {
				assert.Contains(t, says(found.Problems), want)
				assert.Empty(t, found.Checked)
			}
		})
	}
	gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedRef: "v1"}
	assert.Contains(t, says(w.look(t, Input{GatewaySync: gs}).Problems), "RefNotAllowed", "allowedRefs must apply to earlier requests")
	gs.Spec.Git.AllowedRefs, gs.Spec.Git.Ref = nil, first
	gs.Annotations = nil
	assert.Equal(t, first, w.look(t, Input{GatewaySync: gs}).Commit, "spec.git.ref may be any commit")
}

func TestPodMetadata(t *testing.T) {
	w := newWorld(t)
	w.repo.Commit("first", gitserver.Files(map[string]string{
		"projects/a/x.json": "{}", "north/n.txt": "{{.Labels.area}} {{.GatewayName}}", "services/line-1/projects/b/x.json": "{}",
	}))
	gs := w.sync(t, `{profiles: {default: {mappings: [{source: "{{.Labels.area}}", destination: config/x, required: true, template: true}]}}}`)
	north, south := map[string]string{"area": "north"}, map[string]string{"area": "south"}
	found := w.look(t, Input{GatewaySync: gs, Gateways: []Gateway{
		{Name: "line-1", Labels: north}, {Name: "line-2", Labels: south}, {Name: "line-3", Labels: south}, {Name: "line-4", UnreadReason: "pods cannot be listed"},
	}})
	assert.Equal(t, []Checked{{Gateway: "line-1", Profile: "default", Files: 1}}, found.Checked)
	said := says(found.Problems)
	assert.Contains(t, said, "SourceMissing: profile default: mappings[0]: the commit has no south, and the mapping is required line-2,line-3")
	assert.Len(t, found.Problems, 1, "unreadable labels must only warn")
	assert.Contains(t, strings.Join(found.Warnings, "\n"), `line-4: profile default: mappings[0]`)
	assert.Contains(t, strings.Join(found.Warnings, "\n"), "not checked, because the labels of its pod are unknown: pods cannot be listed")

	found = w.look(t, Input{GatewaySync: gs})
	assert.Empty(t, found.Problems, "a gateway that may be created later must only warn")
	assert.Contains(t, strings.Join(found.Warnings, "\n"), "the profile has no known gateway: if one is expected, name it with --gateway NAME=default")

	t.Run("service path without profiles", func(t *testing.T) {
		gs := w.sync(t, "{}")
		found := w.look(t, Input{GatewaySync: gs, Gateways: []Gateway{
			{Name: "line-1", Annotations: map[string]string{v1alpha1.AnnotationServicePath: "services/line-1"}},
			{Name: "line-2", Annotations: map[string]string{v1alpha1.AnnotationServicePath: "services/line-2"}},
			{Name: "line-3", UnreadReason: "pods cannot be listed"},
		}})
		assert.Equal(t, []Checked{{Gateway: "line-1", Files: 1}}, found.Checked)
		assert.Contains(t, says(found.Problems), "SourceMissing: ")
		assert.Len(t, found.Problems, 1)
		assert.Contains(t, strings.Join(found.Warnings, "\n"), "line-3: not checked")
		assert.Contains(t, strings.Join(w.look(t, Input{GatewaySync: gs}).Warnings, "\n"), "no files were checked")
	})
	t.Run("unknown profile", func(t *testing.T) {
		found := w.look(t, Input{GatewaySync: gs, Gateways: []Gateway{{Name: "line-1", Profile: "area"}}, Profiles: []string{"area"}})
		assert.Contains(t, says(found.Problems), "ProfileNotFound: ")
	})
}

// Without permission to list pods, the preflight checks the known gateways as far as possible. It must not fail a valid sync, but
// must report what is broken regardless of the labels.
func TestUnreadablePods(t *testing.T) {
	w := newWorld(t)
	w.repo.Commit("first", gitserver.Files(map[string]string{
		"projects/a/x.json": "{", "names/n.txt": "{{.Nope}}", "sites/north/s.txt": "s",
		"index/i.txt": `{{with .Labels}}{{index . "area"}}{{end}}{{$.PodOrdinal}}`,
	}))
	gs := w.sync(t, `{profiles: {default: {mappings: [
{source: projects, destination: projects}, {source: names, destination: a, template: true}, {source: index, destination: b, template: true},
{source: "sites/{{.Labels.area}}", destination: c, required: true}, {source: "services/{{.GatewayName}}", destination: d, required: true}]}}}`)
	found := w.look(t, Input{GatewaySync: gs, Gateways: []Gateway{{Name: "line-1", UnreadReason: "pods cannot be listed"}}})
	said, warned := says(found.Problems), strings.Join(found.Warnings, "\n")
	for _, want := range []string{"ConfigSyntaxError: profile default: projects/a/x.json", "TemplateFailed: profile default: ", "SourceMissing: profile default: mappings[4]: the commit has no services/line-1"} {
		assert.Contains(t, said, want)
	}
	assert.Equal(t, 3, strings.Count(said, "(the annotations of its pod, such as its excludes, are unknown: pods cannot be listed) line-1"))
	assert.Len(t, found.Problems, 3, said)
	assert.Contains(t, warned, "b/i.txt")
	assert.Contains(t, warned, "mappings[3]")

	found = w.look(t, Input{GatewaySync: gs, Gateways: []Gateway{{Name: "line-1", Labels: map[string]string{"area": "north"}}}})
	assert.Len(t, found.Problems, 3)
	assert.Empty(t, found.Warnings, "known labels must not warn")
}

// A missing label or mode leaves an empty path element, which is refused. If the gateway does not exist yet or its pod cannot be
// read, the value is unknown, so the preflight only warns.
func TestUnknownPathElementsOnlyWarn(t *testing.T) {
	w := newWorld(t)
	w.repo.Commit("first", gitserver.Files(map[string]string{"lines/a/x.json": "{}", "modes/x.json": "{}"}))
	gs := w.sync(t, `{profiles: {default: {mappings: [
{source: 'lines/{{index .Labels "line"}}', destination: projects}, {source: modes, destination: "config/resources/{{.DeploymentMode}}"}]}}}`)
	for name, gateways := range map[string][]Gateway{"no gateway": nil, "unread gateway": {{Name: "line-1", UnreadReason: "pods cannot be listed"}}} {
		t.Run(name, func(t *testing.T) {
			found := w.look(t, Input{GatewaySync: gs, Gateways: gateways})
			assert.Empty(t, found.Problems)
			warned := strings.Join(found.Warnings, "\n")
			assert.Contains(t, warned, "mappings[0]")
			assert.Contains(t, warned, "mappings[1]")
		})
	}
	known := Gateway{Name: "line-1", Labels: map[string]string{"line": "a"}}
	found := w.look(t, Input{GatewaySync: gs, Gateways: []Gateway{known}})
	require.Len(t, found.Problems, 1, "known labels must not warn")
	assert.Equal(t, v1alpha1.ReasonTemplateFailed, found.Problems[0].Reason)
	assert.Contains(t, found.Problems[0].Message, `gives "config/resources/", a path with an empty part`)
	known.Annotations = map[string]string{v1alpha1.AnnotationDeploymentMode: "dev"}
	assert.Empty(t, w.look(t, Input{GatewaySync: gs, Gateways: []Gateway{known}}).Problems)
}

func TestAllMappingProblemsAreReported(t *testing.T) {
	w := newWorld(t)
	w.repo.Commit("first", gitserver.Files(map[string]string{"names/n.txt": "{{.Nope}}", "projects/a/x.json": `{"a": 1}`, "lone": "x"}))
	gs := w.sync(t, `{profiles: {default: {mappings: [
{source: nowhere, destination: a, required: true}, {source: projects, destination: projects}, {source: names, destination: b, template: true},
{source: lone, destination: c, type: dir}, {source: projects, destination: d, patches: [{file: "**/x.json", set: {a: "{{.Missing}}"}}]}]}}}`)
	found := w.look(t, Input{GatewaySync: gs, Gateways: []Gateway{{Name: "line-1"}}})
	said := says(found.Problems)
	for _, want := range []string{"SourceMissing: profile default: mappings[0]", "TemplateFailed: profile default: ", "SourceMissing: profile default: mappings[3]: type is dir", "TemplateFailed: profile default: mappings[4]: patches[0]"} {
		assert.Contains(t, said, want)
	}
	assert.Len(t, found.Problems, 4, said)
}

func TestProblemsAreBounded(t *testing.T) {
	w := newWorld(t)
	files := map[string]string{}
	for i := range 2 * maxProblems {
		files[fmt.Sprintf("projects/a/x%d.json", i)] = "{"
	}
	w.repo.Commit("first", gitserver.Files(files))
	found := w.look(t, Input{GatewaySync: w.sync(t, `{profiles: {a: {mappings: [{source: projects, destination: a}]}, b: {mappings: [{source: projects, destination: projects}]}}}`)})
	assert.Len(t, found.Problems, maxProblems)
	assert.Contains(t, found.Warnings, fmt.Sprintf("there are more than %d problems", maxProblems))
}

func TestCanceledRun(t *testing.T) {
	w := newWorld(t)
	w.repo.Commit("first", gitserver.Write("projects/a/x.json", "{}"))
	w.server.Inject(gitserver.Stall(0))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for w.server.InFlight() == 0 && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	_, err := Run(ctx, Input{GatewaySync: w.sync(t, oneProfile), Secrets: Mounts{Dir: w.dir}})
	assert.ErrorIs(t, err, context.Canceled)
}

func TestSignedCommit(t *testing.T) {
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("no ssh-keygen on this machine")
	}
	w := newWorld(t)
	key := repotest.NewSSHKey(t, "ed25519", "")
	file := filepath.Join(t.TempDir(), "id")
	require.NoError(t, os.WriteFile(file, []byte(key.Private), 0o600))
	gs := w.sync(t, oneProfile)
	gs.Spec.Git.Verify = &v1alpha1.GitVerify{KeysConfigMapRef: &v1alpha1.SecretKeyRef{Name: "authors", Key: "keys"}}
	w.repo.Commit("unsigned", gitserver.Write("projects/a/x.json", "{}"))
	assert.Contains(t, says(w.look(t, Input{GatewaySync: gs}).Problems),
		"spec.git.verify.keysConfigMapRef references key keys of ConfigMap authors, which is not mounted: mount the ConfigMap at "+w.dir+"/authors, or pass --secret authors/keys=FILE")
	w.mount(t, "authors/keys", key.Public)
	found := w.look(t, Input{GatewaySync: gs})
	assert.Contains(t, says(found.Problems), "SignatureInvalid: commit ")
	assert.Empty(t, found.Checked, "no files may be checked")
	w.repo.SignedCommit(file, "signed", gitserver.Write("projects/a/x.json", `{"a": 1}`))
	assert.Empty(t, w.look(t, Input{GatewaySync: gs}).Problems)
}

func TestReferences(t *testing.T) {
	w := newWorld(t)
	const dir = "projects/line/com.inductiveautomation.perspective/"
	w.repo.Commit("first", gitserver.Write("projects/line/project.json", `{"parent": "base"}`), gitserver.Write("projects/base/project.json", `{"inheritable": true}`),
		gitserver.Write(dir+"views/Main/view.json", `{}`), gitserver.Write(dir+"page-config/config.json", `{"pages": {"/": {"viewPath": "Mian"}}}`),
		gitserver.Write("projects/line/ignition/named-query/q/resource.json", `{"attributes": {"database": "of the gateway"}}`))
	gs := w.sync(t, oneProfile)
	const text = `"projects/line/com.inductiveautomation.perspective/page-config/config.json#/pages/~1/viewPath" names the view "Mian", which the project "line" and its parents do not have (did you mean "Main"?)`
	for _, policy := range []v1alpha1.ReferencePolicy{"", v1alpha1.ReferencesIgnore, v1alpha1.ReferencesWarn} {
		t.Run("policy "+string(policy), func(t *testing.T) {
			gs := gs.DeepCopy()
			gs.Spec.Validation = &v1alpha1.ValidationSpec{References: policy}
			found := w.look(t, Input{GatewaySync: gs})
			assert.Empty(t, found.Problems)
			assert.Equal(t, []string{"profile default: " + text}, found.Warnings)
			require.Len(t, found.References, 1)
			raw, err := json.Marshal(found.References[0])
			require.NoError(t, err)
			assert.JSONEq(t, `{"file": "`+dir+`page-config/config.json", "pointer": "/pages/~1/viewPath", "kind": "view", "name": "Mian", "in": "line",
				"problem": "missing", "nearest": "Main", "profile": "default"}`, string(raw))
		})
	}
	t.Run("policy refuse", func(t *testing.T) {
		gs.Spec.Validation = &v1alpha1.ValidationSpec{References: v1alpha1.ReferencesRefuse}
		found := w.look(t, Input{GatewaySync: gs, Gateways: []Gateway{{Name: "a"}, {Name: "b"}}})
		assert.Equal(t, "ReferenceMissing: profile default: "+text+" a,b", says(found.Problems))
		assert.Len(t, found.References, 1)
	})
}
