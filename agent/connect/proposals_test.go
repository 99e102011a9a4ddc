package connect

import (
	"cmp"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/propose"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/gitserver"
)

const newBranch = "refs/heads/gateway-changes/plant/site-a"

// tokenOf returns credentials with a token in key of Secret name.
func tokenOf(name, key string) *v1alpha1.TokenAuth {
	return &v1alpha1.TokenAuth{Username: "pusher", SecretRef: ref(name, key)}
}

// bidirectional returns a spec with these credentials: git for syncs, auth for proposals.
func bidirectional(address string, git *v1alpha1.Credential, auth *v1alpha1.Credential) *v1alpha1.GatewaySyncSpec {
	return &v1alpha1.GatewaySyncSpec{
		Git:           v1alpha1.GitSpec{Repo: address, Ref: "main", Auth: git},
		Bidirectional: &v1alpha1.BidirectionalSpec{Enabled: true, Auth: auth},
	}
}

// push pushes newBranch at an existing commit with the credentials for proposals, and returns the token for the forge's API.
func push(t *testing.T, spec *v1alpha1.GatewaySyncSpec, secrets Secrets, commit plan.ID) (string, error) {
	t.Helper()
	remote, token, err := NewProposalRemote(spec, spec.Bidirectional, secrets, repo.RemoteOptions{})
	if err != nil {
		return "", err
	}
	defer func() { require.NoError(t, remote.Close()) }()
	if err := remote.Push(t.Context(), newBranch, plan.ID{}, commit, nil); err != nil {
		return "", err
	}
	v, err := token(t.Context())
	return v.Reveal(), err
}

func TestProposalsOverHTTP(t *testing.T) {
	g := repotest.NewSite(t, gitserver.Options{Pushes: true, Auth: gitserver.Basic("pusher", "S3CR3T-1")})
	commit := g.Push("first", repotest.Views(1))
	dir := t.TempDir()
	write(t, filepath.Join(dir, "push", "token"), "S3CR3T-1\n")
	write(t, filepath.Join(dir, "read", "token"), "S3CR3T-2\n")
	m := Mounted{Dir: dir}
	for name, spec := range map[string]*v1alpha1.GatewaySyncSpec{
		"credentials for proposals": bidirectional(g.Address(), &v1alpha1.Credential{Token: tokenOf("read", "token")}, &v1alpha1.Credential{Token: tokenOf("push", "token")}),
		"credentials of syncs":      bidirectional(g.Address(), &v1alpha1.Credential{Token: tokenOf("push", "token")}, nil),
		"an ssh key in addition to the token": bidirectional(g.Address(), nil, &v1alpha1.Credential{
			Token: tokenOf("push", "token"), SSHKey: &v1alpha1.SSHKeyAuth{SecretRef: ref("push", "key")},
		}),
	} {
		t.Run(name, func(t *testing.T) {
			g.Git("update-ref", "-d", newBranch)
			token, err := push(t, spec, m, commit)
			require.NoError(t, err)
			assert.Equal(t, "S3CR3T-1", token)
			assert.Equal(t, commit.String(), g.Git("rev-parse", newBranch))
		})
	}
	g.Git("update-ref", "-d", newBranch)
	t.Run("a rotated token", func(t *testing.T) {
		spec := bidirectional(g.Address(), nil, &v1alpha1.Credential{Token: tokenOf("read", "token")})
		_, err := push(t, spec, m, commit)
		repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
		require.ErrorContains(t, err, "spec.bidirectional.auth")
		write(t, filepath.Join(dir, "read", "token"), "S3CR3T-1\n")
		_, err = push(t, spec, m, commit)
		require.NoError(t, err)
	})
	t.Run("no credentials", func(t *testing.T) {
		_, err := push(t, bidirectional(g.Address(), nil, nil), m, commit)
		repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
		assert.ErrorContains(t, err, "set spec.bidirectional.auth")
	})
	t.Run("the Secret is not mounted", func(t *testing.T) {
		_, err := push(t, bidirectional(g.Address(), nil, &v1alpha1.Credential{Token: tokenOf("other", "token")}), m, commit)
		repotest.RequireReason(t, v1alpha1.ReasonPodRestartNeeded, err)
		assert.ErrorContains(t, err, "spec.bidirectional.auth.token names Secret other")
	})
	t.Run("the Secret lacks the key", func(t *testing.T) {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "empty"), 0o700))
		_, err := push(t, bidirectional(g.Address(), nil, &v1alpha1.Credential{Token: tokenOf("empty", "token")}), m, commit)
		repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
		assert.ErrorContains(t, err, "spec.bidirectional.auth.token: the pod has no key token of Secret empty")
	})
}

