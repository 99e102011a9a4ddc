// Package chart renders Helm charts of a commit, from nothing but that commit.
//
// It uses Helm's template engine in a child of package builder, without what Helm does beyond that: no chart or dependency is fetched, lookup
// finds nothing, a schema loads no other file, and there is no release in the cluster. A chart whose result differs each time, or that has
// hooks other than tests, is refused, because a ConfigSync compares objects with git and applies them in its own order.
package chart

import (
	"bytes"
	"context"
	"encoding/gob"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/failure"
)

// FileName is the name of the file that makes a folder a chart.
const FileName = "Chart.yaml"

// maxName bounds the name of a file, which may be from an archive. The status shows it.
const maxName = 512

// Sources are the files of a chart.
type Sources struct {
	dir   string
	files []builder.InputFile // with names below dir
}

// Tree is the commit that charts are read from.
type Tree interface {
	// List returns the paths of all files below a folder. It fails for symbolic links and submodules, and for too many files.
	List(folder string) ([]string, error)
	// Fetch returns the contents of files.
	Fetch(ctx context.Context, paths []string) (map[string][]byte, error)
}

// Read reads the chart of a folder.
func Read(ctx context.Context, tree Tree, dir string) (*Sources, error) {
	paths, err := tree.List(dir)
	if err != nil {
		return nil, err
	}
	contents, err := tree.Fetch(ctx, paths)
	if err != nil {
		return nil, err
	}
	s := &Sources{dir: dir}
	for _, p := range paths {
		name := p
		if dir != "." {
			name = strings.TrimPrefix(p, dir+"/")
		}
		s.files = append(s.files, builder.InputFile{Name: name, Content: contents[p]})
	}
	return s, nil
}

// Release is what templates see of the release, and the value files.
type Release struct {
	Name, Namespace string
	// Values are value files, of which a later one overrides an earlier one.
	Values []builder.InputFile
	// Tainted means that Values may have values of Secrets.
	Tainted bool
}

// Build renders the chart.
func (s *Sources) Build(ctx context.Context, b *builder.Builder, r Release) ([]manifest.Object, error) {
	in := input{Name: r.Name, Namespace: r.Namespace, Files: s.files}
	for _, v := range r.Values {
		documents, err := manifest.Documents(v.Name, v.Content)
		switch {
		case err != nil:
			return nil, err
		case len(documents) > 1 || len(documents) == 1 && documents[0].JSON[0] != '{':
			return nil, failure.New(v1alpha1.ReasonManifestInvalid, "%s is not a file of values: it must be one document of keys and values", failure.Quote(v.Name))
		case len(documents) == 1:
			in.Values = append(in.Values, documents[0].JSON)
		}
	}
	made, err := b.Run(ctx, Name, in)
	if err != nil {
		fault := builder.Fault{File: path.Join(s.dir, FileName), Tool: "helm", Command: "helm template", Hidden: r.Tainted}
		return nil, fault.Explain(ctx, err, nil)
	}
	var files []builder.InputFile
	if err := gob.NewDecoder(bytes.NewReader(made)).Decode(&files); err != nil {
		return nil, err
	}
	var list []manifest.Object
	for _, f := range files {
		if len(f.Name) > maxName || !utf8.ValidString(f.Name) || strings.ContainsFunc(f.Name, unicode.IsControl) {
			return nil, failure.New(v1alpha1.ReasonUnsafePath, "%s: an archive in charts/ has a file whose name is longer than %d bytes, or not text", failure.Quote(s.dir), maxName)
		}
		objects, err := manifest.Parse(ctx, path.Join(s.dir, f.Name), f.Content)
		if err != nil {
			return nil, err
		}
		for _, o := range objects {
			kept, err := keep(o)
			if err != nil {
				return nil, err
			}
			if o.Tainted = r.Tainted; kept {
				list = append(list, o)
			}
		}
	}
	return list, nil
}

// Annotations of Helm.
const (
	annotationHook   = "helm.sh/hook"
	annotationPolicy = "helm.sh/resource-policy"
)

// keep reports whether an object of a chart is applied. Tests are not: Helm runs them on request only. It marks an object that Helm never
// deletes as one that is never pruned.
func keep(o manifest.Object) (bool, error) {
	annotations := o.GetAnnotations()
	if hook, is := annotations[annotationHook]; is {
		if slices.Contains([]string{"test", "test-success", "test-failure"}, strings.TrimSpace(hook)) {
			return false, nil
		}
		return false, failure.New(v1alpha1.ReasonManifestInvalid, "%s: %s is a hook of Helm (%s), which no run starts: turn it off in a value file, or remove the annotation %s "+
			"to apply it as an object", failure.Quote(o.File), o.ID(), failure.Quote(hook), annotationHook)
	}
	if strings.TrimSpace(annotations[annotationPolicy]) == "keep" {
		annotations[v1alpha1.AnnotationConfigPrune] = "disabled"
		o.SetAnnotations(annotations)
	}
	return true, nil
}
