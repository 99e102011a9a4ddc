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
	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/failure"
)

const (
	// maxBuilds bounds the builds of all kustomizations together; a base of two overlays is built twice.
	maxBuilds = 1000
	// maxInput bounds the bytes of all resources and files. A file counts each time that it is used.
	maxInput = 4 * manifest.MaxBytes
	// maxAdded bounds the bytes that kustomizations can add: the text of each, times the objects that it can change.
	maxAdded = 256 << 20
	// maxLoops bounds the fields of replacements that may copy the result of other replacements. Each can double an object.
	maxLoops = 8
)

// Text renders the content of a resource file. tainted means that the text may hold values of Secrets.
type Text func(path string, content []byte) (text []byte, tainted bool, err error)

// Build builds a kustomization. It renders resources with text, but not the files of generators and patches. If the files mention
// Secrets, errors do not quote them.
func (s *Sources) Build(ctx context.Context, b *builder.Builder, text Text) ([]manifest.Object, error) {
	in := &build{Sources: s, dirs: slices.Sorted(maps.Keys(s.specs)), objects: map[string]int{}, text: map[string][]byte{}}
	if err := in.renderResources(ctx, text); err != nil {
		return nil, err
	}
	if _, err := in.measure(s.root); err != nil {
		return nil, err
	}
	if err := in.checkReplacementLoops(); err != nil {
		return nil, err
	}
	files, err := in.write()
	if err != nil {
		return nil, err
	}
	made, err := b.Run(ctx, Name, "/"+in.folderName(s.root), files)
	if err != nil {
		return nil, in.explain(ctx, err)
	}
	list, err := manifest.Parse(ctx, s.File(), made)
	for i := range list {
		list[i].Tainted = in.tainted
	}
	return list, err
}

// build is one build of a kustomization: what Build renders, and what it counts.
type build struct {
	*Sources
	dirs    []string          // all folders, sorted
	text    map[string][]byte // the resources by file, as JSON documents
	objects map[string]int    // the number of objects of each of these files
	tainted bool

	buildCount, inputBytes, addedBytes int
}

// renderResources renders and parses all files of resources.
func (b *build) renderResources(ctx context.Context, text Text) error {
	for _, dir := range b.dirs {
		for _, ref := range b.specs[dir].resources {
			if _, done := b.text[ref.path]; done || ref.folder {
				continue
			}
			rendered, tainted, err := text(ref.path, b.files[ref.path])
			if err != nil {
				return err
			}
			list, err := manifest.Parse(ctx, ref.path, rendered)
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

// measure returns the number of objects that the build of a folder makes. It returns an error if the build would exceed a bound.
func (b *build) measure(dir string) (objects int, err error) {
	s := b.specs[dir]
	if b.buildCount++; b.buildCount > maxBuilds {
		return 0, b.limitExceeded("kustomizations are built more than %d times", maxBuilds)
	}
	for _, ref := range s.resources {
		if !ref.folder {
			objects, b.inputBytes = objects+b.objects[ref.path], b.inputBytes+len(b.text[ref.path])
			continue
		}
		n, err := b.measure(ref.path)
		if err != nil {
			return 0, err
		}
		objects += n
	}
	for _, ref := range s.dataFiles {
		b.inputBytes += len(b.files[ref.path])
	}
	objects += len(s.ConfigMapGenerator) + len(s.SecretGenerator)
	text, err := json.Marshal(s.Kustomization)
	if err != nil {
		return 0, err
	}
	b.addedBytes += len(text) * objects
	switch {
	case objects > manifest.MaxObjects:
		return 0, b.limitExceeded("more than %d objects are made", manifest.MaxObjects)
	case b.inputBytes > maxInput:
		return 0, b.limitExceeded("resources and files have more than %d bytes, each as often as it is used", maxInput)
	case b.addedBytes > maxAdded:
		return 0, b.limitExceeded("patches and labels could add more than %d bytes to the objects", maxAdded)
	}
	return objects, nil
}

func (b *build) limitExceeded(format string, args ...any) error {
	return failure.New(v1alpha1.ReasonLimitExceeded, "%s: %w; split it over several ConfigSyncs", failure.Quote(b.File()), fmt.Errorf(format, args...))
}

// checkReplacementLoops bounds the replacements that could copy an object into itself repeatedly: those with a target whose kind may also
// be the kind of a source. A source that may be a Secret taints all objects, because a replacement can copy its values into any object.
func (b *build) checkReplacementLoops() error {
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
			if r.Source == nil || !slices.ContainsFunc(r.Targets, func(t *types.TargetSelector) bool { return mayMatch(t.Select.Kind, sources) }) {
				continue
			}
			for _, t := range r.Targets {
				loops += max(1, len(t.FieldPaths))
			}
			if loops > maxLoops {
				return s.invalid(fmt.Sprintf("replacements[%d]", i), "the kind of a target is also one of a source, so that replacements could multiply an object; at most %d such fields are allowed: set select.kind", maxLoops)
			}
		}
	}
	return nil
}

// mayMatch reports whether the pattern of a kind may match one of the kinds. An empty pattern or kind matches any.
func mayMatch(pattern string, kinds []string) bool {
	selector, err := regexp.Compile("^(?:" + pattern + ")$")
	return slices.ContainsFunc(kinds, func(kind string) bool {
		return err != nil || pattern == "" || kind == "" || selector.MatchString(kind)
	})
}

// folderName returns the generated name of a folder.
func (b *build) folderName(dir string) string {
	return "folder-" + strconv.Itoa(slices.Index(b.dirs, dir))
}