func TestProposalsOverSSH(t *testing.T) {
	g := repotest.NewShellSite(t, gitserver.SSHOptions{Pushes: true})
	commit := g.Push("first", repotest.Views(1))
	hosts, err := g.KnownHosts()
	require.NoError(t, err)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "push", "key"), g.Key)
	write(t, filepath.Join(dir, "push", "hosts"), string(hosts))
	write(t, filepath.Join(dir, "push", "token"), "S3CR3T-1\n")
	m := Mounted{Dir: dir}
	key := &v1alpha1.SSHKeyAuth{SecretRef: ref("push", "key"), KnownHosts: &v1alpha1.SecretSource{SecretRef: ref("push", "hosts")}}
	token, err := push(t, bidirectional(g.Address(), nil, &v1alpha1.Credential{SSHKey: key, Token: tokenOf("push", "token")}), m, commit)
	require.NoError(t, err)
	assert.Equal(t, "S3CR3T-1", token)
	assert.Equal(t, commit.String(), g.Git("rev-parse", newBranch))

	for name, spec := range map[string]*v1alpha1.GatewaySyncSpec{
		"an ssh key for proposals and no token": bidirectional(g.Address(), nil, &v1alpha1.Credential{SSHKey: key}),
		"an ssh key for syncs and no token":     bidirectional(g.Address(), &v1alpha1.Credential{SSHKey: key}, nil),
	} {
		t.Run(name, func(t *testing.T) {
			g.Git("update-ref", "-d", newBranch)
			_, err := push(t, spec, m, commit)
			repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
			require.ErrorContains(t, err, "set spec.bidirectional.auth.token")
			assert.Equal(t, commit.String(), g.Git("rev-parse", newBranch), "only the forge's API needs a token; the push succeeded")
		})
	}
}

func TestProposalCredentialsOfWrongKind(t *testing.T) {
	key, token := &v1alpha1.SSHKeyAuth{SecretRef: ref("push", "key")}, tokenOf("push", "token")
	app := &v1alpha1.GitHubAppAuth{AppID: 1, InstallationID: 1, PrivateKeySecretRef: ref("push", "key")}
	const overHTTP, overSSH = "https://git.example.com/a/b.git", "git@git.example.com:a/b.git"
	for name, tt := range map[string]struct {
		spec    *v1alpha1.GatewaySyncSpec
		message string
	}{
		"https with a key":        {bidirectional(overHTTP, nil, &v1alpha1.Credential{SSHKey: key}), "spec.bidirectional.auth.sshKey works only with an ssh address"},
		"https, key of syncs":     {bidirectional(overHTTP, &v1alpha1.Credential{SSHKey: key}, nil), "git.auth.sshKey works only with an ssh address"},
		"ssh with a token":        {bidirectional(overSSH, &v1alpha1.Credential{SSHKey: key}, &v1alpha1.Credential{Token: token}), "set spec.bidirectional.auth.sshKey"},
		"ssh with a GitHub App":   {bidirectional(overSSH, nil, &v1alpha1.Credential{GitHubApp: app}), "set spec.bidirectional.auth.sshKey"},
		"ssh without credentials": {bidirectional(overSSH, nil, nil), "set spec.bidirectional.auth.sshKey"},
		"ssh with an empty auth":  {bidirectional(overSSH, nil, &v1alpha1.Credential{}), "set spec.bidirectional.auth.sshKey"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := NewProposalRemote(tt.spec, tt.spec.Bidirectional, LocalSecrets{Dir: t.TempDir()}, repo.RemoteOptions{})
			repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
			assert.ErrorContains(t, err, tt.message)
		})
	}
	t.Run("a registry", func(t *testing.T) {
		spec := bidirectional("oci://registry.example.com/plants/line", nil, &v1alpha1.Credential{Token: token})
		_, _, err := NewProposalRemote(spec, spec.Bidirectional, LocalSecrets{Dir: t.TempDir()}, repo.RemoteOptions{})
		repotest.RequireReason(t, v1alpha1.ReasonUnsupportedRepository, err)
		assert.ErrorContains(t, err, "proposals need git")
	})
	t.Run("a repository in a directory", func(t *testing.T) {
		g := gitserver.NewRepo(t, t.TempDir())
		commit := repotest.ParseID(t, g.Commit("first", repotest.Views(1)))
		_, err := push(t, bidirectional(g.Dir, nil, nil), LocalSecrets{}, commit)
		repotest.RequireReason(t, v1alpha1.ReasonUnsupportedRepository, err)
	})
}

