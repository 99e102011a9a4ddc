package v1alpha1

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
)

const (
	maxDocument  = 2 << 20 // bytes: more than the API server takes
	maxDocuments = 100
)

// ErrNoGatewaySync means that a file holds no GatewaySync.
var ErrNoGatewaySync = errors.New("no GatewaySync in it: write one with apiVersion stoker.io/v1alpha1 and kind GatewaySync")

// Decode reads the one GatewaySync of a YAML or JSON file. It skips documents of other kinds. An unknown field is an
// error, as for kubectl: if Decode ignored a mistyped field, a default that its author did not want would apply. Decode
// neither validates nor fills in defaults: Validate and the accessors of the types do that.
func Decode(data []byte) (*GatewaySync, error) {
	gs, err := decodeOne[GatewaySync](data, Kind)
	if err == nil && gs == nil {
		err = ErrNoGatewaySync
	}
	return gs, err
}

// DecodeConfigSync reads the one ConfigSync of a YAML or JSON file, as Decode does.
func DecodeConfigSync(data []byte) (*ConfigSync, error) {
	cs, err := decodeOne[ConfigSync](data, KindConfigSync)
	if err == nil && cs == nil {
		err = errors.New("no ConfigSync in it: write one with apiVersion stoker.io/v1alpha1 and kind ConfigSync")
	}
	return cs, err
}

// decodeOne reads the one object of a kind, or returns nil.
func decodeOne[T any](data []byte, kind string) (one *T, err error) {
	if len(data) > maxDocument {
		return nil, fmt.Errorf("%d bytes are too many for a %s: at most %d", len(data), kind, maxDocument)
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

// FromUnstructured reads a GatewaySync of an untyped client. Watchers of GatewaySyncs read them one by one with it, so that a field
// of a wrong type breaks only its own object.
func FromUnstructured(object map[string]any) (*GatewaySync, error) {
	data, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	gs := &GatewaySync{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, gs); err != nil {
		return nil, readable[GatewaySync](err, data)
	}
	return gs, nil
}

// UnmarshalJSON reads a status. Agents write it with the rights of gateways, so that it must not keep anybody from reading the
// spec beside it: one that cannot be read, or not be written back, counts as empty and is kept in Unread. Its next writer
// replaces all of it.
func (s *GatewaySyncStatus) UnmarshalJSON(data []byte) error {
	type plain GatewaySyncStatus
	var is plain
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &is); err != nil || (*GatewaySyncStatus)(&is).lacksTime() {
		is = plain{Unread: bytes.Clone(data)}
	}
	*s = GatewaySyncStatus(is)
	return nil
}

// lacksTime reports whether a required time is zero: it would be written as null, which the API server refuses.
func (s *GatewaySyncStatus) lacksTime() bool {
	return s.LastGood != nil && s.LastGood.At.IsZero() ||
		slices.ContainsFunc(s.History, func(r CommitRecord) bool { return r.At.IsZero() }) ||
		slices.ContainsFunc(s.Conditions, func(c metav1.Condition) bool { return c.LastTransitionTime.IsZero() })
}

// decodeDocument returns nil for a document that is empty or of another kind.
func decodeDocument[T any](document []byte, kind string) (*T, error) {
	data, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return nil, err
	}
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if bytes.Equal(data, []byte("null")) {
		return nil, nil
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &head); err != nil {
		return nil, err
	}
	if head.Kind != kind {
		return nil, nil
	}
	if head.APIVersion != GroupVersion.String() {
		return nil, fmt.Errorf("apiVersion %.80q is not known: write %s", head.APIVersion, GroupVersion)
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
		return nil, fmt.Errorf("%w (names of fields are compared with their case)", errors.Join(unknown...))
	}
	return one, nil
}

// readable puts the error of an object with a value of a wrong type into words for the one who wrote it.
func readable[T any](err error, data []byte) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(json.Unmarshal(data, new(T)), &wrong) || wrong.Field == "" { // the strict decoder's own type cannot be asked
		return err
	}
	is, _, _ := strings.Cut(wrong.Value, " ")
	is, ok := map[string]string{"string": "text", "number": "a number", "bool": "true or false", "array": "a list", "object": "fields"}[is]
	if !ok {
		return err
	}
	must := map[reflect.Kind]string{
		reflect.String: "text", reflect.Bool: "true or false", reflect.Slice: "a list", reflect.Struct: "fields", reflect.Map: "fields",
		reflect.Int32: "a whole number of at most 10 digits", reflect.Int64: "a whole number",
	}[wrong.Type.Kind()]
	if must == "" {
		return err
	}
	hint := ""
	if must == "text" && (is == "a number" || is == "true or false") {
		hint = ": put it in quotes"
	}
	return fmt.Errorf("%s must be %s, not %s%s", wrong.Field, must, is, hint)
}
