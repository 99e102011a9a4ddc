package desired

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/render"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// kind classifies a blob as a template, or a tree by the templates in it.
type kind uint8

const (
	plain    kind = iota + 1 // text without a template action; it renders to itself
	binary                   // contains a NUL byte
	stable                   // a template whose result does not depend on the commit; a tree without a volatile template
	volatile                 // a template that uses the ref or the commit; a tree that has one
	huge                     // a template larger than the limit for rendering
)

// probe is a writer that classifies a blob, and keeps its text if the text is small enough.
type probe struct {
	text       bytes.Buffer // empty if the blob is larger than limit
	limit      int64
	size       int64
	last       byte // the last byte written
	isTemplate bool // {{ was seen
	isBinary   bool // a NUL byte was seen
}

// errStopReading ends a WriteBlob early.
var errStopReading = errors.New("stop reading")

func (p *probe) Write(b []byte) (int, error) {
	if bytes.IndexByte(b, 0) >= 0 {
		p.isBinary = true
		return 0, errStopReading
	}
	if len(b) > 0 {
		p.isTemplate = p.isTemplate || render.IsTemplate(b) || p.last == '{' && b[0] == '{'
		p.last = b[len(b)-1]
	}
	if p.size += int64(len(b)); p.size > p.limit {
		p.text = bytes.Buffer{}
		return len(b), nil
	}
	return p.text.Write(b)
}

// kindOf classifies a blob.
func (x *renderer) kindOf(id plan.ID) (kind, error) {
	if k, ok := x.cache.kinds[id]; ok {
		return k, nil
	}
	p := &probe{limit: x.rules.Limits.Rendered}
	_, err := x.objects.WriteBlob(p, id)
	var k kind
	switch {
	case p.isBinary:
		k = binary
	case err != nil:
		return 0, err
	case !p.isTemplate:
		k = plain
	case p.size > p.limit:
		k = huge
	default:
		k = stable
		// A template that does not parse counts as volatile, so that every plan renders it and reports its error.
		if t, err := render.Parse("", p.text.String()); err != nil || t.Volatile() {
			k = volatile
		}
	}
	put(x.cache.kinds, id, k, maxKinds)
	return k, nil
}

// volatileTree reports whether a tree has, at any depth, a template that uses the ref or the commit. It returns true
// for a tree deeper than the depth limit, which the walk then refuses unless it is excluded. depth is the depth of the tree.
func (x *renderer) volatileTree(id plan.ID, depth int, count *counter) (bool, error) {
	if k, ok := x.cache.kinds[id]; ok {
		return k == volatile, nil
	}
	if err := count.addDir(&x.rules.Limits); err != nil {
		return false, err
	}
	if depth >= x.rules.Limits.Depth {
		return true, nil
	}
	entries, err := x.objects.Tree(id)
	if err != nil {
		return false, err
	}
	k := stable
	for _, e := range entries {
		var isVolatile bool
		switch e.Mode {
		case plan.Directory:
			isVolatile, err = x.volatileTree(e.ID, depth+1, count)
		case plan.Regular, plan.Executable:
			var blob kind
			blob, err = x.kindOf(e.ID)
			isVolatile = blob == volatile
		default:
			continue
		}
		if err != nil {
			return false, err
		}
		if isVolatile {
			k = volatile
			break
		}
	}
	put(x.cache.kinds, id, k, maxKinds)
	return k == volatile, nil
}

// writeGit writes a blob of the commit. If the store lacks it, the bytes may still be on the disk.
func (x *renderer) writeGit(w io.Writer, path string, id plan.ID) error {
	if x.readLocal != nil && !x.objects.Has(id) {
		if content, ok := x.readLocal(path, id); ok {
			_, err := w.Write(content)
			return err
		}
	}
	_, err := x.objects.WriteBlob(w, id)
	return err
}

// read returns a blob that is going to be rendered.
func (x *renderer) read(path string, id plan.ID) ([]byte, error) {
	limit := x.rules.Limits.Rendered
	b := &head{max: int(limit) + 1}
	err := x.writeGit(b, path, id)
	if int64(b.Len()) > limit {
		return nil, failure.New(v1alpha1.ReasonLimitExceeded, "%s is a template or patched, and larger than %d bytes", path, limit)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s of the commit: %w", path, err)
	}
	return b.Bytes(), nil
}

// head keeps the first max bytes that are written to it, and then fails.
type head struct {
	bytes.Buffer
	max int
}

func (h *head) Write(p []byte) (int, error) {
	if room := h.max - h.Len(); len(p) > room {
		h.Buffer.Write(p[:room])
		return room, errStopReading
	}
	return h.Buffer.Write(p)
}
