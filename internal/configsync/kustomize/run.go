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
	"sync"
	"time"

	"sigs.k8s.io/kustomize/api/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// write returns the kustomizations and their files under generated names. All folders are siblings, because kustomize may only read files
// below a folder.
func (b *build) write() (files []inputFile, err error) {
	for _, dir := range b.dirs {
		w := &writer{build: b, spec: b.specs[dir], root: "/" + b.folderName(dir) + "/"}
		text, err := json.Marshal(w.kustomization())
		if err != nil {
			return nil, fmt.Errorf("write the kustomization of %s: %w", failure.Quote(dir), err)
		}
		files = append(append(files, w.written...), inputFile{w.root + fileNames[0], text})
	}
	return files, nil
}

// writer writes one kustomization and its files.
type writer struct {
	*build
	*spec
	root    string
	written []inputFile
}

// add writes a file and returns its name.
func (w *writer) add(content []byte) string {
	name := "file-" + strconv.Itoa(len(w.written))
	w.written = append(w.written, inputFile{w.root + name, content})
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
		from.FileSources[i] = key + "=" + w.add(w.files[w.repoPath(file)])
	}
	for i, p := range from.EnvSources {
		from.EnvSources[i] = w.add(w.files[w.repoPath(p)])
	}
}

// Builder builds the kustomizations of one run, each in a process of its own.
type Builder struct {
	release func()
	cpu     time.Duration // that the builds took
}

// maxBuilders bounds the Builders of all owners together, because each takes up to maxMemory.
const maxBuilders = 2

// builders are the places of all Builders, and one for each owner.
var builders = struct {
	all    chan struct{}
	mu     sync.Mutex
	owners map[string]chan struct{}
}{all: make(chan struct{}, maxBuilders), owners: map[string]chan struct{}{}}

// maxWait bounds the wait for other Builders.
const maxWait = 20 * time.Second

// ErrBusy is wrapped by the error for a run that waited for other Builders for too long. The next run waits again.
var ErrBusy = errors.New("the kustomizations of other ConfigSyncs are being built")

// NewBuilder waits until the owner, a namespace, has no other Builder and there are fewer than maxBuilders, but not longer than maxWait. The
// caller must call Close.
func NewBuilder(ctx context.Context, owner string) (*Builder, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, maxWait, failure.New(v1alpha1.ReasonProgressing, "waits for the builder: %w; the next run tries again", ErrBusy))
	defer cancel()
	builders.mu.Lock()
	own := builders.owners[owner]
	if own == nil {
		own = make(chan struct{}, 1)
		builders.owners[owner] = own
	}
	builders.mu.Unlock()
	for _, place := range []chan struct{}{own, builders.all} {
		select {
		case place <- struct{}{}:
		case <-ctx.Done():
			if place == builders.all {
				<-own
			}
			return nil, context.Cause(ctx)
		}
	}
	return &Builder{release: func() { <-builders.all; <-own }}, nil
}

// Close lets the next Builder begin.
func (b *Builder) Close() { b.release() }

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
