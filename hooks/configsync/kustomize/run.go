package kustomize

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/kustomize/kyaml/openapi"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/configsync/manifest"
	"stoker.io/stoker/internal/failure"
)

// write writes the kustomizations and their files under generated names into an in-memory file system. All folders are siblings, because
// kustomize may only read files below a folder.
func (b *build) write() (filesys.FileSystem, error) {
	files := filesys.MakeFsInMemory()
	for _, dir := range b.dirs {
		w := &writer{build: b, spec: b.specs[dir], files: files, root: "/" + b.folderName(dir) + "/"}
		text, err := json.Marshal(w.kustomization())
		if err == nil {
			err = files.WriteFile(w.root+fileNames[0], text)
		}
		if w.err != nil || err != nil {
			return nil, fmt.Errorf("write the kustomization of %s into memory: %w", failure.Quote(dir), cmp.Or(w.err, err))
		}
	}
	return files, nil
}

// writer writes one kustomization and its files.
type writer struct {
	*build
	*spec
	files     filesys.FileSystem
	root      string
	fileCount int
	err       error
}

// add writes a file and returns its name. If it fails, it sets w.err.
func (w *writer) add(content []byte) string {
	name := "file-" + strconv.Itoa(w.fileCount)
	w.fileCount++
	if err := w.files.WriteFile(w.root+name, content); err != nil {
		w.err = err
	}
	return name
}

func (w *writer) kustomization() types.Kustomization {
	k := w.Kustomization
	k.Resources, k.Components, k.Configurations = nil, nil, nil
	for _, ref := range w.resources {
		switch {
		case ref.folder && strings.HasPrefix(ref.field, "components"):
			k.Components = append(k.Components, "../"+w.folderName(ref.path))
		case ref.folder:
			k.Resources = append(k.Resources, "../"+w.folderName(ref.path))
		case w.objects[ref.path] > 0:
			k.Resources = append(k.Resources, w.add(w.text[ref.path]))
		}
	}
	for _, c := range w.configurations {
		k.Configurations = append(k.Configurations, w.add(c))
	}
	k.ConfigMapGenerator, k.SecretGenerator = slices.Clone(k.ConfigMapGenerator), slices.Clone(k.SecretGenerator)
	for i := range k.ConfigMapGenerator {
		w.addSources(&k.ConfigMapGenerator[i].KvPairSources)
	}
	for i := range k.SecretGenerator {
		w.addSources(&k.SecretGenerator[i].KvPairSources)
	}
	return k
}

// addSources writes the files of a generator. The key of a file is its name in git, unless the kustomization sets another.
func (w *writer) addSources(from *types.KvPairSources) {
	from.FileSources, from.EnvSources = slices.Clone(from.FileSources), slices.Clone(from.EnvSources)
	for i, p := range from.FileSources {
		key, file, found := strings.Cut(p, "=")
		if !found {
			key, file = path.Base(p), p
		}
		from.FileSources[i] = key + "=" + w.add(w.Sources.files[w.repoPath(file)])
	}
	for i, p := range from.EnvSources {
		from.EnvSources[i] = w.add(w.Sources.files[w.repoPath(p)])
	}
}

// Builder builds kustomizations. There is one at a time, because kustomize keeps its schema in a global variable.
type Builder struct {
	running sync.WaitGroup // the calls of kustomize
}

// builders has room for one Builder.
var builders = make(chan struct{}, 1)

// maxWait bounds the wait for other Builders.
const maxWait = time.Minute

// NewBuilder waits until the last Builder is closed and its builds have ended, but not longer than a minute. The caller must call Close.
func NewBuilder(ctx context.Context) (*Builder, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, maxWait, fmt.Errorf("the kustomizations of other ConfigSyncs are still being built after %s", maxWait))
	defer cancel()
	select {
	case builders <- struct{}{}:
		return &Builder{}, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Close lets the next Builder begin as soon as kustomize has returned, which may be after the context of a build has ended.
func (b *Builder) Close() {
	go func() {
		b.running.Wait()
		<-builders
	}()
}

// run builds the kustomization in dir, and returns the objects as JSON documents. It returns when ctx ends, even if kustomize does not.
func (b *Builder) run(ctx context.Context, files filesys.FileSystem, dir string) ([]byte, error) {
	type result struct {
		objects []byte
		err     error
	}
	done := make(chan result, 1)
	b.running.Go(func() {
		objects, err := runKustomize(files, dir)
		done <- result{objects, err}
	})
	select {
	case r := <-done:
		return r.objects, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// runKustomize calls kustomize, and turns a panic into an error.
func runKustomize(files filesys.FileSystem, dir string) (_ []byte, err error) {
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

// generatedNames matches the names of folders and files that write generates.
var generatedNames = regexp.MustCompile(`[./]*\b(?:folder-(\d+)(?:/file-\d+)?|file-\d+)\b`)

// explain turns an error of kustomize into one with a reason. It replaces generated names, and hides the text if it may quote a Secret.
func (b *build) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return err
	}
	if failure.Reason(err, "") != "" {
		return failure.New(failure.Reason(err, ""), "%s: %w", failure.Quote(b.File()), err)
	}
	if b.tainted || b.mentionsSecrets() {
		return failure.New(v1alpha1.ReasonManifestInvalid, "%s: kustomize cannot build it; the message is not shown because it may hold a value of a Secret: "+
			"run 'kustomize build' in a clone to see it", failure.Quote(b.File()))
	}
	text := generatedNames.ReplaceAllStringFunc(strings.Join(strings.Fields(err.Error()), " "), func(name string) string {
		if m := generatedNames.FindStringSubmatch(name); m[1] != "" {
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

// maxText bounds the text that is shown of an error of kustomize, in bytes.
const maxText = 500

// mentionsSecrets reports whether the build may have a Secret as input.
func (b *build) mentionsSecrets() bool {
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
