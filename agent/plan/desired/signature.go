package desired

import (
	"errors"
	"io"
	"slices"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
)

// errNotThere reports that a resource.json lists a file that the commit does not bring.
var errNotThere = errors.New("the file is not there")

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

// concerns reports whether anything that the signature covers was rendered, or may have been edited by hand.
func (r *recipe) concerns(s *resource.Signed, itself bool) bool {
	return itself || r.stale && len(s.Files()) > 0 || slices.ContainsFunc(r.beside, func(p part) bool { return p.recipe != nil && slices.Contains(s.Files(), p.name) })
}

func (r *recipe) part(name string) (part, error) {
	i := slices.IndexFunc(r.beside, func(p part) bool { return p.name == name })
	if i < 0 {
		return part{}, errNotThere
	}
	return r.beside[i], nil
}

// sign returns content signed for its rendered files. It uses the form of git's signature, or the gateway's form if
// git's signature does not match, as after an edit by hand. A resource.json that was never signed stays unsigned; one
// that does not parse is left to the check of staged files.
func (x *renderer) sign(r *recipe, git, content []byte) ([]byte, error) {
	before, err := resource.ParseSigned(git)
	if err != nil || before.Stored() == "" {
		return content, nil //nolint:nilerr // see above
	}
	after, err := resource.ParseSigned(content)
	if err != nil || !r.concerns(after, string(git) != string(content)) {
		return content, nil //nolint:nilerr // see above
	}
	form, err := x.form(r, before)
	if err != nil {
		return nil, err
	}
	sum, err := after.Signature(form, func(w io.Writer, name string) error {
		p, err := r.part(name)
		if err == nil && p.recipe != nil {
			_, err = x.writeBlob(w, p.recipe.id)
		} else if err == nil {
			err = x.git(w, relpath.Join(relpath.Parent(r.path), name), p.blob)
		}
		return err
	})
	if errors.Is(err, errNotThere) {
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
		sum, err := before.Signature(form, func(w io.Writer, name string) error {
			p, err := r.part(name)
			if err == nil {
				err = x.git(w, relpath.Join(relpath.Parent(r.path), name), p.blob)
			}
			return err
		})
		if errors.Is(err, errNotThere) {
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
