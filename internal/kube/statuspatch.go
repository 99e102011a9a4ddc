package kube

import (
	"bytes"
	"encoding/json"
	"reflect"

	"stoker.io/stoker/api/v1alpha1"
)

// StatusDifference returns the merge patch that turns before into after, or nil if they are equal. It replaces lists as a whole. If
// before could not be decoded, the patch removes all of its fields that are not in after.
func StatusDifference(before, after *v1alpha1.GatewaySyncStatus) (map[string]any, error) {
	old, err := asMap(before)
	if err != nil {
		return nil, err
	}
	if before.Unread != nil {
		if old, err = decodeMap(before.Unread); err != nil {
			old = nil // not an object, so the patch replaces it anyway
		}
	}
	wanted, err := asMap(after)
	if err != nil {
		return nil, err
	}
	return diff(old, wanted), nil
}

func asMap(st *v1alpha1.GatewaySyncStatus) (map[string]any, error) {
	data, err := json.Marshal(st)
	if err != nil {
		return nil, err
	}
	return decodeMap(data)
}

func decodeMap(data []byte) (map[string]any, error) {
	m := map[string]any{}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return m, d.Decode(&m)
}

func diff(before, after map[string]any) map[string]any {
	var patch map[string]any
	put := func(k string, v any) {
		if patch == nil {
			patch = map[string]any{}
		}
		patch[k] = v
	}
	for k := range before {
		if _, ok := after[k]; !ok {
			put(k, nil)
		}
	}
	for k, v := range after {
		old, ok := before[k]
		newMap, isMap := v.(map[string]any)
		oldMap, wasMap := old.(map[string]any)
		switch {
		case isMap && wasMap:
			if d := diff(oldMap, newMap); d != nil {
				put(k, d)
			}
		case !ok || !reflect.DeepEqual(old, v):
			put(k, v)
		}
	}
	return patch
}

// StatusPatch wraps a difference as a patch for the status of gs. The API server rejects the patch if gs was written since it
// was read.
func StatusPatch(gs *v1alpha1.GatewaySync, change map[string]any) ([]byte, error) {
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": gs.ResourceVersion, "uid": gs.UID},
		"status":   change,
	})
}
