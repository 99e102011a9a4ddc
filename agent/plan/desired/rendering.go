package desired

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/agent/plan/render"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// recipe describes how to make a file whose bytes are not git's: first the template, then the patches, then a new
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

// recipe returns the recipe of a file, or nil if the file stays as git has it.
func (d *Tree) recipe(path string, c *child) (*recipe, error) {
	m := &d.rules.Mappings[c.origin]
	r := &recipe{path: path, blob: c.id, template: plain}
	if m.Template {
		k, err := d.kindOf(c.id)
		switch {
		case err != nil:
			return nil, fmt.Errorf("read %s of the commit: %w", path, err)
		case k == binary && d.single[c.origin]:
			return nil, failure.New(v1alpha1.ReasonTemplateFailed, "mappings[%d]: %s is a binary file, not a template: remove template: true", c.origin, m.Source)
		case k == huge:
			return nil, failure.New(v1alpha1.ReasonLimitExceeded, "the template %s is larger than --max-rendered, %d bytes", path, d.rules.Limits.Rendered)
		case k == stable, k == volatile:
			r.template = k
		}
	}
	for i := range m.Patches {
		if p := &m.Patches[i]; d.single[c.origin] || p.Matches(m, path) {
			for _, s := range p.Set {
				r.edits = append(r.edits, render.Edit{Path: s.Path, Value: s.Value})
			}
		}
	}
	if path == d.system {
		r.edits = append(r.edits, render.Edit{Path: d.rules.SystemName.Path, Value: d.rules.SystemName.Value, Text: true})
	}
	if r.template == plain && len(r.edits) == 0 {
		return nil, nil
	}
	return r, nil
}

// render replaces the ids of the files that are not as git has them.
func (d *Tree) render(n node, children []child) error {
	changed := false
	for i := range children {
		c := &children[i]
		if c.isDir {
			continue
		}
		r, err := d.recipe(relpath.Join(n.path, c.name), c)
		if err != nil {
			return err
		}
		if r == nil {
			continue
		}
		if err := d.make(r); err != nil {
			return err
		}
		if r.id != c.id {
			c.recipe, c.id, changed = r, r.id, true
		}
	}
	if !changed {
		return nil
	}
	return d.renderSignature(n, children)
}

// renderSignature signs the resource.json of a directory again if files beside it were rendered.
func (d *Tree) renderSignature(n node, children []child) error {
	own, parts := resourceOf(children)
	if own == nil {
		return nil
	}
	r := &recipe{path: relpath.Join(n.path, own.name), blob: own.id, template: plain}
	if own.recipe != nil {
		*r = *own.recipe
	}
	r.beside = parts
	if err := d.make(r); err != nil {
		return err
	}
	if own.id = r.id; r.id != r.blob {
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

// make sets the id of a recipe's result, producing the result if the cache does not know it.
func (d *Tree) make(r *recipe) error {
	key := d.key(r)
	id, known := d.cache.results[key]
	if !known {
		content, err := d.produce(r)
		if err != nil {
			return err
		}
		id = plan.BlobID(content)
		d.cache.keep(key, id, content)
	}
	if r.id = id; id != r.blob {
		d.recipes[id] = r
	}
	return nil
}

// key identifies all inputs of a recipe. The path is not one of them: the same blob gives the same bytes anywhere.
func (d *Tree) key(r *recipe) (key [sha256.Size]byte) {
	h := sha256.New()
	h.Write(r.blob[:])
	if r.template != plain {
		fmt.Fprintf(h, "template %s\n", d.factsID)
	}
	if r.template == volatile {
		fmt.Fprintf(h, "%q %q\n", d.rules.Facts.Ref, d.rules.Facts.Commit)
	}
	for _, e := range r.edits {
		fmt.Fprintf(h, "%q %q %t\n", e.Path, e.Value, e.Text)
	}
	if r.beside != nil {
		fmt.Fprintf(h, "seal %d %t\n", d.rules.Form, r.stale)
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
func (d *Tree) produce(r *recipe) ([]byte, error) {
	content, err := d.read(r.path, r.blob)
	if err != nil {
		return nil, err
	}
	git := content
	if r.template != plain {
		t, err := render.Parse(r.path, string(content))
		if err != nil {
			return nil, err
		}
		content, err = t.Execute(&d.rules.Facts, d.rules.Limits.Rendered)
		if d.steps += t.Steps(); d.steps > maxTemplateSteps && err == nil {
			err = failure.New(v1alpha1.ReasonLimitExceeded, "%s: the templates of the commit take more than %d steps in total", r.path, maxTemplateSteps)
		}
		if err != nil {
			return nil, err
		}
	}
	if len(r.edits) > 0 {
		if content, err = render.Patch(r.path, content, r.edits); err != nil {
			return nil, err
		}
	}
	if r.beside != nil {
		return d.sign(r, git, content)
	}
	return content, nil
}

// ErrGone reports that the blob of a record is no longer available.
var ErrGone = errors.New("the content of the last sync is no longer available")

// Has reports whether WriteBlob can write the content of an id.
func (d *Tree) Has(id plan.ID) bool {
	_, cached := d.cache.content(id)
	return cached || d.recipes[id] != nil || d.objects.Has(id)
}

// WriteBlob writes the content of a wanted id: rendered, or git's. It knows only what was rendered in the directories
// walked so far.
func (d *Tree) WriteBlob(w io.Writer, id plan.ID) (int64, error) {
	content, cached := d.cache.content(id)
	r := d.recipes[id]
	switch {
	case cached:
	case r == nil:
		return d.objects.WriteBlob(w, id)
	default:
		var err error
		if content, err = d.produce(r); err != nil {
			return 0, err
		}
		d.cache.keep(d.key(r), id, content)
	}
	n, err := w.Write(content)
	return int64(n), err
}

// WriteWanted is WriteBlob for an id from a directory that may not have been walked yet. If git does not have the id,
// it renders everything once.
func (d *Tree) WriteWanted(w io.Writer, id plan.ID) (int64, error) {
	if !d.Has(id) {
		if err := d.renderAll(); err != nil {
			return 0, err
		}
		if !d.Has(id) {
			return 0, ErrGone
		}
	}
	return d.WriteBlob(w, id)
}

func (d *Tree) renderAll() error {
	if d.walked || !d.renders {
		return nil
	}
	for _, err := range d.rendering() {
		if err != nil {
			return err
		}
	}
	d.walked = true
	return nil
}
