package connect

import (
	"fmt"
	"log/slog"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/render"
	"stoker.io/stoker/agent/propose"
	"stoker.io/stoker/agent/propose/guard"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Proposing keeps the Settings of a gateway until something that they depend on changes.
type SettingsCache struct {
	inputs   []any
	settings *propose.Settings
}

// Settings returns those of the function Settings.
func (p *SettingsCache) Settings(gs *v1alpha1.GatewaySync, e v1alpha1.Effective, f plan.Facts, secrets Secrets, o repo.RemoteOptions, log *slog.Logger) *propose.Settings {
	f.Ref, f.Commit = "", ""
	of := []any{gs.Name, gs.Spec.Git, e.Bidirectional, e.Vars, e.DeploymentMode, e.TagProvider, f}
	if (p.settings == nil || p.settings.Problem == nil) && reflect.DeepEqual(of, p.inputs) {
		return p.settings
	}
	if p.settings != nil && p.settings.Remote != nil {
		_ = p.settings.Remote.Close() // only closes connections
	}
	p.inputs, p.settings = of, Settings(gs, e, f, secrets, o, log)
	return p.settings
}

// Settings returns how a gateway sends changes back to git, nil if it does not. What keeps it from doing so is in their Problem:
// no sync fails for it. The caller closes their Remote.
func Settings(gs *v1alpha1.GatewaySync, e v1alpha1.Effective, f plan.Facts, secrets Secrets, o repo.RemoteOptions, log *slog.Logger) *propose.Settings {
	b := e.Bidirectional
	if b == nil {
		return nil
	}
	s := &propose.Settings{
		Identity: propose.Identity{Namespace: f.Namespace, Gateway: f.GatewayName},
		Labels:   b.PRLabels, Authors: authors(b), Revert: b.OnClosed == v1alpha1.OnClosedRevert, Watches: watches(b),
		Guard: propose.Guard{Path: paths(b), Content: guard.Content},
	}
	f.Vars = e.Vars
	if err := fill(s, gs, b, f); err != nil {
		s.Problem = err
		return s
	}
	if c := b.Signing; c != nil {
		s.Sign = repo.NewSigner(c.Format, fmt.Sprintf("spec.bidirectional.signing: key %s of Secret %s", c.KeySecretRef.Key, c.KeySecretRef.Name),
			secretReader(v1alpha1.SecretProposalSigning, c.KeySecretRef, secrets))
	}
	if err := connectForge(s, gs, b, secrets, o, log); err != nil {
		s.Problem = err
	}
	return s
}

func authors(b *v1alpha1.BidirectionalSpec) map[string]string {
	m := make(map[string]string, len(b.Authors))
	for actor, a := range b.Authors {
		m[actor] = string(a)
	}
	return m
}

// watches returns the predicate of watchPaths without excludePatterns.
func watches(b *v1alpha1.BidirectionalSpec) func(string) bool {
	return func(p string) bool { return matches(b.WatchPaths, p) && !matches(b.Guardrails.ExcludePatterns, p) }
}

// paths returns the guard's rules for paths. excludePatterns are among them, because a resource is proposed with all of its files, watched
// or not.
func paths(b *v1alpha1.BidirectionalSpec) func(dest string, source plan.Path) (string, bool) {
	return func(dest string, source plan.Path) (string, bool) {
		if rule, denied := guard.Path(dest, string(source)); denied {
			return rule, true
		}
		return "guardrails.excludePatterns", matches(b.Guardrails.ExcludePatterns, dest)
	}
}

func matches(patterns []string, p string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return doublestar.MatchUnvalidated(pattern, p) })
}

// fill sets what follows from the spec alone.
func fill(s *propose.Settings, gs *v1alpha1.GatewaySync, b *v1alpha1.BidirectionalSpec, f plan.Facts) error {
	var err error
	if s.Debounce, err = b.DebounceDuration(); err != nil {
		return err
	}
	if s.Limits.FileBytes, err = b.Guardrails.MaxFileBytes(); err != nil {
		return err
	}
	if s.Limits.TotalBytes, err = b.Guardrails.MaxTotalBytes(); err != nil {
		return err
	}
	s.Limits.Files = int(b.Guardrails.MaxFilesPerPR)
	for _, list := range [][]string{b.WatchPaths, b.Guardrails.ExcludePatterns} {
		for _, p := range list {
			if !doublestar.ValidatePattern(p) {
				return invalid("a pattern is malformed: %s", failure.Quote(p))
			}
		}
	}
	if s.BaseBranch, err = baseBranch(gs, b); err != nil {
		return err
	}
	s.Branch, err = targetBranch(b, f)
	if err == nil && s.Branch == s.BaseBranch {
		err = invalid("targetBranch is the base branch %s: name another one", failure.Quote(s.Branch))
	}
	return err
}

func invalid(format string, args ...any) error {
	return failure.New(v1alpha1.ReasonProfilesInvalid, "spec.bidirectional: "+format, args...)
}

// baseBranch returns the branch to merge into: the one of the spec, or git.ref if that is a branch.
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
		return "", invalid("git.ref is no branch: set baseBranch")
	}
	return name, nil
}

// targetBranch renders the name of the branch. A branch belongs to one gateway.
func targetBranch(b *v1alpha1.BidirectionalSpec, f plan.Facts) (string, error) {
	name, _, err := render.Text("spec.bidirectional.targetBranch", b.TargetBranch, &f)
	if err != nil {
		return "", err
	}
	if !strings.Contains(b.TargetBranch, ".GatewayName") {
		name = path.Join(name, f.GatewayName)
	}
	if strings.HasPrefix(name, "refs/") || v1alpha1.RefProblem("refs/heads/"+name) != "" || v1alpha1.RefProblem(name) != "" {
		return "", invalid("targetBranch gives %s, which is no name of a branch", failure.Quote(name))
	}
	return name, nil
}

// attach creates the remote for pushes and the client of the forge.
func connectForge(s *propose.Settings, gs *v1alpha1.GatewaySync, b *v1alpha1.BidirectionalSpec, secrets Secrets, o repo.RemoteOptions, log *slog.Logger) error {
	remote, token, err := Proposals(&gs.Spec, b, secrets, o)
	if err != nil {
		return err
	}
	s.Remote, s.Provider = remote, "none"
	if !b.CreatesPR() || b.Provider == "none" {
		return nil
	}
	if s.Provider = b.Provider; s.Provider == "" {
		s.Provider = forge.ProviderOf(gs.Spec.Git.Repo)
	}
	if s.Provider == "" {
		return invalid("the host of git.repo does not tell the kind of the forge: set provider, or createPR: false")
	}
	s.Forge, err = forge.New(s.Provider, forge.Config{
		Repository: gs.Spec.Git.Repo, APIBaseURL: b.APIBaseURL, Token: token, Transport: remote.APITransport(), Log: log,
	})
	return err
}
