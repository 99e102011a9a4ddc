package desired

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/agent/plan/render"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// renderer makes the files whose content differs from the blob in git: rendered templates, patched files, and each resource.json beside
// them, which needs a new signature.
type renderer struct {
	rules    *plan.Rules
	objects  plan.Objects
	isFile   []bool // by mapping: its source is a file
	warnings *warnings
	system   string // path of the file that gets the gateway's name, or ""
	cache    *Cache
	factsID  string                     // fingerprint of the facts
	recipes  map[plan.ID]*recipe        // by id of the result: what has been rendered so far
	steps    int                        // template steps so far, also those of results from the cache
	counted  map[[sha256.Size]byte]bool // by key: recipes whose steps are counted
	// readLocal reads from the disk a blob that the object store lacks. It may be nil.
	readLocal func(path string, id plan.ID) ([]byte, bool)
}

func newRenderer(o *overlay, system string, cache *Cache) *renderer {
	return &renderer{
		rules: o.rules, objects: o.objects, isFile: o.isFile, warnings: &o.warnings, system: system, cache: cache,
		factsID: o.rules.Facts.Fingerprint(), recipes: make(map[plan.ID]*recipe), counted: make(map[[sha256.Size]byte]bool),
	}
}

// recipe describes how to make a file whose content differs from the blob in git: first the template, then the patches, then a new
// signature.
type recipe struct {
	path string
	blob plan.ID // in git
	id   plan.ID // of the result
	// template is plain for a file that is not a template, otherwise stable or volatile.
	template kind
	edits    []render.Edit
	beside   []part // the files beside a resource.json that may need a new signature; nil for other files
	stale    bool   // also sign if git's signature does not match, even if nothing was rendered
}

// maxTemplateSteps bounds the cost of all templates of one commit: about ten seconds of one processor.
const maxTemplateSteps = 20_000_000

// part is a file beside a resource.json.
type part struct {
	name   string
	blob   plan.ID // in git
	recipe *recipe // nil if its bytes are git's
}

// newRecipe returns the recipe of a file, or nil if the file stays as git has it.
func (x *renderer) newRecipe(path string, c *child) (*recipe, error) {
	m := &x.rules.Mappings[c.origin]
	r := &recipe{path: path, blob: c.id, template: plain}
	if m.Template {
		k, err := x.kindOf(c.id)
		switch {
		case err != nil:
			return nil, fmt.Errorf("read %s of the commit: %w", path, err)
		case k == binary && x.isFile[c.origin]:
			return nil, failure.New(v1alpha1.ReasonTemplateFailed, "mappings[%d]: %s is a binary file, not a template: remove template: true", c.origin, m.Source)
		case k == huge:
			return nil, failure.New(v1alpha1.ReasonLimitExceeded, "the template %s is larger than %d bytes", path, x.rules.Limits.Rendered)
		case k == binary: // in a folder of templates it is copied
		case k == stable, k == volatile:
			r.template = k
		}
	}
	for i := range m.Patches {
		p := &m.Patches[i]
		if x.isFile[c.origin] || p.Matches(m, path) { // a patch of a single file has no pattern
			for _, s := range p.Set {
				r.edits = append(r.edits, render.Edit{Path: s.Path, Value: s.Value})
			}
		}
	}
	if path == x.system {
		r.edits = append(r.edits, render.Edit{Path: x.rules.SystemName.Path, Value: x.rules.SystemName.Value, Text: true})
	}
	if r.template == plain && len(r.edits) == 0 {
		return nil, nil
	}
	return r, nil
}

// render replaces the id of each rendered file in a directory with the id of its result.
func (x *renderer) render(n node, children []child) error {
	changed := false
	for i := range children {
		c := &children[i]
		if c.isDir {
			continue
		}
		r, err := x.newRecipe(relpath.Join(n.path, c.name), c)
		if err != nil {
			return err
		}
		if r == nil {
			continue
		}
		if err := x.resolve(r); err != nil {
			return err
		}
		if r.id != c.id {
			c.recipe, c.id, changed = r, r.id, true
		}
	}
	if !changed {
		return nil
	}
	return x.renderSignature(n, children)
}

// renderSignature gives the resource.json of a directory a new signature. render calls it if a file of the directory has changed.
func (x *renderer) renderSignature(n node, children []child) error {
	own, parts := resourceOf(children)
	if own == nil {
		return nil
	}
	r := &recipe{path: relpath.Join(n.path, own.name), blob: own.id, template: plain}
	if own.recipe != nil {
		*r = *own.recipe
	}
	r.beside = parts
	if err := x.resolve(r); err != nil {
		return err
	}
	own.id = r.id
	if r.id != r.blob {
		own.recipe = r
	}
	return nil
}

