package connect

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/agent/gitauth"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/render"
	"stoker.io/stoker/agent/propose"
	"stoker.io/stoker/agent/propose/guard"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/api/v1alpha1/secretrefs"
	"stoker.io/stoker/api/v1alpha1/syntax"
	apivalidation "stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/giturl"
	"stoker.io/stoker/internal/secret"
)

// ProposalSettingsCache keeps the proposal settings of a gateway while the spec and the profile that they depend on stay the same.
// It creates settings with a Problem again at each call. The zero value is empty.
type ProposalSettingsCache struct {
	inputs   []any
	settings *propose.Settings
}

// Settings returns the result of ProposalSettings, from the cache if the inputs are the same. The cache closes the Remote of
// settings that it replaces. id, secrets and o must be the same at each call.
func (c *ProposalSettingsCache) Settings(gs *v1alpha1.GatewaySync, e effective.Settings, id propose.Identity, secrets Secrets, o repo.RemoteOptions) *propose.Settings {
	inputs := []any{gs.Spec.Git, e.Bidirectional, e.Profile}
	if (c.settings == nil || c.settings.Problem == nil) && reflect.DeepEqual(inputs, c.inputs) {
		return c.settings
	}
	if c.settings != nil && c.settings.Remote != nil {
		_ = c.settings.Remote.Close() // only closes connections
	}
	c.inputs, c.settings = inputs, ProposalSettings(gs, e, id, secrets, o)
	return c.settings
}

// ProposalSettings returns how a gateway proposes its changes to git, or nil if it does not. If it cannot, the Problem of the
// settings says why, and syncs go on. The caller must close their Remote if it is not nil.
func ProposalSettings(gs *v1alpha1.GatewaySync, e effective.Settings, id propose.Identity, secrets Secrets, o repo.RemoteOptions) *propose.Settings {
	b := e.Bidirectional
	if b == nil {
		return nil
	}
	s := &propose.Settings{
		Identity: id, Labels: b.PRLabels, Authors: authors(b), RepairClosed: b.OnClosed == v1alpha1.OnClosedRepair, Watches: watches(b),
		Guard: propose.Guard{Path: guardPath(b), Content: guard.Content},
	}
	if s.Problem = setFromSpec(s, gs, b, e.Profile); s.Problem != nil {
		return s
	}
	if c := b.Signing; c != nil {
		s.Sign = repo.NewSigner(c.Format, fmt.Sprintf("spec.bidirectional.signing: key %s of Secret %s", c.KeySecretRef.Key, c.KeySecretRef.Name),
			gitauth.Secret(secretrefs.ProposalSigning, c.KeySecretRef, secrets))
	}
	s.Problem = connectForge(s, gs, b, secrets, o)
	return s
}

// authors returns the git author of each gateway user.
func authors(b *v1alpha1.BidirectionalSpec) map[string]string {
	m := make(map[string]string, len(b.Authors))
	for actor, a := range b.Authors {
		m[actor] = string(a)
	}
	return m
}

// watches returns a function that reports whether watchPaths match a path and excludePatterns do not.
func watches(b *v1alpha1.BidirectionalSpec) func(string) bool {
	return func(p string) bool { return matches(b.WatchPaths, p) && !matches(b.Guardrails.ExcludePatterns, p) }
}

// guardPath returns the guard's rule for paths. It also denies paths that excludePatterns match, because a proposal contains all
// files of a changed resource, also those that are not watched.
func guardPath(b *v1alpha1.BidirectionalSpec) func(dest string, source plan.Path) (string, bool) {
	return func(dest string, source plan.Path) (string, bool) {
		if rule, denied := guard.Path(dest, string(source)); denied {
			return rule, true
		}
		if matches(b.Guardrails.ExcludePatterns, dest) {
			return "guardrails.excludePatterns", true
		}
		return "", false
	}
}

func matches(patterns []string, p string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return doublestar.MatchUnvalidated(pattern, p) })
}

// setFromSpec sets what follows from the spec, the profile's name and s.Identity alone.
func setFromSpec(s *propose.Settings, gs *v1alpha1.GatewaySync, b *v1alpha1.BidirectionalSpec, profile string) error {
	var err error
	if s.Debounce, err = effective.Debounce(b); err != nil {
		return err
	}
	if s.Limits.FileBytes, err = effective.MaxFileBytes(&b.Guardrails); err != nil {
		return err
	}
	if s.Limits.TotalBytes, err = effective.MaxTotalBytes(&b.Guardrails); err != nil {
		return err
	}
	s.Limits.Files = int(b.Guardrails.MaxFilesPerPR)
	for _, list := range [][]string{b.WatchPaths, b.Guardrails.ExcludePatterns} {
		for _, p := range list {
			if problem := apivalidation.PatternProblem(p); problem != "" {
				return invalid("the pattern %s %s", failure.Quote(p), problem)
			}
		}
	}
	if s.BaseBranch, err = baseBranch(gs, b); err != nil {
		return err
	}
	if s.Branch, err = targetBranch(b.TargetBranch, s.Identity, profile); err != nil {
		return err
	}
	ref := strings.TrimPrefix(gs.Spec.Git.Ref, "refs/heads/")
	if s.Branch == s.BaseBranch || s.Branch == ref { // the agent deletes s.Branch after a merge
		err = invalid("targetBranch is %s, which is the base branch or git.ref: name another one", failure.Quote(s.Branch))
	}
	return err
}

// invalid returns an error about spec.bidirectional. ProfilesInvalid is the reason for every invalid spec.
func invalid(format string, args ...any) error {
	return failure.New(v1alpha1.ReasonProfilesInvalid, "spec.bidirectional: "+format, args...)
}

