package kustomize

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"

	"sigs.k8s.io/kustomize/api/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/configsync/manifest"
	"stoker.io/stoker/internal/failure"
)

const (
	// maxBuilds bounds how often kustomizations are built in all; a base of two overlays is built twice.
	maxBuilds = 1000
	// maxInput bounds the bytes of all resources and files, as often as they are used.
	maxInput = 4 * manifest.MaxBytes
	// maxAdded bounds what kustomizations can add: the text of each, for each object that it can change.
	maxAdded = 256 << 20
	// maxLoops bounds the replacements that may copy what others have written. Each can double an object.
	maxLoops = 8
)

// Text makes the manifest of a file of resources from what git has. tainted says that it may hold values of Secrets.
type Text func(path string, content []byte) (text []byte, tainted bool, err error)

// Build builds the kustomization. Resources go through text; what generators and patches read is taken as it is. Errors show nothing
// of the files if those speak of Secrets.
func (s *Sources) Build(ctx context.Context, text Text) ([]manifest.Object, error) {
	b := &build{Sources: s, dirs: slices.Sorted(maps.Keys(s.specs)), objects: map[string]int{}, text: map[string][]byte{}}
	if err := b.resources(text); err != nil {
		return nil, err
	}
	if _, err := b.measure(s.root); err != nil {
		return nil, err
	}
	if err := b.loops(); err != nil {
		return nil, err
	}
	files, err := b.write()
	if err != nil {
		return nil, err
	}
	made, err := run(ctx, files, "/"+b.folder(s.root))
	if err != nil {
		return nil, b.failed(ctx, err)
	}
	list, err := manifest.Parse(s.File(), made)
	for i := range list {
		list[i].Tainted = b.tainted
	}
	return list, err
}

// build is one build.
type build struct {
	*Sources
	dirs    []string          // all folders
	text    map[string][]byte // the resources by file, as JSON documents
	objects map[string]int    // how many objects each has
	tainted bool

	builds, input, added int
}

// resources renders and parses all files of resources.
func (b *build) resources(text Text) error {
	for _, dir := range b.dirs {
		for _, ref := range b.specs[dir].resources {
			if _, done := b.text[ref.path]; done || ref.folder {
				continue
			}
			rendered, tainted, err := text(ref.path, b.files[ref.path])
			if err != nil {
				return err
			}
			list, err := manifest.Parse(ref.path, rendered)
			if err != nil {
				return err
			}
			var out bytes.Buffer
			for i, o := range list {
				data, err := json.Marshal(o.Object)
				if err != nil {
					return err
				}
				if i > 0 {
					out.WriteString("\n---\n")
				}
				out.Write(data)
			}
			b.text[ref.path], b.objects[ref.path], b.tainted = out.Bytes(), len(list), b.tainted || tainted
		}
	}
	return nil
}

// measure returns how many objects a folder makes, and refuses what would grow beyond the bounds.
func (b *build) measure(dir string) (objects int, err error) {
	s := b.specs[dir]
	if b.builds++; b.builds > maxBuilds {
		return 0, b.tooMuch("kustomizations are built more than %d times", maxBuilds)
	}
	for _, ref := range s.resources {
		if !ref.folder {
			objects, b.input = objects+b.objects[ref.path], b.input+len(b.text[ref.path])
			continue
		}
		n, err := b.measure(ref.path)
		if err != nil {
			return 0, err
		}
		objects += n
	}
	for _, ref := range s.others {
		b.input += len(b.files[ref.path])
	}
	objects += len(s.ConfigMapGenerator) + len(s.SecretGenerator)
	text, err := json.Marshal(s.Kustomization)
	if err != nil {
		return 0, err
	}
	b.added += len(text) * objects
	switch {
	case objects > manifest.MaxObjects:
		return 0, b.tooMuch("more than %d objects are made", manifest.MaxObjects)
	case b.input > maxInput:
		return 0, b.tooMuch("resources and files have more than %d bytes, each as often as it is used", maxInput)
	case b.added > maxAdded:
		return 0, b.tooMuch("patches and labels could add more than %d bytes to the objects", maxAdded)
	}
	return objects, nil
}

func (b *build) tooMuch(format string, args ...any) error {
	return failure.New(v1alpha1.ReasonLimitExceeded, "%s: %w; split it over several ConfigSyncs", failure.Quote(b.File()), fmt.Errorf(format, args...))
}

// loops refuses replacements that could copy an object into itself again and again: those of which the kind of a source may be that of a
// target, too. A source that may be a Secret taints all objects, because its values go anywhere.
func (b *build) loops() error {
	var sources []string
	for _, s := range b.specs {
		for _, r := range s.Replacements {
			if r.Source != nil {
				sources = append(sources, r.Source.Kind)
				b.tainted = b.tainted || r.Source.Kind == "" || r.Source.Kind == "Secret"
			}
		}
	}
	loops := 0
	for _, dir := range b.dirs {
		s := b.specs[dir]
		for i, r := range s.Replacements {
			if r.Source == nil || !slices.ContainsFunc(r.Targets, func(t *types.TargetSelector) bool { return mayBe(t.Select.Kind, sources) }) {
				continue
			}
			for _, t := range r.Targets {
				loops += max(1, len(t.FieldPaths))
			}
			if loops > maxLoops {
				return s.bad(fmt.Sprintf("replacements[%d]", i), "the kind of a target is also one of a source, so that replacements could multiply an object; at most %d such fields are allowed: set select.kind", maxLoops)
			}
		}
	}
	return nil
}

// mayBe reports whether the pattern of a kind can match one of the kinds; an empty kind is any.
func mayBe(pattern string, kinds []string) bool {
	selector, err := regexp.Compile("^(?:" + pattern + ")$")
	return slices.ContainsFunc(kinds, func(kind string) bool {
		return err != nil || pattern == "" || kind == "" || selector.MatchString(kind)
	})
}

// folder is the name of a folder for kustomize.
func (b *build) folder(dir string) string { return "folder-" + strconv.Itoa(slices.Index(b.dirs, dir)) }
