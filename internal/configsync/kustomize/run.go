package kustomize

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/failure"
)

// write returns the kustomizations and their files under generated names. Each kustomization gets a folder of its own, beside the others, with
// all files that it names: kustomize reads files only below the folder of the kustomization.
func (b *build) write() (files []builder.InputFile, err error) {
	for _, dir := range b.dirs {
		w := &writer{build: b, spec: b.specs[dir], root: "/" + b.folderName(dir) + "/"}
		text, err := json.Marshal(w.kustomization())
		if err != nil {
			return nil, fmt.Errorf("write the kustomization of %s: %w", failure.Quote(dir), err)
		}
		files = append(append(files, w.written...), builder.InputFile{Name: w.root + fileNames[0], Content: text})
	}
	return files, nil
}

// writer writes one kustomization and its files.
type writer struct {
	*build
	*spec
	root    string
	written []builder.InputFile
}

// add writes a file and returns its name.
func (w *writer) add(content []byte) string {
	name := "file-" + strconv.Itoa(len(w.written))
	w.written = append(w.written, builder.InputFile{Name: w.root + name, Content: content})
	return name
}

// kustomization writes the files of the kustomization, and returns the kustomization with their generated names.
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

// generatedNames matches the names of folders and files that write generates.
var generatedNames = regexp.MustCompile(`[./]*\b(?:folder-(\d+)(?:/file-\d+)?|file-\d+)\b`)

// explain turns an error of kustomize into one with a reason. It replaces generated names, and hides the text if it may quote a Secret.
func (b *build) explain(ctx context.Context, err error) error {
	fault := builder.Fault{File: b.File(), Tool: "kustomize", Command: "kustomize build", Hidden: b.tainted || b.mentionsSecrets()}
	return fault.Explain(ctx, err, func(text string) string {
		return generatedNames.ReplaceAllStringFunc(text, func(name string) string {
			if m := generatedNames.FindStringSubmatch(name); m[1] != "" {
				if n, err := strconv.Atoi(m[1]); err == nil && n < len(b.dirs) {
					return b.dirs[n]
				}
			}
			return "a file"
		})
	})
}

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

// Name names Run among the functions of builder.Main.
const Name = "kustomize"

// Run builds the kustomization of a folder in a child: it decodes the name of the folder, and the files. It returns the objects as JSON
// documents.
func Run(in *gob.Decoder) ([]byte, error) {
	var dir string
	var files []builder.InputFile
	if err := in.Decode(&dir); err != nil {
		return nil, err
	}
	if err := in.Decode(&files); err != nil {
		return nil, err
	}
	memory := filesys.MakeFsInMemory()
	for _, f := range files {
		if err := memory.WriteFile(f.Name, f.Content); err != nil {
			return nil, err
		}
	}
	objects, err := krusty.MakeKustomizer(&krusty.Options{
		Reorder: krusty.ReorderOptionNone, LoadRestrictions: types.LoadRestrictionsRootOnly, PluginConfig: types.DisabledPluginConfig(),
	}).Run(memory, dir)
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
