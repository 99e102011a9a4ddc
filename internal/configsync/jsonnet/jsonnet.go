// Package jsonnet evaluates Jsonnet files of a commit, from nothing but that commit.
//
// It finds the imports of a file in its text, fetches them, and evaluates the file in a child of package builder. An import is relative to
// the file that has it, or to the folder vendor at the root of the repository, into which jsonnet-bundler copies libraries.
package jsonnet

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/google/go-jsonnet"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/failure"
)

const (
	// Extension ends the names of files with objects.
	Extension = ".jsonnet"
	// Name names Run among the functions of builder.Main.
	Name = "jsonnet"

	maxFiles   = 1000   // of one build
	maxLookups = 20_000 // paths that the imports of one build may mean
)

// Sources are a file and all that it may import.
type Sources struct {
	file  string
	files []builder.InputFile
}

// imports matches an import in a text, also in a comment.
var imports = regexp.MustCompile(`\bimport(?:str|bin)?\s*@?(?:'([^'\n]*)'|"([^"\n]*)")`)

// candidates returns the paths that an import of a file may mean.
func candidates(from, name string) (list []string) {
	for _, dir := range []string{path.Dir(from), "vendor"} {
		p := path.Join(dir, name)
		if name != "" && !path.IsAbs(name) && p != ".." && !strings.HasPrefix(p, "../") {
			list = append(list, p)
		}
	}
	return list
}

// Read reads a file and, level by level, what it imports.
func Read(ctx context.Context, tree builder.Tree, file string) (*Sources, error) {
	s := &Sources{file: file}
	known := map[string]bool{file: true} // whether a path is a file
	for next := []string{file}; len(next) > 0; {
		contents, err := tree.Fetch(ctx, next)
		if err != nil {
			return nil, err
		}
		var found []string
		for _, p := range next {
			s.files = append(s.files, builder.InputFile{Name: p, Content: contents[p]})
			for _, m := range imports.FindAllSubmatch(contents[p], -1) {
				for _, c := range candidates(p, string(m[1])+string(m[2])) {
					isFile, seen := known[c]
					if !seen {
						kind, err := tree.Stat(c)
						if err != nil {
							return nil, failure.New(failure.Reason(err, v1alpha1.ReasonSourceMissing), "%s imports: %w", failure.Quote(p), err)
						}
						if isFile = kind == builder.File; isFile {
							found = append(found, c)
						}
						known[c] = isFile
						if len(known) > maxLookups {
							return nil, failure.New(v1alpha1.ReasonLimitExceeded, "%s: the imports name more than %d possible files", failure.Quote(file), maxLookups)
						}
					}
					if isFile {
						break
					}
				}
			}
		}
		if len(s.files)+len(found) > maxFiles {
			return nil, failure.New(v1alpha1.ReasonLimitExceeded, "%s imports more than %d files; split it over several ConfigSyncs", failure.Quote(file), maxFiles)
		}
		next = found
	}
	return s, nil
}

// mentions reports whether any of the files contains a text in lower case, whatever the case in the file.
func (s *Sources) mentions(text string) bool {
	return slices.ContainsFunc(s.files, func(f builder.InputFile) bool { return bytes.Contains(bytes.ToLower(f.Content), []byte(text)) })
}

// Build evaluates the file. Its value is an object or a list of objects. vars are external variables, which the build gets only if one of
// the files has the text extVar; tainted means that vars may hold values of Secrets. If a file mentions secrets, or the build gets tainted
// variables, errors do not quote what jsonnet says.
func (s *Sources) Build(ctx context.Context, b *builder.Builder, vars map[string]string, tainted bool) ([]manifest.Object, error) {
	if !s.mentions("extvar") {
		vars, tainted = nil, false
	}
	made, err := b.Run(ctx, Name, s.file, s.files, vars)
	if err != nil {
		fault := builder.Fault{File: s.file, Tool: "jsonnet", Command: "jsonnet", Hidden: tainted || s.mentions("secret")}
		return nil, fault.Explain(ctx, err, nil)
	}
	list, err := manifest.Parse(ctx, s.file, made)
	for i := range list {
		list[i].Tainted = tainted
	}
	return list, err
}

// Run evaluates a file in a child: it decodes the name of the file, all files, and the external variables. It returns the objects as JSON
// documents.
func Run(in *gob.Decoder) ([]byte, error) {
	var file string
	var files []builder.InputFile
	var vars map[string]string
	for _, into := range []any{&file, &files, &vars} {
		if err := in.Decode(into); err != nil {
			return nil, err
		}
	}
	vm := jsonnet.MakeVM()
	all := importer{}
	for _, f := range files {
		all[f.Name] = jsonnet.MakeContentsRaw(f.Content)
	}
	vm.Importer(all)
	for name, value := range vars {
		vm.ExtVar(name, value)
	}
	text, err := vm.EvaluateFile(file)
	if err != nil {
		return nil, err
	}
	documents := []json.RawMessage{json.RawMessage(text)}
	if strings.HasPrefix(text, "[") {
		if err := json.Unmarshal([]byte(text), &documents); err != nil {
			return nil, err
		}
	}
	if len(text) > manifest.MaxBytes-8*len(documents) {
		return nil, failure.New(v1alpha1.ReasonLimitExceeded, "the objects have more than %d bytes; split it over several ConfigSyncs", manifest.MaxBytes)
	}
	var out bytes.Buffer
	for _, d := range documents {
		var line bytes.Buffer
		if err := json.Compact(&line, d); err != nil {
			return nil, err
		}
		fmt.Fprintf(&out, "---\n%s\n", line.Bytes())
	}
	return out.Bytes(), nil
}

// importer has the files that can be imported.
type importer map[string]jsonnet.Contents

// Import implements jsonnet.Importer.
func (i importer) Import(from, name string) (jsonnet.Contents, string, error) {
	for _, p := range candidates(from, name) {
		if c, found := i[p]; found {
			return c, p, nil
		}
	}
	return jsonnet.Contents{}, "", fmt.Errorf("the commit has no %q beside the file or in vendor, written out after import", name)
}
