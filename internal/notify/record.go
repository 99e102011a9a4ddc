package notify

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"

	"stoker.io/stoker/api/v1alpha1"
)

// record is what was sent, by the key of the channel and the topic.
type record map[string]map[v1alpha1.AlertTopic]string

// maxRecord bounds the record in bytes, so that the annotation does not exceed the limit of Kubernetes.
const maxRecord = 200 << 10

// encodeRecord encodes the record. If it would be too large, it omits channels of the namespaces that need most, and no other namespace
// loses any. The states of an omitted channel are sent again after a restart.
func (n *Notifier) encodeRecord() string {
	r, namespaces := record{}, map[string]string{} // the namespace of a channel that is not known yet is ""
	maps.Copy(r, n.previous)
	for key, ch := range n.channels {
		if len(ch.sent) > 0 {
			r[key], namespaces[key] = ch.sent, ch.gs.Namespace
		}
	}
	total, of, keys, sizes := 2, map[string]int{}, map[string][]string{}, map[string]int{} // of and keys are by namespace
	for _, key := range slices.Sorted(maps.Keys(r)) {
		size := len(key) + 6
		for topic, value := range r[key] {
			size += len(topic) + len(value) + 6
		}
		namespace := namespaces[key]
		sizes[key] = size
		keys[namespace], of[namespace], total = append(keys[namespace], key), of[namespace]+size, total+size
	}
	for total > maxRecord {
		most := slices.MaxFunc(slices.Sorted(maps.Keys(of)), func(a, b string) int { return of[a] - of[b] })
		last := keys[most][len(keys[most])-1]
		delete(r, last)
		keys[most], of[most], total = keys[most][:len(keys[most])-1], of[most]-sizes[last], total-sizes[last]
	}
	if len(r) == 0 {
		return ""
	}
	text, err := json.Marshal(r)
	if err != nil {
		return "" // it never fails: strings always encode
	}
	return string(text)
}

// decodeRecord returns the record in a text, or an empty one if the text is empty or invalid.
func (n *Notifier) decodeRecord(text string) record {
	r := record{}
	if err := json.Unmarshal([]byte(cmp.Or(text, "{}")), &r); err != nil {
		n.Log.Error("dropping an invalid record of notifications", "error", err)
		return record{}
	}
	return r
}
