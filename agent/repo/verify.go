package repo

import (
	"context"
	"fmt"
	"strings"
	"time"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/wire"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Verifier decides by its signature whether a commit may be delivered (spec.git.verify). One goroutine uses it.
type Verifier struct {
	mode    v1alpha1.VerifyMode
	formats []v1alpha1.SigningFormat
	name    string
	keys    func() ([]byte, error)
	now     func() time.Time

	tag signedTag
}

// signedTag is the last tag that was fetched. Its signature is verified each time, so that a key that is removed no longer counts.
type signedTag struct {
	ref    string
	commit plan.ID
	text   []byte
}

// NewVerifier returns a Verifier. keys returns the public keys, and is called for each commit, so that rotated keys take effect immediately;
// name says in errors where they are from.
func NewVerifier(v v1alpha1.GitVerify, name string, keys func() ([]byte, error)) *Verifier {
	return &Verifier{mode: v.Mode, formats: v.Formats, name: name, keys: keys, now: time.Now}
}

// Verify returns nil if a commit of the store may be delivered. ref is the ref that was asked for. The error is SignatureInvalid, or says why
// the tag could not be fetched.
func (s *Store) Verify(ctx context.Context, v *Verifier, r *Remote, commit plan.ID, ref string) error {
	text, err := v.keys()
	if err != nil {
		return failure.New(v1alpha1.ReasonSignatureInvalid, "the keys of %s cannot be read, and without them no commit is delivered: %w", v.name, err)
	}
	keys, err := parseKeys(text)
	if err != nil {
		return failure.New(v1alpha1.ReasonSignatureInvalid, "the keys of %s cannot be used, and without them no commit is delivered: %w", v.name, err)
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
		return failure.New(v1alpha1.ReasonSignatureInvalid, "%s %w; it is not delivered (keys: %s)", what, err, v.name)
	}
	return nil
}

// signedTag returns the annotated tag that ref names, if it is one of that commit and has that name.
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
	if _, is := parsed.Commit(); is {
		return nil, invalid("ask for an annotated tag instead of a commit")
	}
	all, err := r.Refs(ctx)
	if err != nil {
		return nil, err
	}
	at, err := all.Resolve(parsed)
	if err != nil {
		return nil, err
	}
	name, is := strings.CutPrefix(at.Ref, wire.TagPrefix)
	id := all.all.ByName[at.Ref]
	switch {
	case !is:
		return nil, invalid("%s is no tag: ask for an annotated tag", failure.Quote(ref))
	case at.Commit != commit:
		return nil, failure.New(v1alpha1.ReasonRefMoved, "the tag %s points to %s now, and not to %s", failure.Quote(name), at.Commit.Short(), commit.Short())
	case id == commit:
		return nil, invalid("%s is a lightweight tag, which has no signature: make an annotated one with git tag -s", failure.Quote(name))
	}
	text, err := s.tagText(ctx, r, id, commit)
	if err != nil {
		return nil, err
	}
	switch of, called, ok := tagHead(text); {
	case !ok:
		return nil, invalid("%s is not the tag of a commit", failure.Quote(name))
	case of != commit.String():
		return nil, invalid("the tag %s is one of another commit", failure.Quote(name))
	case called != name: // a signed tag under another name, such as an old version under a new one
		return nil, invalid("the tag %s is signed as %s", failure.Quote(name), failure.Quote(called))
	}
	v.tag = signedTag{ref, commit, text}
	return text, nil
}

// tagText fetches an annotated tag of a commit that the store has. The tag does not get into the store.
func (s *Store) tagText(ctx context.Context, r *Remote, tag, commit plan.ID) ([]byte, error) {
	if err := s.looking.lock(ctx); err != nil {
		return nil, err
	}
	defer s.looking.unlock()
	t, err := s.packs.Begin(tag)
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