func TestProposalsWithGitHubApp(t *testing.T) {
	root := t.TempDir()
	g := gitserver.NewRepo(t, filepath.Join(root, "plant", "site.git"))
	commit := repotest.ParseID(t, g.Commit("first", repotest.Views(1)))
	app, key, err := gitserver.NewApp(7, 42, "plant", "site")
	require.NoError(t, err)
	srv, err := gitserver.Start(root, gitserver.Options{Pushes: true, Auth: app.Auth})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Close()) })
	api := httptest.NewServer(app)
	t.Cleanup(api.Close)
	secrets := LocalSecrets{Dir: t.TempDir()}
	write(t, filepath.Join(secrets.Dir, "app", "key"), key)
	auth := &v1alpha1.GitHubAppAuth{AppID: 7, InstallationID: 42, PrivateKeySecretRef: ref("app", "key"), APIBaseURL: api.URL}
	for name, spec := range map[string]*v1alpha1.GatewaySyncSpec{
		"the app for proposals": bidirectional(srv.URL("plant/site.git"), nil, &v1alpha1.Credential{GitHubApp: auth}),
		"the app of syncs":      bidirectional(srv.URL("plant/site.git"), &v1alpha1.Credential{GitHubApp: auth}, nil),
	} {
		t.Run(name, func(t *testing.T) {
			g.Git("update-ref", "-d", newBranch)
			app.Permissions = map[string]string{"contents": "read", "pull_requests": "write"}
			_, err := push(t, spec, secrets, commit)
			repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
			require.ErrorContains(t, err, "Contents: Write and Pull requests: Write")
			app.Permissions["contents"] = "write"
			token, err := push(t, spec, secrets, commit)
			require.NoError(t, err)
			assert.NotEmpty(t, token)
			assert.Equal(t, commit.String(), g.Git("rev-parse", newBranch))
		})
	}
}

// Syncs and the election of the lead do not depend on the secrets of proposals.
func TestReachableIgnoresProposals(t *testing.T) {
	spec := bidirectional("https://git.example.com/a/b.git", nil, &v1alpha1.Credential{Token: tokenOf("push", "token")})
	m := Mounted{Dir: t.TempDir()}
	require.NoError(t, Reachable(spec, m))
	_, _, err := NewProposalRemote(spec, spec.Bidirectional, m, repo.RemoteOptions{})
	assert.True(t, failure.Is(err, v1alpha1.ReasonPodRestartNeeded), "%v", err)
	t.Run("signing key", func(t *testing.T) {
		spec := bidirectional("https://git.example.com/a/b.git", nil, nil)
		spec.Bidirectional.Signing = &v1alpha1.CommitSigning{Format: v1alpha1.SigningSSH, KeySecretRef: ref("sign", "id")}
		require.NoError(t, Reachable(spec, m))
		s := settingsOf(spec, m)
		repotest.RequireReason(t, v1alpha1.ReasonPodRestartNeeded, s.Problem)
		assert.ErrorContains(t, s.Problem, "spec.bidirectional.signing names Secret sign, which this pod does not mount")
	})
}

// settingsOf returns the Settings of a gateway that proposes changes.
func settingsOf(spec *v1alpha1.GatewaySyncSpec, secrets Secrets) *propose.Settings {
	gs := &v1alpha1.GatewaySync{Spec: *spec}
	b := gs.Spec.Bidirectional
	b.Provider, b.Debounce = "none", v1alpha1.DefaultDebounce
	b.TargetBranch = cmp.Or(b.TargetBranch, v1alpha1.DefaultTargetBranch)
	e := effective.Settings{Bidirectional: b, Profile: "line", Vars: map[string]string{"area": "7"}}
	return ProposalSettings(gs, e, propose.Identity{Namespace: "plant", Gateway: "site-a"}, secrets, repo.RemoteOptions{})
}

