package references

import (
	"bytes"
	"errors"
	"slices"
	"strings"
)

// extractTags adds the UDT types that a udts.json or tags.json of a tag provider names, and defines if types is set. folder is the
// path of its folder below the provider.
func (f *file) extractTags(provider, folder string, types bool, content []byte) error {
	if !types && !bytes.Contains(content, []byte(`"typeId"`)) {
		return nil
	}
	v := &tagsVisitor{file: f, provider: provider}
	err := walk(content, v)
	if !types {
		return err
	}
	for _, name := range v.inFolder(folder, v.types) {
		f.defines = append(f.defines, Name{UDTType, provider, name})
		f.typesSize += len(name) + typeSize
	}
	if v.size > maxTypesPerFile {
		f.defines, f.typesSize = nil, 0
		return errManyTypes
	}
	return err
}

var errManyTypes = errors.New("the file defines more types than are kept")

func join(folder, name string) string {
	if folder == "" {
		return name
	}
	return folder + "/" + name
}

// tagsVisitor reads a list of tags, each of which may have a list of tags.
type tagsVisitor struct {
	file     *file
	provider string
	open     []*tag // innermost last
	types    []string
	size     int // in bytes, of all types: their paths, and typeSize for each
}

// typeSize is what a type takes in memory in addition to its path, in bytes.
const typeSize = 64

// tag is what was read so far of a tag.
type tag struct {
	depth              int // of its members
	name, kind, typeID string
	pointer            string   // of typeId
	types              []string // defined below it, relative to it
}

func (v *tagsVisitor) enter(at []segment) {
	if len(v.open) == 0 {
		if len(at) > 1 || len(at) == 1 && at[0].index < 0 {
			return
		}
	} else {
		rel := at[v.open[len(v.open)-1].depth:]
		if len(rel) != 2 || !rel[0].is("tags") || rel[1].index < 0 {
			return
		}
	}
	v.open = append(v.open, &tag{depth: len(at)})
}

func (v *tagsVisitor) leave(at []segment) {
	last := len(v.open) - 1
	if last < 0 || v.open[last].depth != len(at) {
		return
	}
	t := v.open[last]
	v.open = v.open[:last]
	types := t.types
	switch t.kind {
	case "UdtType":
		types = nil
		if v.size += len(t.name) + typeSize; v.size <= maxTypesPerFile {
			types = []string{t.name}
		}
		v.addType(t)
	case "UdtInstance":
		types = nil
		v.addType(t)
	case "Folder":
		types = v.inFolder(t.name, types)
	default:
		types = nil
	}
	if last > 0 {
		v.open[last-1].types = append(v.open[last-1].types, types...)
	} else {
		v.types = append(v.types, types...)
	}
}

// inFolder prefixes types with the path of their folder. It leaves out those that become longer than maxName.
func (v *tagsVisitor) inFolder(folder string, types []string) []string {
	if folder == "" {
		return types
	}
	types = slices.DeleteFunc(types, func(path string) bool { return len(folder)+len("/")+len(path) > maxName })
	if v.size += len(types) * (len(folder) + len("/")); v.size > maxTypesPerFile {
		return nil
	}
	for i := range types {
		types[i] = join(folder, types[i])
	}
	return types
}

func (v *tagsVisitor) scalar(at []segment, raw []byte) {
	if len(v.open) == 0 {
		return
	}
	t := v.open[len(v.open)-1]
	if len(at) != t.depth+1 {
		return
	}
	switch key := at[t.depth]; {
	case key.is("name"):
		t.name, _ = unquote(raw)
	case key.is("tagType"):
		t.kind, _ = unquote(raw)
	case key.is("typeId"):
		t.typeID, _ = unquote(raw)
		t.pointer = pointer(at)
	}
}

// addType adds the type of an instance, or the parent of a type. It may be written [provider]_types_/folder/name.
func (v *tagsVisitor) addType(t *tag) {
	name := strings.TrimSpace(t.typeID)
	if rest, ok := strings.CutPrefix(name, "["); ok {
		provider, path, found := strings.Cut(rest, "]")
		if !found || provider != v.provider {
			return // whether types of another provider count is not known
		}
		name = path
	}
	name = strings.Trim(strings.TrimPrefix(strings.Trim(name, "/"), "_types_/"), "/")
	v.file.add(Name{UDTType, v.provider, name}, t.pointer)
}
