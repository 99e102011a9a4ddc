package plan

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // git's object ids are SHA-1; the id is a name, not a seal
	"errors"
	"fmt"
	"io"

	"stoker.io/stoker/agent/plan/render"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// kind is what a blob is as a template, or a tree as a directory of templates.
type kind uint8

const (
	plain    kind = iota + 1 // a text without a template action: it is its own rendering
	binary                   // it has a NUL byte
	stable                   // a template that the commit makes no difference to; a tree without a volatile one
	volatile                 // a template that asks for the ref or the commit; a tree that has one
	huge                     // a template of more bytes than are rendered
)

// probe reads a blob for its kind and keeps its text where that is small enough.
type probe struct {
	text  bytes.Buffer
	limit int64
	size  int64
	last  byte
	open  bool // {{ was seen
	nul   bool
}

var errSeenEnough = errors.New("that is enough")

func (p *probe) Write(b []byte) (int, error) {
	if bytes.IndexByte(b, 0) >= 0 {
		p.nul = true
		return 0, errSeenEnough
	}
	if len(b) > 0 {
		p.open = p.open || render.IsTemplate(b) || p.last == '{' && b[0] == '{'
		p.last = b[len(b)-1]
	}
	if p.size += int64(len(b)); p.size > p.limit {
		p.text = bytes.Buffer{}
		return len(b), nil
	}
	return p.text.Write(b)
}

// kindOf finds out what a blob is as a template.
func (d *Desired) kindOf(id ID) (kind, error) {
	if k, ok := d.cache.kinds[id]; ok {
		return k, nil
	}
	p := &probe{limit: d.rules.Limits.Rendered}
	_, err := d.objects.WriteBlob(p, id)
	var k kind
	switch {
	case p.nul:
		k = binary
	case err != nil:
		return 0, err
	case !p.open:
		k = plain
	case p.size > p.limit:
		k = huge
	default:
		k = stable
		// One that cannot be parsed counts as volatile: its error comes when it is rendered, at every plan.
		if t, err := render.Parse("", p.text.String()); err != nil || t.Volatile() {
			k = volatile
		}
	}
	put(d.cache.kinds, id, k, maxKinds)
	return k, nil
}

// volatileTree reports whether a tree has a template that asks for the ref or the commit, at any depth. Of one that is
// deeper than anything that is synced it says yes: who walks it knows what of it is excluded. The depth is that of the
// tree.
func (d *Desired) volatileTree(id ID, depth int, count *tally) (bool, error) {
	if k, ok := d.cache.kinds[id]; ok {
		return k == volatile, nil
	}
	if err := count.dir(&d.rules.Limits); err != nil {
		return false, err
	}
	if depth >= d.rules.Limits.Depth {
		return true, nil
	}
	entries, err := d.objects.Tree(id)
	if err != nil {
		return false, err
	}
	k := stable
	for _, e := range entries {
		var is bool
		switch e.Mode {
		case Directory:
			is, err = d.volatileTree(e.ID, depth+1, count)
		case Regular, Executable:
			var of kind
			of, err = d.kindOf(e.ID)
			is = of == volatile
		default:
			continue
		}
		if err != nil {
			return false, err
		}
		if is {
			k = volatile
			break
		}
	}
	put(d.cache.kinds, id, k, maxKinds)
	return k == volatile, nil
}

// git writes a blob of the commit. Where the store lacks it, its bytes may lie on the disk.
func (d *Desired) git(w io.Writer, path string, id ID) error {
	if d.local != nil && !d.objects.Has(id) {
		if content, ok := d.local(path, id); ok {
			_, err := w.Write(content)
			return err
		}
	}
	_, err := d.objects.WriteBlob(w, id)
	return err
}

// read returns a blob that is to be rendered.
func (d *Desired) read(path string, id ID) ([]byte, error) {
	limit := d.rules.Limits.Rendered
	b := &head{max: int(limit) + 1}
	err := d.git(b, path, id)
	if int64(b.Len()) > limit {
		return nil, failure.New(v1alpha1.ReasonLimitExceeded, "%s is larger than --max-rendered, %d bytes, for a file that is "+
			"a template or patched", path, limit)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s of the commit: %w", path, err)
	}
	return b.Bytes(), nil
}

// blobID is the id that git gives to a content.
func blobID(content []byte) ID {
	h := sha1.New() //nolint:gosec // see above
	fmt.Fprintf(h, "blob %d\x00", len(content))
	h.Write(content)
	return ID(h.Sum(nil))
}