func TestSigningKey(t *testing.T) {
	key := repotest.NewSSHKey(t, "ed25519", "")
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "sign", "id"), key.Private)
	spec := bidirectional("https://git.example.com/a/b.git", nil, nil)
	spec.Bidirectional.Signing = &v1alpha1.CommitSigning{Format: v1alpha1.SigningSSH, KeySecretRef: ref("sign", "id")}
	for name, tc := range map[string]struct {
		secrets Secrets
		missing string // part of the error if the file is missing
	}{
		"mounted":    {Mounted{Dir: dir}, "create it"},
		"standalone": {LocalSecrets{Dir: dir}, "pass --secret sign/id=FILE"},
		"flag":       {LocalSecrets{Files: map[string]string{"sign/id": file}}, "cannot read the file that --secret sign/id=FILE names"},
	} {
		t.Run(name, func(t *testing.T) {
			write(t, file, key.Private)
			s := settingsOf(spec, tc.secrets)
			require.NoError(t, s.Problem)
			t.Cleanup(func() { require.NoError(t, s.Remote.Close()) })
			signature, err := s.Sign([]byte("tree\n\nChange\n"))
			require.NoError(t, err)
			commit := "tree\ngpgsig " + strings.ReplaceAll(strings.TrimSpace(signature), "\n", "\n ") + "\n\nChange\n"
			require.NoError(t, key.Check(commit))

			write(t, file, "\n")
			_, err = s.Sign([]byte("commit"))
			repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
			require.ErrorContains(t, err, "spec.bidirectional.signing: key id of Secret sign cannot be read")
			require.ErrorContains(t, err, "is empty")
			require.NoError(t, os.Remove(file))
			_, err = s.Sign([]byte("commit"))
			repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
			require.ErrorContains(t, err, tc.missing)
		})
	}
	t.Run("not set", func(t *testing.T) {
		s := settingsOf(bidirectional("https://git.example.com/a/b.git", nil, &v1alpha1.Credential{Token: tokenOf("sign", "id")}), LocalSecrets{Dir: dir})
		require.NoError(t, s.Problem)
		assert.Nil(t, s.Sign)
		require.NoError(t, s.Remote.Close())
	})
	t.Run("rotated", func(t *testing.T) {
		secrets := LocalSecrets{Dir: dir}
		write(t, file, key.Private)
		first := Fingerprint(spec, secrets)
		write(t, file, repotest.NewSSHKey(t, "ed25519", "").Private)
		assert.NotEqual(t, first, Fingerprint(spec, secrets))
		assert.Equal(t, []string{file}, secrets.FilesToWatch(spec))
	})
}

func TestFingerprintOfProposalSecret(t *testing.T) {
	secrets := LocalSecrets{Dir: t.TempDir()}
	spec := bidirectional("https://git.example.com/a/b.git", nil, &v1alpha1.Credential{Token: tokenOf("push", "token")})
	missing := Fingerprint(spec, secrets)
	file := write(t, filepath.Join(secrets.Dir, "push", "token"), "S3CR3T-1")
	first := Fingerprint(spec, secrets)
	assert.NotEqual(t, missing, first)
	assert.Equal(t, []string{file}, secrets.FilesToWatch(spec))
	write(t, file, "S3CR3T-2")
	assert.NotEqual(t, first, Fingerprint(spec, secrets))
}

