// Package manifest parses Kubernetes manifests. The repository may be hostile, so every size and depth is bounded. The package also
// defines the identity of an object, its line in an inventory, and the order of kinds. It does no I/O.
package manifest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	syaml "sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Bounds. Manifests that people write stay far below them.
const (
	// MaxBytes bounds all manifests of a run.
	MaxBytes = 16 << 20
	// MaxObjects bounds the objects of a run.
	MaxObjects = 2000
	// MaxObject bounds the bytes of one document, also after its aliases are expanded. An API server has nearly the same bound for an object.
	MaxObject = 1 << 20

	// maxDocuments bounds the documents of a file, including empty ones.
	maxDocuments = 2 * MaxObjects
	maxDepth     = 64
)

// lineOf finds the line in an error of the YAML parser. No other part of such an error is shown, because it quotes the document, which
// may be a Secret.
var lineOf = regexp.MustCompile(`\bline (\d+)`)

// Document is a document of a YAML file, as JSON.
type Document struct {
	// At names the file and the document in errors.
	At   string
	JSON []byte
}

// Documents returns the documents of a file except empty ones, with aliases expanded. Errors name the file and the document, and never
// quote it.
func Documents(file string, text []byte) ([]Document, error) {
	return documents(context.Background(), file, text)
}

// documents is Documents until ctx ends.
func documents(ctx context.Context, file string, text []byte) ([]Document, error) {
	var list []Document
	size := 0
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for n := 1; ; n++ {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if n > maxDocuments {
			return nil, failure.New(v1alpha1.ReasonLimitExceeded, "%s has more than %d documents, with empty ones; split it over several ConfigSyncs", failure.Quote(file), maxDocuments)
		}
		at := fmt.Sprintf("%s, document %d", failure.Quote(file), n)
		if err != nil {
			return nil, failure.New(v1alpha1.ReasonManifestInvalid, "%s cannot be read as YAML", at)
		}
		data, err := toJSON(at, document)
		if err != nil {
			return nil, err
		}
		if size += len(data); size > MaxBytes {
			return nil, failure.New(v1alpha1.ReasonLimitExceeded, "%s has more than %d bytes as JSON; split it over several ConfigSyncs", failure.Quote(file), MaxBytes)
		}
		if data != nil {
			list = append(list, Document{at, data})
		}
	}
}

// Parse returns the objects of a file. If ctx ends first, the error is its cause. Other errors name the file and the document, and never quote it.
func Parse(ctx context.Context, file string, text []byte) ([]Object, error) {
	documents, err := documents(ctx, file, text)
	if err != nil {
		return nil, err
	}
	var list []Object
	for _, d := range documents {
		objects, err := d.objects()
		if err != nil {
			return nil, err
		}
		for _, o := range objects {
			if len(list) >= MaxObjects {
				return nil, failure.New(v1alpha1.ReasonLimitExceeded, "%s has more than %d objects; split it over several ConfigSyncs", failure.Quote(file), MaxObjects)
			}
			list = append(list, Object{Unstructured: o, File: file})
		}
	}
	return list, nil
}

// toJSON returns a document as JSON, or nil if it is empty.
func toJSON(at string, document []byte) ([]byte, error) {
	if len(document) > MaxObject {
		return nil, failure.New(v1alpha1.ReasonLimitExceeded, "%s has %d bytes; at most %d are allowed", at, len(document), MaxObject)
	}
	var node, next yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(document))
	if err := decoder.Decode(&node); err != nil && !errors.Is(err, io.EOF) {
		return nil, invalidYAML(at, err)
	}
	if err := decoder.Decode(&next); !errors.Is(err, io.EOF) { // the parser below would ignore it
		return nil, failure.New(v1alpha1.ReasonManifestInvalid, "%s has more text after its end: begin each document with a line of ---", at)
	}
	w := sizeCounter{at: at, openAnchors: map[*yaml.Node]bool{}}
	if err := w.count(&node, 0); err != nil {
		return nil, err
	}
	data, err := syaml.YAMLToJSONStrict(document)
	if err != nil {
		return nil, invalidYAML(at, err)
	}
	if bytes.Equal(bytes.TrimSpace(data), []byte("null")) {
		return nil, nil
	}
	if len(data) > MaxObject {
		return nil, failure.New(v1alpha1.ReasonLimitExceeded, "%s has %d bytes as JSON; at most %d are allowed", at, len(data), MaxObject)
	}
	return data, nil
}

