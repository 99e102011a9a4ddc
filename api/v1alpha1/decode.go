package v1alpha1

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

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

// Decode reads the one GatewaySync of a YAML or JSON file. Documents of other kinds are passed over. The warnings name
// fields that are unknown; they count as not there. Nothing is validated and no default is filled in: Validate and the
// accessors of the types do that.
func Decode(data []byte) (gs *GatewaySync, warnings []string, err error) {
	if len(data) > maxDocument {
		return nil, nil, fmt.Errorf("%d bytes are too many for a GatewaySync: at most %d", len(data), maxDocument)
	}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for n := 1; ; n++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, nil, fmt.Errorf("document %d: %w", n, err)
		}
		if n > maxDocuments {
			return nil, nil, fmt.Errorf("more than %d documents: put the GatewaySync into a file of its own", maxDocuments)
		}
		found, warned, err := decodeDocument(document)
		switch {
		case err != nil:
			return nil, nil, fmt.Errorf("document %d: %w", n, err)
		case found != nil && gs != nil:
			return nil, nil, errors.New("more than one GatewaySync in it: give each a file of its own")
		case found != nil:
			gs, warnings = found, warned
		}
	}
	if gs == nil {
		return nil, nil, ErrNoGatewaySync
	}
	return gs, warnings, nil
}

// FromUnstructured reads a GatewaySync as an untyped client has it. Whoever watches GatewaySyncs does it like this, one by
// one, so that a field of a wrong type is the problem of its own object only.
func FromUnstructured(object map[string]any) (*GatewaySync, error) {
	data, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	gs := &GatewaySync{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, gs); err != nil {
		return nil, err
	}
	return gs, nil
}

// decodeDocument returns nil for a document that is empty or of another kind.
func decodeDocument(document []byte) (*GatewaySync, []string, error) {
	data, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return nil, nil, err
	}
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if bytes.Equal(data, []byte("null")) {
		return nil, nil, nil
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &head); err != nil {
		return nil, nil, err
	}
	if head.Kind != Kind {
		return nil, nil, nil
	}
	if head.APIVersion != GroupVersion.String() {
		return nil, nil, fmt.Errorf("apiVersion %.80q is not known: write %s", head.APIVersion, GroupVersion)
	}
	gs := &GatewaySync{}
	strict, err := kjson.UnmarshalStrict(data, gs)
	if err != nil {
		return nil, nil, err
	}
	warnings := make([]string, 0, len(strict))
	for _, w := range strict {
		warnings = append(warnings, w.Error())
	}
	return gs, warnings, nil
}
