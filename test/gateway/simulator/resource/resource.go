// Package resource reads the projects and the configuration of a data directory, and signs their resources, as a gateway does.
package resource

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"stoker.io/stoker/test/gateway/simulator/datadir"
	"stoker.io/stoker/test/gateway/simulator/ordered"
)

// File describes a resource. UnaryFile takes its place in a resource that a gateway does not sign, such as a tag folder.
const (
	File      = "resource.json"
	UnaryFile = "unary-resource.json"
)

// maxConfig is the maximum size of a config.json that is parsed for the resource routes, in bytes.
const maxConfig = 1 << 20

// Resource is a loaded resource.
type Resource struct {
	Path    string // <module>/<type>[/<name>…]
	Unary   bool
	Doc     ordered.Object // resource.json
	Files   []string
	Digests map[string]string // file name → lower-case hex SHA-256
	Config  ordered.Value     // config.json, or nil
	// Raw has the files' content for a gateway before 8.3, which signs the content and not its digests; otherwise nil.
	Raw map[string][]byte
}

// ErrNoAttributes is a load error that makes a starting gateway fault.
var ErrNoAttributes = errors.New("resource.json has no attributes object")

// Load reads the resource in dir. name is its resource.json or unary-resource.json.
func Load(root *os.Root, dir, name, resourcePath string) (*Resource, error) {
	raw, err := datadir.Read(root, path.Join(dir, name))
	if err != nil {
		return nil, err
	}
	parsed, err := ordered.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	r := &Resource{Path: resourcePath, Unary: name == UnaryFile, Digests: map[string]string{}}
	var ok bool
	if r.Doc, ok = parsed.(ordered.Object); !ok {
		return nil, fmt.Errorf("%s is not a JSON object", name)
	}
	if r.Attributes() == nil {
		return nil, ErrNoAttributes
	}
	if r.Files, err = r.listedFiles(); err != nil {
		return nil, err
	}
	for _, f := range r.Files {
		if err := r.loadFile(root, dir, f); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *Resource) loadFile(root *os.Root, dir, file string) error {
	raw, err := datadir.Read(root, path.Join(dir, file))
	if err != nil {
		return fmt.Errorf("the listed file %s: %w", file, err)
	}
	if strings.HasSuffix(file, ".json") {
		if !json.Valid(raw) {
			return fmt.Errorf("the listed file %s is not JSON", file)
		}
		if file == "config.json" && len(raw) <= maxConfig {
			if r.Config, err = ordered.Parse(raw); err != nil {
				return fmt.Errorf("the listed file %s: %w", file, err)
			}
		}
	}
	sum := sha256.Sum256(raw)
	r.Digests[file] = hex.EncodeToString(sum[:])
	return nil
}

// ReadRaw reads the content of all resources.
func (t *Tree) ReadRaw(root *os.Root) []Problem {
	var problems []Problem
	for name, r := range t.Resources {
		r.Raw = map[string][]byte{}
		for _, f := range r.Files {
			raw, err := datadir.Read(root, path.Join(t.Dir, name, f))
			if err != nil {
				problems = append(problems, Problem{path.Join(t.Dir, name), err})
			}
			r.Raw[f] = raw
		}
	}
	return problems
}

func (r *Resource) listedFiles() ([]string, error) {
	v, _ := r.Doc.Get("files")
	list, ok := v.(ordered.Array)
	if !ok && v != nil {
		return nil, errors.New("resource.json: files is not a list")
	}
	var files []string
	for _, item := range list {
		name, ok := item.(string)
		if !ok || name == "" || strings.ContainsAny(name, `/\`) || name == ".." {
			return nil, fmt.Errorf("resource.json: files lists %v, which is not a file name", item)
		}
		files = append(files, name)
	}
	slices.Sort(files)
	return files, nil
}

// Attributes returns the attributes of resource.json, or nil if there are none.
func (r *Resource) Attributes() ordered.Object {
	o, _ := ordered.Dig(r.Doc, "attributes").(ordered.Object)
	return o
}

// StoredSignature returns the signature that resource.json has, or "".
func (r *Resource) StoredSignature() string {
	s, _ := ordered.Dig(r.Attributes(), "lastModificationSignature").(string)
	return s
}

// Enabled reports whether the resource is enabled, which is the default.
func (r *Resource) Enabled() bool {
	enabled, ok := ordered.Dig(r.Attributes(), "enabled").(bool)
	return !ok || enabled
}

func (r *Resource) flag(key string) byte {
	if ordered.Dig(r.Doc, key) == true {
		return 1
	}
	return 0
}

// Signature computes lastModificationSignature: SHA-256 over scope, description, version, a zero byte, two flags, the
// sorted files with the hex digest of each (before 8.3, with its bytes), and the sorted attributes except the signature itself.
func (r *Resource) Signature() (string, error) {
	scope, err := r.scope()
	if err != nil {
		return "", err
	}
	version, err := r.version()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_ = binary.Write(h, binary.BigEndian, scope)
	for _, key := range []string{"documentation", "description"} {
		if text, ok := r.Doc.Get(key); ok {
			fmt.Fprint(h, text)
			break
		}
	}
	_ = binary.Write(h, binary.BigEndian, version)
	h.Write([]byte{0, r.flag("restricted"), r.flag("overridable")})
	for _, name := range slices.Sorted(maps.Keys(r.Digests)) {
		h.Write([]byte(name))
		if r.Raw != nil {
			h.Write(r.Raw[name])
		} else {
			h.Write([]byte(r.Digests[name]))
		}
	}
	attributes := slices.Clone(r.Attributes())
	slices.SortFunc(attributes, func(a, b ordered.Member) int { return strings.Compare(a.Key(), b.Key()) })
	for _, m := range attributes {
		if m.Key() != "lastModificationSignature" {
			h.Write([]byte(m.Key()))
			h.Write(ordered.Compact(m.Value()))
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// scope returns the bits of the scope's letters; A has all bits.
func (r *Resource) scope() (int32, error) {
	bits := map[rune]int32{'A': 7, 'G': 1, 'D': 2, 'C': 4, 'N': 0}
	letters, ok := ordered.Dig(r.Doc, "scope").(string)
	if !ok {
		return 0, errors.New("resource.json: scope is not a string")
	}
	var scope int32
	for _, l := range letters {
		bit, ok := bits[l]
		if !ok {
			return 0, fmt.Errorf("resource.json: scope %q has an unknown letter", letters)
		}
		scope |= bit
	}
	return scope, nil
}

func (r *Resource) version() (int32, error) {
	number, ok := ordered.Dig(r.Doc, "version").(json.Number)
	if !ok {
		return 0, errors.New("resource.json: version is not a number")
	}
	n, err := strconv.ParseInt(number.String(), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("resource.json: version: %w", err)
	}
	return int32(n), nil
}

// Sign returns a copy with a new lastModification and signature, and the bytes of its resource.json.
func (r *Resource) Sign(actor string, at time.Time) (*Resource, []byte, error) {
	next := *r
	stamp := ordered.Object{{"actor", actor}, {"timestamp", at.UTC().Format("2006-01-02T15:04:05Z")}}
	next.Doc = r.Doc.With("attributes", r.Attributes().With("lastModification", stamp))
	signature, err := next.Signature()
	if err != nil {
		return nil, nil, err
	}
	next.Doc = next.Doc.With("attributes", next.Attributes().With("lastModificationSignature", signature))
	return &next, ordered.Pretty(next.Ordered()), nil
}

// Ordered returns resource.json with its keys in the gateway's order, unknown keys last.
func (r *Resource) Ordered() ordered.Object {
	known := []string{"scope", "description", "documentation", "version", "restricted", "overridable", "files", "attributes"}
	out := ordered.Object{}
	for _, key := range known {
		if v, ok := r.Doc.Get(key); ok {
			out = append(out, ordered.Member{key, v})
		}
	}
	for _, m := range r.Doc {
		if !slices.Contains(known, m.Key()) {
			out = append(out, m)
		}
	}
	return out
}

// New returns a new resource without files.
func New(resourcePath, scope string) *Resource {
	return &Resource{Path: resourcePath, Digests: map[string]string{}, Doc: ordered.Object{
		{"scope", scope}, {"version", json.Number("1")}, {"restricted", false}, {"overridable", true},
		{"files", ordered.Array{}}, {"attributes", ordered.Object{}},
	}}
}

// WithFiles returns a copy with data files added or replaced.
func (r *Resource) WithFiles(files map[string][]byte) *Resource {
	next := *r
	next.Digests = maps.Clone(r.Digests)
	for name, raw := range files {
		sum := sha256.Sum256(raw)
		next.Digests[name] = hex.EncodeToString(sum[:])
	}
	if r.Raw != nil {
		next.Raw = maps.Clone(r.Raw)
		maps.Copy(next.Raw, files)
	}
	next.Files = slices.Sorted(maps.Keys(next.Digests))
	list := make(ordered.Array, 0, len(next.Files))
	for _, f := range next.Files {
		list = append(list, f)
	}
	next.Doc = r.Doc.With("files", list)
	return &next
}