// resourceOf returns the resource.json of a directory, or nil, and the files beside it.
func resourceOf(children []child) (own *child, beside []part) {
	beside = make([]part, 0, len(children))
	for i := range children {
		switch c := &children[i]; {
		case c.isDir:
		case c.name == resource.File:
			own = c
		default:
			p := part{name: c.name, blob: c.id, recipe: c.recipe}
			if c.recipe != nil {
				p.blob = c.recipe.blob
			}
			beside = append(beside, p)
		}
	}
	return own, beside
}

// resolve sets the id of a recipe's result, producing the result if the cache does not know it.
func (x *renderer) resolve(r *recipe) error {
	key := x.key(r)
	made, known := x.cache.results[key]
	if !known {
		var content []byte
		var err error
		if content, made, err = x.produce(r); err != nil {
			return err
		}
		x.cache.keep(key, made, content)
	}
	if made.unsigned {
		x.warnings.add("%s lists a file that is not synced, so it cannot be signed again", r.path)
	}
	if made.steps > 0 && !x.counted[key] {
		x.counted[key] = true
		x.steps += made.steps
	}
	if x.steps > maxTemplateSteps {
		return failure.New(v1alpha1.ReasonLimitExceeded, "%s: the templates of the commit take more than %d steps in total", r.path, maxTemplateSteps)
	}
	r.id = made.id
	if r.id != r.blob {
		x.recipes[r.id] = r
	}
	return nil
}

// key identifies all inputs of a recipe. The path is not one of them, because the result does not depend on it.
func (x *renderer) key(r *recipe) (key [sha256.Size]byte) {
	h := sha256.New()
	h.Write(r.blob[:])
	if r.template != plain {
		fmt.Fprintf(h, "template %s\n", x.factsID)
	}
	if r.template == volatile {
		fmt.Fprintf(h, "%q %q\n", x.rules.Facts.Ref, x.rules.Facts.Commit)
	}
	for _, e := range r.edits {
		fmt.Fprintf(h, "%q %q %t\n", e.Path, e.Value, e.Text)
	}
	if r.beside != nil {
		fmt.Fprintf(h, "signature %d %t\n", x.rules.Form, r.stale)
	}
	for _, p := range r.beside {
		after := p.blob
		if p.recipe != nil {
			after = p.recipe.id
		}
		fmt.Fprintf(h, "%q %s %s\n", p.name, p.blob, after)
	}
	h.Sum(key[:0])
	return key
}

// produce makes the bytes of a recipe.
func (x *renderer) produce(r *recipe) (content []byte, made result, err error) {
	content, err = x.read(r.path, r.blob)
	if err != nil {
		return nil, result{}, err
	}
	git := content
	if r.template != plain {
		t, err := render.Parse(r.path, string(content))
		if err != nil {
			return nil, result{}, err
		}
		if content, err = t.Execute(&x.rules.Facts, x.rules.Limits.Rendered); err != nil {
			return nil, result{}, err
		}
		made.steps = t.Steps()
	}
	if len(r.edits) > 0 {
		if content, err = render.Patch(r.path, content, r.edits); err != nil {
			return nil, result{}, err
		}
	}
	if r.beside != nil {
		signed, err := x.sign(r, git, content)
		switch {
		case errors.Is(err, errNotDesired):
			made.unsigned = true
		case err != nil:
			return nil, result{}, err
		default:
			content = signed
		}
	}
	made.id = plan.BlobID(content)
	return content, made, nil
}

// ErrGone means that neither git nor the cache has the content that the last sync wrote.
var ErrGone = errors.New("the content of the last sync is no longer available")

// has reports whether writeBlob can write the content of an id.
func (x *renderer) has(id plan.ID) bool {
	_, cached := x.cache.content(id)
	return cached || x.recipes[id] != nil || x.objects.Has(id)
}

// writeBlob writes the content of a wanted id: rendered, or git's. It knows only what was rendered in the directories
// walked so far.
func (x *renderer) writeBlob(w io.Writer, id plan.ID) (int64, error) {
	content, cached := x.cache.content(id)
	r := x.recipes[id]
	switch {
	case cached:
	case r == nil:
		return x.objects.WriteBlob(w, id)
	default:
		var made result
		var err error
		if content, made, err = x.produce(r); err != nil {
			return 0, err
		}
		x.cache.keep(x.key(r), made, content)
	}
	n, err := w.Write(content)
	return int64(n), err
}

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
// git's signature does not match, as after an edit by hand. A resource.json that was never signed stays unsigned. sign returns a
// resource.json that does not parse as it is: the check of staged files reports it. The error is errNotDesired if it lists a file that the
// commit does not bring.
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
	return x.writeGit(w, relpath.Join(relpath.Parent(r.path), name), p.blob)
}
