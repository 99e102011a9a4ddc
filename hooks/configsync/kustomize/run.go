package kustomize

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/kustomize/kyaml/openapi"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/configsync/manifest"
	"stoker.io/stoker/internal/failure"
)

// write writes the kustomizations again, with what they name under names of our own. All folders lie beside each other, so that kustomize
// reads them with its own restriction to files below a folder.
func (b *build) write() (filesys.FileSystem, error) {
	files := filesys.MakeFsInMemory()
	for _, dir := range b.dirs {
		w := &writer{build: b, spec: b.specs[dir], files: files, root: "/" + b.folder(dir) + "/"}
		text, err := json.Marshal(w.kustomization())
		if err == nil {
			err = files.WriteFile(w.root+names[0], text)
		}
		if w.err != nil || err != nil {
			return nil, fmt.Errorf("write the kustomization of %s into memory: %w", failure.Quote(dir), errOf(w.err, err))
		}
	}
	return files, nil
}

func errOf(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// writer writes one kustomization and its files.
type writer struct {
	*build
	*spec
	files filesys.FileSystem
	root  string
	n     int
	err   error
}

// add writes a file and returns its name.
func (w *writer) add(content []byte) string {
	name := "file-" + strconv.Itoa(w.n)
	w.n++
	if err := w.files.WriteFile(w.root+name, content); err != nil {
		w.err = err
	}
	return name
}

func (w *writer) kustomization() types.Kustomization {
	k := w.Kustomization
	k.Resources, k.Components, k.Configurations = nil, nil, nil
	for _, ref := range w.spec.resources {
		switch {
		case ref.folder && strings.HasPrefix(ref.field, "components"):
			k.Components = append(k.Components, "../"+w.folder(ref.path))
		case ref.folder:
			k.Resources = append(k.Resources, "../"+w.folder(ref.path))
		case w.objects[ref.path] > 0:
			k.Resources = append(k.Resources, w.add(w.text[ref.path]))
		}
	}
	for _, c := range w.configurations {
		k.Configurations = append(k.Configurations, w.add(c))
	}
	k.ConfigMapGenerator, k.SecretGenerator = slices.Clone(k.ConfigMapGenerator), slices.Clone(k.SecretGenerator)
	for i := range k.ConfigMapGenerator {
		w.sources(&k.ConfigMapGenerator[i].KvPairSources)
	}
	for i := range k.SecretGenerator {
		w.sources(&k.SecretGenerator[i].KvPairSources)
	}
	return k
}

// sources writes the files of a generator. The key of one is its name in git, unless another is given.
func (w *writer) sources(from *types.KvPairSources) {
	from.FileSources, from.EnvSources = slices.Clone(from.FileSources), slices.Clone(from.EnvSources)
	for i, p := range from.FileSources {
		key, file, found := strings.Cut(p, "=")
		if !found {
			key, file = path.Base(p), p
		}
		from.FileSources[i] = key + "=" + w.add(w.Sources.files[w.join(file)])
	}
	for i, p := range from.EnvSources {
		from.EnvSources[i] = w.add(w.Sources.files[w.join(p)])
	}
}

// building is held by the build that is under way: kustomize keeps its schema in a variable of the process. A build that does not end keeps it.
var building = make(chan struct{}, 1)

// run builds what write has written, and returns the objects as JSON documents. It returns when ctx ends, whether kustomize does or not.
func run(ctx context.Context, files filesys.FileSystem, dir string) ([]byte, error) {
	select {
	case building <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	type result struct {
		made []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		defer func() { <-building }()
		made, err := krust(files, dir)
		done <- result{made, err}
	}()
	select {
	case r := <-done:
		return r.made, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// krust calls kustomize.
func krust(files filesys.FileSystem, dir string) (made []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("kustomize panics: %v", r)
		}
	}()
	openapi.ResetOpenAPI()
	objects, err := krusty.MakeKustomizer(&krusty.Options{
		Reorder: krusty.ReorderOptionNone, LoadRestrictions: types.LoadRestrictionsRootOnly, PluginConfig: types.DisabledPluginConfig(),
	}).Run(files, dir)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for _, o := range objects.Resources() {
		data, err := o.MarshalJSON()
		if err != nil {
			return nil, err
		}
		if out.Len()+len(data) > manifest.MaxBytes {
			return nil, failure.New(v1alpha1.ReasonLimitExceeded, "the objects have more than %d bytes; split it over several ConfigSyncs", manifest.MaxBytes)
		}
		out.WriteString("---\n")
		out.Write(data)
		out.WriteByte('\n')
	}
	return out.Bytes(), nil
}

// ours finds the names that write has made.
var ours = regexp.MustCompile(`[./]*\b(?:folder-(\d+)(?:/file-\d+)?|file-\d+)\b`)

// failed explains why kustomize did not build. Its errors quote files.
func (b *build) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return err
	}
	if failure.Reason(err, "") != "" {
		return failure.New(failure.Reason(err, ""), "%s: %w", failure.Quote(b.File()), err)
	}
	if b.tainted || b.speaksOfSecrets() {
		return failure.New(v1alpha1.ReasonManifestInvalid, "%s: kustomize cannot build it; the message is not shown because it may hold a value of a Secret: "+
			"run 'kustomize build' in a clone to see it", failure.Quote(b.File()))
	}
	text := ours.ReplaceAllStringFunc(strings.Join(strings.Fields(err.Error()), " "), func(name string) string {
		if m := ours.FindStringSubmatch(name); m[1] != "" {
			if n, err := strconv.Atoi(m[1]); err == nil && n < len(b.dirs) {
				return b.dirs[n]
			}
		}
		return "a file"
	})
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	return failure.New(v1alpha1.ReasonManifestInvalid, "%s: kustomize cannot build it: %s", failure.Quote(b.File()), text)
}

// maxText bounds what is shown of an error of kustomize.
const maxText = 500

// speaksOfSecrets reports whether Secrets may be among what is built.
func (b *build) speaksOfSecrets() bool {
	for _, s := range b.specs {
		if text, err := json.Marshal(s.Kustomization); err != nil || bytes.Contains(bytes.ToLower(text), []byte("secret")) {
			return true
		}
	}
	for _, text := range b.text {
		if bytes.Contains(bytes.ToLower(text), []byte("secret")) {
			return true
		}
	}
	return false
}
