package lead

import (
	"bytes"
	"encoding/json"
	"reflect"

	"stoker.io/stoker/api/v1alpha1"
)

// difference is the merge patch that makes one status the other, nil where they are equal. Lists count as a whole.
func difference(was, is *v1alpha1.GatewaySyncStatus) (map[string]any, error) {
	a, err := asMap(was)
	if err != nil {
		return nil, err
	}
	b, err := asMap(is)
	if err != nil {
		return nil, err
	}
	return diff(a, b), nil
}

func asMap(st *v1alpha1.GatewaySyncStatus) (map[string]any, error) {
	data, err := json.Marshal(st)
	if err != nil {
		return nil, err
	}
	m := map[string]any{}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return m, d.Decode(&m)
}

func diff(was, is map[string]any) map[string]any {
	var patch map[string]any
	put := func(k string, v any) {
		if patch == nil {
			patch = map[string]any{}
		}
		patch[k] = v
	}
	for k := range was {
		if _, ok := is[k]; !ok {
			put(k, nil)
		}
	}
	for k, v := range is {
		old, ok := was[k]
		inner, isMap := v.(map[string]any)
		before, wasMap := old.(map[string]any)
		switch {
		case isMap && wasMap:
			if d := diff(before, inner); d != nil {
				put(k, d)
			}
		case !ok || !reflect.DeepEqual(old, v):
			put(k, v)
		}
	}
	return patch
}

// statusPatch wraps a difference for the status of gs, as it was seen: it fails where somebody wrote the object since.
func statusPatch(gs *v1alpha1.GatewaySync, change map[string]any) ([]byte, error) {
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": gs.ResourceVersion, "uid": gs.UID},
		"status":   change,
	})
}