func TestTargetBranch(t *testing.T) {
	for _, tt := range []struct{ template, want string }{
		{"", "gateway-changes/plant/site-a"},
		{"changes", "changes/site-a"},
		{"{{.Namespace}}/", "plant/site-a"},
		{"gateways/{{ .GatewayName }}-{{.Profile}}", "gateways/site-a-line"},
		{"{{.Profile | upper}}/{{.GatewayName}}", "LINE/site-a"},
		{"{{with .GatewayName}}{{.}}{{end}}", "site-a"},
		// Not all gateways would have a branch of their own:
		{"x.GatewayName", "x.GatewayName/site-a"},
		{`{{if eq .GatewayName "site-a" "site-b"}}first{{else}}{{.GatewayName}}{{end}}`, "first/site-a"},
		{"{{if .GatewayName}}changes{{end}}", "changes/site-a"},
		{"{{slice .GatewayName 0 4}}", "site/site-a"},
		{"site-a", "site-a/site-a"},
		{"site-a-x", "site-a-x/site-a"},
	} {
		t.Run(tt.template, func(t *testing.T) {
			spec := bidirectional("https://git.example.com/a/b.git", nil, nil)
			spec.Bidirectional.TargetBranch = tt.template
			s := settingsOf(spec, LocalSecrets{})
			require.NoError(t, s.Problem)
			require.NoError(t, s.Remote.Close())
			assert.Equal(t, tt.want, s.Branch)
		})
	}
	for template, message := range map[string]string{
		"{{.Vars.area}}/{{.GatewayName}}": `no entry for key "Vars" (spec.bidirectional.targetBranch can use .Namespace, .GatewayName and .Profile)`,
		"a/{{.TagProvider}}/b":            `no entry for key "TagProvider"`,
		`a/{{trim " "}}/{{.GatewayName}}`: `targetBranch gives "a//site-a", which is not a valid branch name`,
		`a/{{trim " "}}/b`:                `targetBranch gives "a//b/site-a", which is not a valid branch name`,
		"{{.GatewayName":                  "unclosed action",
		`{{required "no area" ""}}`:       "no area",
		"refs/heads/{{.GatewayName}}":     "not a valid branch name",
		`{{printf "%999s" .GatewayName}}{{printf "%999s" .GatewayName}}`: "larger than 1020 bytes",
	} {
		t.Run(template, func(t *testing.T) {
			spec := bidirectional("https://git.example.com/a/b.git", nil, nil)
			spec.Bidirectional.TargetBranch = template
			assert.ErrorContains(t, settingsOf(spec, LocalSecrets{}).Problem, message)
		})
	}
}

// The cache makes other settings when an input of them changes, and only then.
func TestProposalSettingsCache(t *testing.T) {
	spec := bidirectional("https://git.example.com/a/b.git", nil, nil)
	spec.Bidirectional.Provider, spec.Bidirectional.Debounce = "none", v1alpha1.DefaultDebounce
	spec.Bidirectional.TargetBranch = "{{.GatewayName}}-{{.Profile}}"
	var cache ProposalSettingsCache
	settings := func(profile string, vars map[string]string) *propose.Settings {
		e := effective.Settings{Bidirectional: spec.Bidirectional, Profile: profile, Vars: vars}
		s := cache.Settings(&v1alpha1.GatewaySync{Spec: *spec}, e, propose.Identity{Gateway: "site-a"}, LocalSecrets{}, repo.RemoteOptions{})
		require.NoError(t, s.Problem)
		return s
	}
	first := settings("line", nil)
	assert.Equal(t, "site-a-line", first.Branch)
	assert.Same(t, first, settings("line", map[string]string{"area": "7"}))
	second := settings("mixer", nil)
	assert.Equal(t, "site-a-mixer", second.Branch)
	spec.Git.Ref = "release"
	third := settings("mixer", nil)
	assert.Equal(t, "release", third.BaseBranch)
	require.NoError(t, third.Remote.Close())
}

// F11: a pattern with many alternatives could take unbounded time, so it is refused.
func TestPatternWithManyAlternatives(t *testing.T) {
	spec := bidirectional("https://git.example.com/a/b.git", nil, nil)
	spec.Bidirectional.WatchPaths = []string{strings.Repeat("{a,a}", 51)}
	spec.Bidirectional.Debounce = v1alpha1.DefaultDebounce
	assert.ErrorContains(t, setFromSpec(&propose.Settings{}, &v1alpha1.GatewaySync{Spec: *spec}, spec.Bidirectional, ""), "too many alternatives")
}

// P3 of docs/internals/threats.md: a resource is proposed with all of its files, even those that watchPaths do not match. So excludePatterns apply to
// each file.
func TestExcludedPathsAreNotProposed(t *testing.T) {
	spec := bidirectional("https://git.example.com/a/b.git", nil, nil)
	spec.Bidirectional.WatchPaths = []string{"projects/**"}
	spec.Bidirectional.Guardrails.ExcludePatterns = []string{"**/recipe-*.json"}
	s := settingsOf(spec, LocalSecrets{})
	for path, excluded := range map[string]bool{
		"projects/line/views/Main/recipe-1.json": true,
		"projects/line/views/Main/view.json":     false,
	} {
		t.Run(path, func(t *testing.T) {
			_, denied := s.Guard.Path(path, plan.Path("site/"+path))
			assert.Equal(t, excluded, denied)
			assert.Equal(t, !excluded, s.Watches(path))
		})
	}
}