// baseBranch returns the branch to merge into: the baseBranch of the spec, or git.ref, unless it is a commit, HEAD, or a full name
// outside refs/heads. A short name counts as a branch.
func baseBranch(gs *v1alpha1.GatewaySync, b *v1alpha1.BidirectionalSpec) (string, error) {
	if b.BaseBranch != "" {
		return strings.TrimPrefix(b.BaseBranch, "refs/heads/"), nil
	}
	ref, err := repo.ParseRef(gs.Spec.Git.Ref)
	if err != nil {
		return "", err
	}
	name := strings.TrimPrefix(ref.String(), "refs/heads/")
	if _, commit := ref.Commit(); commit || strings.HasPrefix(name, "refs/") || name == "HEAD" {
		return "", invalid("git.ref is not a branch: set baseBranch")
	}
	return name, nil
}

// targetBranch renders the name of the branch to push. Each gateway needs a branch of its own, so /<gateway> is appended unless the
// template writes the gateway's name as it is.
func targetBranch(template string, id propose.Identity, profile string) (string, error) {
	nameFor := func(gateway string) (string, error) {
		const field = "spec.bidirectional.targetBranch"
		t, err := render.Parse(field, template)
		if err != nil {
			return "", err
		}
		name, err := t.ExecuteValues(map[string]any{"Namespace": id.Namespace, "GatewayName": gateway, "Profile": profile}, 4*syntax.MaxRef)
		if err != nil {
			return "", failure.New(failure.Reason(err, v1alpha1.ReasonTemplateFailed), "%w (%s can use .Namespace, .GatewayName and .Profile)", err, field)
		}
		return string(name), nil
	}
	name, err := nameFor(id.Gateway)
	if err != nil {
		return "", err
	}
	other := id.Gateway + "-x"
	sample, err := nameFor(other) // an error means that the template tests the name
	if err != nil || !strings.Contains(sample, other) || strings.ReplaceAll(sample, other, id.Gateway) != name {
		name = strings.TrimSuffix(name, "/") + "/" + id.Gateway // a template may end with a slash
	}
	if strings.HasPrefix(name, "refs/") || syntax.RefProblem("refs/heads/"+name) != "" || syntax.RefProblem(name) != "" {
		return "", invalid("targetBranch gives %s, which is not a valid branch name", failure.Quote(name))
	}
	return name, nil
}

// connectForge creates the remote for pushes and the client of the forge.
func connectForge(s *propose.Settings, gs *v1alpha1.GatewaySync, b *v1alpha1.BidirectionalSpec, secrets Secrets, o repo.RemoteOptions) error {
	remote, token, err := NewProposalRemote(&gs.Spec, b, secrets, o)
	if err != nil {
		return err
	}
	s.Remote, s.Provider = remote, forge.NoForge
	if b.Provider == forge.NoForge {
		return nil
	}
	if s.Provider = b.Provider; s.Provider == "" {
		s.Provider = giturl.ProviderOf(gs.Spec.Git.Repo)
	}
	if s.Provider == "" {
		return invalid("the forge cannot be recognized from the host of git.repo: set provider; none only pushes the branch")
	}
	s.Forge, err = forge.New(s.Provider, forge.Config{
		Repository: gs.Spec.Git.Repo, APIBaseURL: b.APIBaseURL, Token: token, Transport: remote.APITransport(),
	})
	return err
}

// NewProposalRemote returns the git remote for pushes, and a function that returns the token for the forge's API. Both use the
// credentials of b, or those of git if b has none. The caller must Close the remote.
//
// It fails with PodRestartNeeded if the pod does not mount the secrets, with AuthFailed if the credentials cannot push to this kind
// of address, and with UnsupportedRepository for a registry. Remote and function read the secrets on each use. If one cannot be
// read, that use fails with AuthFailed and names the field.
func NewProposalRemote(gs *v1alpha1.GatewaySyncSpec, b *v1alpha1.BidirectionalSpec, secrets Secrets, o repo.RemoteOptions) (*repo.Remote, func(context.Context) (secret.String, error), error) {
	u, err := repo.ParseURL(gs.Git.Repo)
	if err != nil {
		return nil, nil, err
	}
	spec, cred := &v1alpha1.GatewaySyncSpec{Git: gs.Git, Bidirectional: b}, gitauth.ForGit(gs.Git.Auth)
	switch {
	case b.Auth != nil:
		spec.Git.Auth, cred = nil, gitauth.ForProposals(b.Auth)
	case gs.Git.Auth == nil:
		cred.Field = string(secretrefs.ProposalAuth) // git.auth is not set, so errors name the field for push credentials
	}
	if err := errors.Join(checkReadable(secretrefs.ForSync(spec), secrets), checkReadable(secretrefs.ForProposals(spec), secrets)); err != nil {
		return nil, nil, err
	}
	if err := cred.CheckPush(u); err != nil {
		return nil, nil, err
	}
	auth := cred.Auth(gs.Git.CASecretRef, secrets)
	if auth.App != nil {
		auth.App.Permissions = map[string]string{"contents": "write", "pull_requests": "write"} // to push a branch, and to open a pull request
	}
	remote, err := repo.NewRemote(u, auth, o)
	if err != nil {
		return nil, nil, err
	}
	if auth.App == nil && auth.Token == nil && !u.Local() { // a local repository has no forge, whose API needs a token
		return remote, noAPIToken, nil
	}
	return remote, remote.APIToken, nil
}

// noAPIToken is the token function of credentials without a token.
func noAPIToken(context.Context) (secret.String, error) {
	return secret.String{}, failure.New(v1alpha1.ReasonAuthFailed,
		"the API of the forge needs a token, which an ssh key does not replace: set spec.bidirectional.auth.token (beside spec.bidirectional.auth.sshKey if git.repo is an ssh address), or spec.bidirectional.provider: none")
}
