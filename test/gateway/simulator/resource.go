package simulator

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

const (
	resourceFile  = "resource.json"
	thumbnailFile = "thumbnail.png"
	unaryFile     = "unary-resource.json"
	// maxConfig is the maximum size of a config.json that is parsed for the resource routes, in bytes.
	maxConfig = 1 << 20
)

// resource is a loaded resource.
type resource struct {
	path    string // <module>/<type>[/<name>…]
	unary   bool
	doc     ordered.Object // resource.json
	files   []string
	digests map[string]string // file name → lower-case hex SHA-256
	config  ordered.Value     // config.json, or nil
	// raw has the files' content for a gateway before 8.3, which signs the content and not its digests; otherwise nil.
	raw map[string][]byte
}

// errNoAttributes is a load error that makes a starting gateway fault.
var errNoAttributes = errors.New("resource.json has no attributes object")

// loadResource reads the resource in dir. name is its resource.json or unary-resource.json.
func loadResource(root *os.Root, dir, name, resourcePath string) (*resource, error) {
	raw, err := datadir.Read(root, path.Join(dir, name))
	if err != nil {
		return nil, err
	}
	parsed, err := ordered.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	r := &resource{path: resourcePath, unary: name == unaryFile, digests: map[string]string{}}
	var ok bool
	if r.doc, ok = parsed.(ordered.Object); !ok {
		return nil, fmt.Errorf("%s is no JSON object", name)
	}
	if r.attributes() == nil {
		return nil, errNoAttributes
	}
	if r.files, err = r.listedFiles(); err != nil {
		return nil, err
	}
	for _, f := range r.files {
		if err := r.loadFile(root, dir, f); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *resource) loadFile(root *os.Root, dir, file string) error {
	raw, err := datadir.Read(root, path.Join(dir, file))
	if err != nil {
		return fmt.Errorf("the listed file %s: %w", file, err)
	}
	if strings.HasSuffix(file, ".json") {
		if !json.Valid(raw) {
			return fmt.Errorf("the listed file %s is no JSON", file)
		}
		if file == "config.json" && len(raw) <= maxConfig {
			if r.config, err = ordered.Parse(raw); err != nil {
				return fmt.Errorf("the listed file %s: %w", file, err)
			}
		}
	}
	sum := sha256.Sum256(raw)
	r.digests[file] = hex.EncodeToString(sum[:])
	return nil
}

// readRaw reads the content of all resources.
func (t *tree) readRaw(root *os.Root) []problem {
	var problems []problem
	for name, r := range t.resources {
		r.raw = map[string][]byte{}
		for _, f := range r.files {
			raw, err := datadir.Read(root, path.Join(t.dir, name, f))
			if err != nil {
				problems = append(problems, problem{path.Join(t.dir, name), err})
			}
			r.raw[f] = raw
		}
	}
	return problems
}

func (r *resource) listedFiles() ([]string, error) {
	v, _ := r.doc.Get("files")
	list, ok := v.(ordered.Array)
	if !ok && v != nil {
		return nil, errors.New("resource.json: files is no list")
	}
	var files []string
	for _, item := range list {
		name, ok := item.(string)
		if !ok || name == "" || strings.ContainsAny(name, `/\`) || name == ".." {
			return nil, fmt.Errorf("resource.json: files lists %v, which is no file name", item)
		}
		files = append(files, name)
	}
	slices.Sort(files)
	return files, nil
}

// attributes returns nil if there are none.
func (r *resource) attributes() ordered.Object {
	o, _ := ordered.Dig(r.doc, "attributes").(ordered.Object)
	return o
}

func (r *resource) storedSignature() string {
	s, _ := ordered.Dig(r.attributes(), "lastModificationSignature").(string)
	return s
}

func (r *resource) enabled() bool {
	enabled, ok := ordered.Dig(r.attributes(), "enabled").(bool)
	return !ok || enabled
}

func (r *resource) flag(key string) byte {
	if ordered.Dig(r.doc, key) == true {
		return 1
	}
	return 0
}

// signature computes lastModificationSignature: SHA-256 over scope, description, version, three flags, the sorted files
// with the hex digest of each (before 8.3, with its bytes), and the sorted attributes except the signature itself.
func (r *resource) signature() (string, error) {
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
		if text, ok := r.doc.Get(key); ok {
			fmt.Fprint(h, text)
			break
		}
	}
	_ = binary.Write(h, binary.BigEndian, version)
	h.Write([]byte{0, r.flag("restricted"), r.flag("overridable")})
	for _, name := range slices.Sorted(maps.Keys(r.digests)) {
		h.Write([]byte(name))
		if r.raw != nil {
			h.Write(r.raw[name])
		} else {
			h.Write([]byte(r.digests[name]))
		}
	}
	attributes := slices.Clone(r.attributes())
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
func (r *resource) scope() (int32, error) {
	bits := map[rune]int32{'A': 7, 'G': 1, 'D': 2, 'C': 4, 'N': 0}
	letters, ok := ordered.Dig(r.doc, "scope").(string)
	if !ok {
		return 0, errors.New("resource.json: scope is no text")
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

func (r *resource) version() (int32, error) {
	number, ok := ordered.Dig(r.doc, "version").(json.Number)
	if !ok {
		return 0, errors.New("resource.json: version is no number")
	}
	n, err := strconv.ParseInt(number.String(), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("resource.json: version: %w", err)
	}
	return int32(n), nil
}

// sign returns a copy with a new lastModification and signature, and the bytes of its resource.json.
func (r *resource) sign(actor string, at time.Time) (*resource, []byte, error) {
	next := *r
	stamp := ordered.Object{{"actor", actor}, {"timestamp", at.UTC().Format("2006-01-02T15:04:05Z")}}
	next.doc = r.doc.With("attributes", r.attributes().With("lastModification", stamp))
	signature, err := next.signature()
	if err != nil {
		return nil, nil, err
	}
	next.doc = next.doc.With("attributes", next.attributes().With("lastModificationSignature", signature))
	return &next, ordered.Pretty(next.ordered()), nil
}

// ordered returns resource.json with its keys in the gateway's order, unknown keys last.
func (r *resource) ordered() ordered.Object {
	known := []string{"scope", "description", "documentation", "version", "restricted", "overridable", "files", "attributes"}
	out := ordered.Object{}
	for _, key := range known {
		if v, ok := r.doc.Get(key); ok {
			out = append(out, ordered.Member{key, v})
		}
	}
	for _, m := range r.doc {
		if !slices.Contains(known, m.Key()) {
			out = append(out, m)
		}
	}
	return out
}

// newResource returns a new resource without files.
func newResource(resourcePath, scope string) *resource {
	return &resource{path: resourcePath, digests: map[string]string{}, doc: ordered.Object{
		{"scope", scope}, {"version", json.Number("1")}, {"restricted", false}, {"overridable", true},
		{"files", ordered.Array{}}, {"attributes", ordered.Object{}},
	}}
}

// withFiles returns a copy with data files added or replaced.
func (r *resource) withFiles(files map[string][]byte) *resource {
	next := *r
	next.digests = maps.Clone(r.digests)
	for name, raw := range files {
		sum := sha256.Sum256(raw)
		next.digests[name] = hex.EncodeToString(sum[:])
	}
	if r.raw != nil {
		next.raw = maps.Clone(r.raw)
		maps.Copy(next.raw, files)
	}
	next.files = slices.Sorted(maps.Keys(next.digests))
	list := make(ordered.Array, 0, len(next.files))
	for _, f := range next.files {
		list = append(list, f)
	}
	next.doc = r.doc.With("files", list)
	return &next
}
