package repo

import (
	"context"
	"slices"
	"strings"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/oci"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/agent/repo/wire"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/cosign"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

// registry is a repository in a registry, whose artifacts package oci reads as commits. Its refs are tags and digests.
//
// A registry keeps no history, and does not know commits. The artifact of a commit is one that this process has resolved, that of the
// requested tag or digest, the one whose digest is in the message of a commit in the store, or the result of a search of the tags.
type registry struct {
	url    URL
	opts   wire.Options
	client *oci.Client
}

// maxSearched bounds the tags whose artifacts are compared with a commit.
const maxSearched = 1000

// Close implements source.
func (r *registry) Close() error { return r.client.Close() }

// Refs implements source. It returns none, because each artifact would have to be downloaded: Refs.Resolve asks for single refs.
func (r *registry) Refs(context.Context) (*wire.Refs, error) { return &wire.Refs{}, nil }

// tagOf returns the tag that a ref names by its short or full name, or a digest; "" for other refs.
func tagOf(name string) string {
	tag := strings.TrimPrefix(name, wire.TagPrefix)
	if syntax.IsDigest(name) || syntax.IsTag(tag) {
		return tag
	}
	return ""
}

// resolve finds the commit of a tag or a digest.
func (r *registry) resolve(ctx context.Context, ref Ref) (Resolution, error) {
	name := tagOf(ref.name)
	if name == "" || ref.name == wire.HeadName {
		return Resolution{}, failure.New(v1alpha1.ReasonRefNotFound, "%s is neither a tag nor a digest (sha256:…), which are the refs of %s", failure.Quote(ref.name), r.url)
	}
	a, err := r.client.Resolve(ctx, name)
	if err != nil {
		return Resolution{}, err
	}
	full := name
	if !syntax.IsDigest(name) {
		full = wire.TagPrefix + name
	}
	return Resolution{full, a.Commit}, nil
}

// Fetch implements source. ref is the full name of a tag, a digest, or "". The artifact of the commit is what was resolved before, that of ref,
// or that of any tag.
func (r *registry) Fetch(ctx context.Context, t *store.Transfer, ref string) (*store.Received, error) {
	if t.TreesOnly {
		return nil, wire.Refused("a registry sends whole layers")
	}
	a, known := r.client.Recall(t.Commit)
	if reference := tagOf(ref); !known && reference != "" {
		named, in, err := r.client.ResolveInto(ctx, reference, t)
		switch {
		case in != nil:
			return in, nil
		case err != nil && !failure.Is(err, v1alpha1.ReasonRefNotFound):
			return nil, err
		}
		a, known = named, err == nil && named.Commit == t.Commit
	}
	if !known {
		var err error
		if a, err = r.search(ctx, t.Commit, func(string) bool { return true }); err != nil {
			return nil, err
		}
	}
	return r.client.Import(ctx, a, t)
}

// search looks for a commit among the artifacts of the tags that admit accepts, the highest names first. The error is RefNotFound if none of
// the compared tags has the commit, or if that takes longer than oci.SearchTime. If the registry failed for a tag, the error is that failure.
func (r *registry) search(ctx context.Context, commit plan.ID, admit func(fullName string) bool) (oci.Artifact, error) {
	tags, complete, err := r.client.Tags(ctx)
	if err != nil {
		return oci.Artifact{}, err
	}
	tags = slices.DeleteFunc(tags, func(tag string) bool { return !admit(wire.TagPrefix + tag) })
	slices.Sort(tags)
	slices.Reverse(tags)
	ctx, cancel := context.WithTimeoutCause(ctx, oci.SearchTime, failure.New(v1alpha1.ReasonRefNotFound,
		"the commit %s was not found among the tags of %s within %s: ask for its tag or its digest (sha256:…)", commit, r.url, oci.SearchTime))
	defer cancel()
	compared := tags[:min(len(tags), maxSearched)]
	var failed error // the first one due to the registry, and not to an artifact
	for _, tag := range compared {
		switch a, err := r.client.Resolve(ctx, tag); {
		case ctx.Err() != nil:
			return oci.Artifact{}, context.Cause(ctx)
		case err == nil && a.Commit == commit:
			return a, nil
		case err != nil:
			r.opts.Log.Debug("tag has no artifact for a gateway", "tag", tag, "error", err)
			if reason := failure.Reason(err, v1alpha1.ReasonGitUnreachable); failed == nil && (reason.Class() == v1alpha1.ClassRetry || reason == v1alpha1.ReasonAuthFailed) {
				failed = err
			}
		}
	}
	if failed != nil {
		return oci.Artifact{}, failed
	}
	if !complete || len(compared) < len(tags) {
		return oci.Artifact{}, failure.New(v1alpha1.ReasonRefNotFound,
			"none of the %d tags of %s that were compared has the commit %s: ask for its tag or its digest (sha256:…)", len(compared), r.url, commit)
	}
	return oci.Artifact{}, failure.New(v1alpha1.ReasonRefNotFound,
		"no tag of %s has the commit %s any more: ask for its digest (sha256:…), or give the digest a tag", r.url, commit)
}

// Blobs implements source.
func (r *registry) Blobs(context.Context, *store.Transfer, []plan.ID) (*store.Received, error) {
	return nil, wire.Refused("a registry sends whole layers")
}

// Reaches implements source. Tags have no history: see Store.Reaches.
func (r *registry) Reaches(context.Context, *store.Transfer, []plan.ID) (bool, error) {
	return false, nil
}

// verify returns nil if one of the keys has signed the artifact of a commit with cosign. text is the text of the commit.
func (r *registry) verify(ctx context.Context, v *Verifier, keys keyring, commit plan.ID, text []byte) error {
	if v.mode == v1alpha1.VerifyTag {
		return failure.New(v1alpha1.ReasonSignatureInvalid, "spec.git.verify.mode is Tag, but the tags of %s have no signatures: use Head, which verifies artifacts", r.url)
	}
	a, err := r.client.ArtifactOf(ctx, commit, text)
	if err != nil {
		return err
	}
	if len(keys.cosign) == 0 {
		return failure.New(v1alpha1.ReasonSignatureInvalid, "%s has no public key of cosign (BEGIN PUBLIC KEY), and artifacts need one; %s is not delivered", v.name, a.Digest)
	}
	signatures, err := r.client.Signatures(ctx, a.Digest)
	if err != nil {
		return err
	}
	for _, s := range signatures {
		if slices.ContainsFunc(keys.cosign, func(k cosign.Key) bool { return k.Signed(s.Signed, s.Value) }) {
			return nil
		}
	}
	if len(signatures) == 0 {
		return failure.New(v1alpha1.ReasonSignatureInvalid, "the artifact %s has no signature of cosign; it is not delivered: sign it with cosign sign --key", a.Digest)
	}
	return failure.New(v1alpha1.ReasonSignatureInvalid, "the artifact %s is not signed by one of the keys; it is not delivered (keys: %s)", a.Digest, v.name)
}

// CommitText implements source.
func (r *registry) CommitText(context.Context, *store.Transfer) ([]byte, error) {
	return nil, r.noGit()
}

// TagText implements source.
func (r *registry) TagText(context.Context, *store.Transfer, plan.ID) ([]byte, error) {
	return nil, r.noGit()
}

// PushRefs implements source.
func (r *registry) PushRefs(context.Context) (*wire.Refs, error) { return nil, r.noGit() }

// Push implements source.
func (r *registry) Push(context.Context, string, plan.ID, plan.ID, [][]byte) error { return r.noGit() }

// APIToken implements source.
func (r *registry) APIToken(context.Context) (secret.String, error) {
	return secret.String{}, r.noGit()
}

func (r *registry) noGit() error {
	return failure.New(v1alpha1.ReasonUnsupportedRepository, "%s is a registry, and proposals need git: remove spec.bidirectional, or use a git repository in git.repo", r.url)
}

// admitArtifact returns nil if a request may name resolved, a digest or a commit of a registry. It must be the artifact of a tag that
// matches the patterns, or one that this agent has imported before, which was admitted then. If everything is allowed, any digest of the
// repository may be named: only a user who may push adds one, while git hosts also serve commits of forks.
func (a *Refs) admitArtifact(ctx context.Context, s *Store, patterns []string, resolved Resolution) error {
	r, anything := a.registry, slices.Equal(patterns, (&v1alpha1.GitSpec{}).RequestableRefs())
	if resolved.Ref != "" && anything {
		return nil
	}
	if s != nil {
		if known, err := s.imported(ctx, r, resolved.Commit); known || err != nil {
			return err
		}
	}
	_, err := r.search(ctx, resolved.Commit, func(name string) bool { return anything || matchesAny(patterns, name) })
	if failure.Is(err, v1alpha1.ReasonRefNotFound) {
		return failure.New(v1alpha1.ReasonRefNotAllowed, "a request may not name %s: %w; allowedRefs of the spec admits %s", resolved.Commit.Short(), err, listPatterns(patterns))
	}
	return err
}

// imported reports whether the store has the commit of an artifact that the registry has, or had when this process resolved it.
func (s *Store) imported(ctx context.Context, r *registry, commit plan.ID) (bool, error) {
	if !s.Complete(commit) {
		return false, nil
	}
	text, err := s.packs.CommitText(commit)
	if err != nil {
		return false, err
	}
	_, err = r.client.ArtifactOf(ctx, commit, text)
	if failure.Is(err, v1alpha1.ReasonRefNotFound) {
		return false, nil
	}
	return err == nil, err
}
