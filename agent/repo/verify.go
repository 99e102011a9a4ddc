package repo

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/wire"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Verifier decides by the signature whether a commit may be delivered (spec.git.verify). One goroutine at a time may use it.
type Verifier struct {
	mode    v1alpha1.VerifyMode
	formats []v1alpha1.SigningFormat
	name    string
	keys    func() ([]byte, error)
	now     func() time.Time

	tag      signedTag
	artifact signedArtifact
}

// signedTag is the last tag whose signature was verified. Verify verifies it again each time, because the keys may change.
type signedTag struct {
	ref    string
	commit plan.ID
	text   []byte
}

// signedArtifact is the last artifact that was verified, and the sum of the keys, so that Verify does not ask the registry for each sync.
type signedArtifact struct {
	commit plan.ID
	keys   [sha256.Size]byte
}

// NewVerifier returns a Verifier. Each Verify calls keys, so that rotated keys take effect at once. name says in errors
// where the keys are from.
func NewVerifier(v v1alpha1.GitVerify, name string, keys func() ([]byte, error)) *Verifier {
	return &Verifier{mode: v.Mode, formats: v.Formats, name: name, keys: keys, now: time.Now}
}

// Verify returns nil if a commit of the store may be delivered. ref is the requested ref. The error is SignatureInvalid, RefMoved if
// the tag has another commit now, or says why the commit, the tag or the signatures could not be read.
func (s *Store) Verify(ctx context.Context, v *Verifier, r *Remote, commit plan.ID, ref string) error {
	text, err := v.keys()
	if err != nil {
		return failure.New(v1alpha1.ReasonSignatureInvalid, "the keys of %s cannot be read, and without them no commit is delivered: %w", v.name, err)
	}
	keys, err := parseKeys(text)
	if err != nil {
		return failure.New(v1alpha1.ReasonSignatureInvalid, "the keys of %s cannot be used, and without them no commit is delivered: %w", v.name, err)
	}
	if r, ok := r.source.(*registry); ok {
		return s.verifyArtifact(ctx, v, r, keys, sha256.Sum256(text), commit)
	}
	what, split := "commit "+commit.Short(), splitCommit
	if v.mode == v1alpha1.VerifyTag {
		what, split = "the tag "+failure.Quote(ref), splitTag
		text, err = s.signedTag(ctx, v, r, commit, ref)
	} else {
		text, err = s.packs.CommitText(commit)
	}
	if err != nil {
		return err
	}
	payload, signature, err := split(text)
	if err == nil {
		err = keys.verify(payload, signature, v.formats, v.now())
	}
	if err != nil {
		v.tag = signedTag{} // a user may sign the tag again, for the same commit
		return failure.New(v1alpha1.ReasonSignatureInvalid, "%s %w; it is not delivered (keys: %s)", what, err, v.name)
	}
	if v.mode == v1alpha1.VerifyTag {
		v.tag = signedTag{ref, commit, text}
	}
	return nil
}

// verifyArtifact verifies the commit of an artifact, if the last one that it verified was another commit, or with other keys. sum is that of
// the keys.
func (s *Store) verifyArtifact(ctx context.Context, v *Verifier, r *registry, keys keyring, sum [sha256.Size]byte, commit plan.ID) error {
	if last := (signedArtifact{commit, sum}); v.artifact != last {
		text, err := s.packs.CommitText(commit)
		if err != nil {
			return err
		}
		if err := r.verify(ctx, v, keys, commit, text); err != nil {
			return err
		}
		v.artifact = last
	}
	return nil
}

// signedTag returns the bytes of the annotated tag that ref names. It fails if the tag has another commit or another name.
func (s *Store) signedTag(ctx context.Context, v *Verifier, r *Remote, commit plan.ID, ref string) ([]byte, error) {
	invalid := func(format string, args ...any) error {
		return failure.New(v1alpha1.ReasonSignatureInvalid, "spec.git.verify.mode is Tag: "+format, args...)
	}
	if last := v.tag; last.ref == ref && last.commit == commit {
		return last.text, nil
	}
	parsed, err := ParseRef(ref)
	if err != nil {
		return nil, err
	}
	if _, isCommit := parsed.Commit(); isCommit {
		return nil, invalid("ask for an annotated tag instead of a commit")
	}
	all, err := r.Refs(ctx)
	if err != nil {
		return nil, err
	}
	resolved, err := all.Resolve(parsed)
	if err != nil {
		return nil, err
	}
	name, isTag := strings.CutPrefix(resolved.Ref, wire.TagPrefix)
	id := all.advertised.ByName[resolved.Ref]
	switch {
	case !isTag:
		return nil, invalid("%s is not a tag: ask for an annotated tag", failure.Quote(ref))
	case resolved.Commit != commit:
		return nil, failure.New(v1alpha1.ReasonRefMoved, "the tag %s points to %s now, and not to %s", failure.Quote(name), resolved.Commit.Short(), commit.Short())
	case id == commit:
		return nil, invalid("%s is a lightweight tag, which has no signature: make an annotated one with git tag -s", failure.Quote(name))
	}
	text, err := s.tagText(ctx, r, id, commit)
	if err != nil {
		return nil, err
	}
	switch target, signedName, ok := parseTagHeader(text); {
	case !ok:
		return nil, invalid("%s is not the tag of a commit", failure.Quote(name))
	case target != commit.String():
		return nil, invalid("the tag %s is one of another commit", failure.Quote(name))
	case signedName != name: // a signed tag under another name, such as an old version under a new one
		return nil, invalid("the tag %s is signed as %s", failure.Quote(name), failure.Quote(signedName))
	}
	return text, nil
}

// tagText fetches an annotated tag of a commit in the store. It does not add the tag to the store.
func (s *Store) tagText(ctx context.Context, r *Remote, tag, commit plan.ID) ([]byte, error) {
	if err := s.searching.lock(ctx); err != nil {
		return nil, err
	}
	defer s.searching.unlock()
	t, err := s.Begin(tag)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	text, err := r.source.TagText(ctx, t, commit)
	if err != nil {
		return nil, fmt.Errorf("fetch the tag %s: %w", tag.Short(), err)
	}
	return text, nil
}