func (d Document) objects() ([]*unstructured.Unstructured, error) {
	object := map[string]any{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(d.JSON, &object); err != nil {
		return nil, failure.New(v1alpha1.ReasonManifestInvalid, "%s is not an object: start it with apiVersion and kind", d.At)
	}
	u := &unstructured.Unstructured{Object: object}
	if object["apiVersion"] == "v1" && object["kind"] == "List" {
		return items(d.At, u)
	}
	return []*unstructured.Unstructured{u}, check(d.At, u)
}

// invalidYAML returns the error for a document that cannot be parsed. It names the line of err.
func invalidYAML(at string, err error) error {
	line := ""
	if m := lineOf.FindStringSubmatch(err.Error()); m != nil {
		line = " near line " + m[1]
	}
	return failure.New(v1alpha1.ReasonManifestInvalid, "%s is not valid YAML%s: check quotes, indentation, anchors and repeated keys", at, line)
}

// items returns the objects of a List.
func items(at string, list *unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	raw, found, err := unstructured.NestedSlice(list.Object, "items")
	if err != nil || !found {
		return nil, failure.New(v1alpha1.ReasonManifestInvalid, "%s: items of a List must be a list of objects", at)
	}
	var all []*unstructured.Unstructured
	for i, item := range raw {
		object, ok := item.(map[string]any)
		if !ok {
			return nil, failure.New(v1alpha1.ReasonManifestInvalid, "%s: items[%d] is not an object", at, i)
		}
		u := &unstructured.Unstructured{Object: object}
		if err := check(fmt.Sprintf("%s, items[%d]", at, i), u); err != nil {
			return nil, err
		}
		all = append(all, u)
	}
	return all, nil
}

// serverFields are metadata fields that only an API server sets. A manifest with one of them was copied from a cluster.
var serverFields = []string{"managedFields", "resourceVersion", "uid"}

// check returns an error if u cannot be a valid object. Its names are safe in the URL of a request.
func check(at string, u *unstructured.Unstructured) error {
	bad := func(format string, args ...any) error {
		return failure.New(v1alpha1.ReasonManifestInvalid, "%s: %w", at, fmt.Errorf(format, args...))
	}
	apiVersion, isText := u.Object["apiVersion"].(string)
	kind, isKind := u.Object["kind"].(string)
	gv, err := schema.ParseGroupVersion(apiVersion)
	switch {
	case !isText || !isKind || err != nil || gv.Version == "" || kind == "":
		return bad("apiVersion and kind must be texts such as v1 and ConfigMap")
	case len(apiVersion)+len(kind) > 317 || strings.ContainsAny(apiVersion+kind, "_ \t\r\n") || strings.Contains(kind, "/"):
		return bad("apiVersion and kind must be those of a kind of Kubernetes")
	}
	if sops, isMap := u.Object["sops"].(map[string]any); isMap && (sops["mac"] != nil || sops["version"] != nil) {
		return bad("it is encrypted with SOPS (it has the keys sops.mac and sops.version), and no run decrypts: apply the object of External Secrets or Sealed Secrets, or decrypt it before the run")
	}
	metadata, isMap := u.Object["metadata"].(map[string]any)
	if !isMap {
		return bad("metadata is missing")
	}
	name, isText := metadata["name"].(string)
	if !isText || !isName(name) {
		return bad("metadata.name must be the name of an object; generateName makes a new object in each run and is not supported")
	}
	for _, field := range []string{"labels", "annotations", "namespace"} { // templates with empty blocks write null
		if v, ok := metadata[field]; ok && (v == nil || field == "namespace" && v == "") {
			delete(metadata, field)
		}
	}
	if namespace, ok := metadata["namespace"]; ok {
		if text, isText := namespace.(string); !isText || !isName(text) || len(text) > 63 || strings.Contains(text, "_") {
			return bad("metadata.namespace must be the name of a namespace")
		}
	}
	for _, field := range []string{"labels", "annotations"} {
		if _, _, err := unstructured.NestedStringMap(metadata, field); err != nil {
			return bad("metadata.%s must map texts to texts: put numbers and booleans in quotes", field)
		}
	}
	for _, field := range serverFields {
		if _, ok := metadata[field]; ok {
			return bad("metadata.%s was copied from a cluster: remove it", field)
		}
	}
	delete(metadata, "creationTimestamp") // generators write null
	return nil
}

// isName reports whether a text can be the name of an object. Such a name is safe as a segment of a URL.
func isName(s string) bool {
	return s != "" && len(s) <= 253 && s != "." && s != ".." && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r == '/' || r == '%' || r >= 0x7f
	})
}

// sizeCounter measures a document with its aliases expanded, before a parser expands them.
type sizeCounter struct {
	at          string
	size        int
	openAnchors map[*yaml.Node]bool // the anchors that contain the node
}

func (w *sizeCounter) count(n *yaml.Node, depth int) error {
	if depth > maxDepth {
		return failure.New(v1alpha1.ReasonLimitExceeded, "%s is nested deeper than %d", w.at, maxDepth)
	}
	if w.size += len(n.Value) + 1; w.size > MaxObject {
		return failure.New(v1alpha1.ReasonLimitExceeded, "%s has more than %d bytes when its aliases are followed", w.at, MaxObject)
	}
	if n.Kind == yaml.AliasNode {
		if n.Alias == nil || w.openAnchors[n.Alias] {
			return failure.New(v1alpha1.ReasonManifestInvalid, "%s: an alias contains itself", w.at)
		}
		return w.count(n.Alias, depth+1)
	}
	if n.Anchor != "" {
		w.openAnchors[n] = true
		defer delete(w.openAnchors, n)
	}
	for _, child := range n.Content {
		if err := w.count(child, depth+1); err != nil {
			return err
		}
	}
	return nil
}
