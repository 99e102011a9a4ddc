// Package decode reads GatewaySyncs and ConfigSyncs from files, and GatewaySyncs from untyped clients.
package decode

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
)

const (
	maxFile      = 2 << 20 // bytes; the API server accepts no object of this size
	maxDocuments = 100
)

// GatewaySync reads the one GatewaySync of a YAML or JSON file. It skips documents of other kinds. An unknown field is an
// error, as for kubectl: if GatewaySync ignored a mistyped field, a default that its author did not want would apply. GatewaySync
// neither validates nor fills in defaults: package validation and the accessors of the types do that.
func GatewaySync(data []byte) (*v1alpha1.GatewaySync, error) {
	gs, err := decodeOne[v1alpha1.GatewaySync](data, v1alpha1.KindGatewaySync)
	if err == nil && gs == nil {
		err = errors.New("no GatewaySync in it: write one with apiVersion stoker.io/v1alpha1 and kind GatewaySync")
	}
	return gs, err
}

// ConfigSync reads the one ConfigSync of a YAML or JSON file, as GatewaySync does.
func ConfigSync(data []byte) (*v1alpha1.ConfigSync, error) {
	cs, err := decodeOne[v1alpha1.ConfigSync](data, v1alpha1.KindConfigSync)
	if err == nil && cs == nil {
		err = errors.New("no ConfigSync in it: write one with apiVersion stoker.io/v1alpha1 and kind ConfigSync")
	}
	return cs, err
}

// decodeOne reads the one object of a kind, or returns nil.
func decodeOne[T any](data []byte, kind string) (one *T, err error) {
	if len(data) > maxFile {
		return nil, fmt.Errorf("%d bytes are too many for a %s: at most %d", len(data), kind, maxFile)
	}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for n := 1; ; n++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		if n > maxDocuments {
			return nil, fmt.Errorf("more than %d documents: put the %s into a file of its own", maxDocuments, kind)
		}
		found, err := decodeDocument[T](document, kind)
		switch {
		case err != nil:
			return nil, fmt.Errorf("document %d: %w", n, err)
		case found != nil && one != nil:
			return nil, fmt.Errorf("more than one %s in it: give each a file of its own", kind)
		case found != nil:
			one = found
		}
	}
	return one, nil
}

// Unstructured reads a GatewaySync of an untyped client. Watchers read GatewaySyncs one by one with it, so that a field of a wrong type
// breaks only its own object.
func Unstructured(object map[string]any) (*v1alpha1.GatewaySync, error) {
	data, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	gs := &v1alpha1.GatewaySync{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, gs); err != nil {
		return nil, readable[v1alpha1.GatewaySync](err, data)
	}
	return gs, nil
}

// decodeDocument returns nil for a document that is empty or of another kind.
func decodeDocument[T any](document []byte, kind string) (*T, error) {
	data, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return nil, invalidYAML(err)
	}
	if bytes.Equal(data, []byte("null")) {
		return nil, nil
	}
	if !bytes.HasPrefix(data, []byte("{")) {
		return nil, errors.New("it is a list or a single value: write an object with apiVersion, kind, metadata and spec")
	}
	type header struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	var head header
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &head); err != nil {
		return nil, readable[header](err, data)
	}
	if head.Kind != kind {
		return nil, nil
	}
	if head.APIVersion != v1alpha1.GroupVersion.String() {
		return nil, fmt.Errorf("apiVersion %.80q is not known: write %s", head.APIVersion, v1alpha1.GroupVersion)
	}
	one := new(T)
	unknown, err := kjson.UnmarshalStrict(data, one)
	if err != nil {
		return nil, readable[T](err, data)
	}
	const shown = 5
	for i, u := range unknown {
		if unknown[i] = fmt.Errorf("%.200s", u.Error()); i == shown {
			unknown = append(unknown[:i], fmt.Errorf("%d more", len(unknown)-i))
			break
		}
	}
	if len(unknown) > 0 {
		return nil, fmt.Errorf("%w (names of fields are case-sensitive)", errors.Join(unknown...))
	}
	return one, nil
}

// invalidYAML returns an error of a YAML parser without the words about its own types. The line and the key stay.
func invalidYAML(err error) error {
	text := strings.NewReplacer("error converting YAML to JSON: ", "", "yaml: ", "", "unmarshal errors:\n", "", "already set in map", "is there twice").Replace(err.Error())
	return fmt.Errorf("not valid YAML: %s", strings.Join(strings.Fields(text), " "))
}

// readable explains an error about a value of a wrong type to the author of the object.
func readable[T any](err error, data []byte) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(json.Unmarshal(data, new(T)), &wrong) || wrong.Field == "" { // the strict decoder hides the type of its error
		return err
	}
	value, _, _ := strings.Cut(wrong.Value, " ")
	actual, ok := map[string]string{"string": "text", "number": "a number", "bool": "true or false", "array": "a list", "object": "fields"}[value]
	if !ok {
		return err
	}
	expected := map[reflect.Kind]string{
		reflect.String: "text", reflect.Bool: "true or false", reflect.Slice: "a list", reflect.Struct: "fields", reflect.Map: "fields",
		reflect.Int32: "a whole number of at most 10 digits", reflect.Int64: "a whole number",
	}[wrong.Type.Kind()]
	if expected == "" {
		return err
	}
	hint := ""
	if expected == "text" && (actual == "a number" || actual == "true or false") {
		hint = ": put it in quotes"
	}
	return fmt.Errorf("%s must be %s, not %s%s", wrong.Field, expected, actual, hint)
}
