package desired

import (
	"errors"
	"io"
	"slices"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
)

// errNotDesired reports that a resource.json lists a file that the commit does not bring.
var errNotDesired = errors.New("the file is not desired")

// SignedID returns the id of the directory's resource.json signed for the files beside it, if git's signature does not match them, as
// after an edit by hand. It returns false if the signature matches, if there is none, or if the file was rendered,
// which already signed it. Git's bytes would be valid, too, but a gateway that already knows the resource.json may
// treat the resource as unchanged and not look at its files.
func (l *Listing) SignedID() (plan.ID, bool, error) {
	own, beside := resourceOf(l.children)
	if own == nil || own.recipe != nil {
		return plan.ID{}, false, nil
	}
	r := &recipe{path: relpath.Join(l.path, own.name), blob: own.id, template: plain, beside: beside, stale: true}
	if err := l.tree.renderer.resolve(r); err != nil {
		return plan.ID{}, false, err
	}
	return r.id, r.id != r.blob, nil
}

// needsSignature reports whether anything that the signature covers was rendered, or may have been edited by hand.
func (r *recipe) needsSignature(s *resource.Signed, rendered bool) bool {
	return rendered || r.stale && len(s.Files()) > 0 || slices.ContainsFunc(r.beside, func(p part) bool {
		return p.recipe != nil && slices.Contains(s.Files(), p.name)
	})
}

// sign returns content signed for its rendered files. It uses the form of git's signature, or the gateway's form if
// git's signature does not match, as after an edit by hand. A resource.json that was never signed stays unsigned. sign does not
// change one that does not parse: the check of staged files reports it.
func (x *renderer) sign(r *recipe, git, content []byte) ([]byte, error) {
	before, err := resource.ParseSigned(git)
	if err != nil || before.Stored() == "" {
		return content, nil //nolint:nilerr // see above
	}
	after, err := resource.ParseSigned(content)
	if err != nil || !r.needsSignature(after, string(git) != string(content)) {
		return content, nil //nolint:nilerr // see above
	}
	form, err := x.form(r, before)
	if err != nil {
		return nil, err
	}
	sum, err := after.Signature(form, func(w io.Writer, name string) error { return x.writePart(w, r, name, true) })
	if errors.Is(err, errNotDesired) {
		x.warnings.add("%s lists a file that is not synced, so it cannot be signed again", r.path)
		return content, nil
	}
	if err != nil {
		return nil, err
	}
	return after.WithSignature(sum), nil
}

// form returns the form of git's signature, or the gateway's form if git's signature does not match.
func (x *renderer) form(r *recipe, before *resource.Signed) (resource.Form, error) {
	for _, form := range []resource.Form{resource.Form83, resource.Form81} {
		sum, err := before.Signature(form, func(w io.Writer, name string) error { return x.writePart(w, r, name, false) })
		if errors.Is(err, errNotDesired) {
			break
		}
		if err != nil {
			return 0, err
		}
		if sum == before.Stored() {
			return form, nil
		}
	}
	return x.rules.Form, nil
}

// writePart writes a file beside a resource.json: rendered, or as git has it.
func (x *renderer) writePart(w io.Writer, r *recipe, name string, rendered bool) error {
	i := slices.IndexFunc(r.beside, func(p part) bool { return p.name == name })
	if i < 0 {
		return errNotDesired
	}
	p := r.beside[i]
	if rendered && p.recipe != nil {
		_, err := x.writeBlob(w, p.recipe.id)
		return err
	}
	return x.git(w, relpath.Join(relpath.Parent(r.path), name), p.blob)
}
