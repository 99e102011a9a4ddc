package v1alpha1_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
)

// C13: agents write the status with the permissions of gateways. An invalid status must not hide the spec.
func TestUnreadableStatusCountsAsEmpty(t *testing.T) {
	for name, status := range map[string]string{
		"invalid time":               `{"gatewaysReady":"1/1","lastSyncTime":"2020-01-01t00:00:00z"}`,
		"a number beyond 32 bits":    `{"outcome":{"total":4294967296}}`,
		"list instead of an object":  `{"target":[]}`,
		"string":                     `"status"`,
		"zero time":                  `{"history":[{"commit":"a","at":"0001-01-01T00:00:00Z"}]}`,
		"a condition without a time": `{"conditions":[{"type":"Ready","status":"True","reason":"Synced"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			var gs v1alpha1.GatewaySync
			require.NoError(t, json.Unmarshal([]byte(`{"spec":{"git":{"ref":"main"}},"status":`+status+`}`), &gs))
			assert.Equal(t, "main", gs.Spec.Git.Ref)
			assert.Equal(t, v1alpha1.GatewaySyncStatus{Unread: []byte(status)}, gs.Status)
		})
	}
	var gs v1alpha1.GatewaySync
	require.NoError(t, json.Unmarshal([]byte(`{"status":{"gatewaysReady":"1/1"}}`), &gs))
	assert.Equal(t, v1alpha1.GatewaySyncStatus{GatewaysReady: "1/1"}, gs.Status)
}

func TestPausedByAnnotationOrSpec(t *testing.T) {
	gs := smallest()
	assert.False(t, gs.Paused())
	gs.Annotations = map[string]string{v1alpha1.AnnotationPaused: "yes"}
	assert.False(t, gs.Paused(), "only the value true pauses")
	gs.Annotations[v1alpha1.AnnotationPaused] = "true"
	assert.True(t, gs.Paused())
	gs.Annotations = nil
	gs.Spec.Paused = true
	assert.True(t, gs.Paused())
}

func TestProposes(t *testing.T) {
	yes, no := true, false
	profiles := func(overrides ...*bool) map[string]v1alpha1.SyncProfile {
		m := map[string]v1alpha1.SyncProfile{}
		for i, o := range overrides {
			m[string(rune('a'+i))] = v1alpha1.SyncProfile{Bidirectional: o}
		}
		return m
	}
	for _, c := range []struct {
		name     string
		spec     *v1alpha1.BidirectionalSpec
		profiles map[string]v1alpha1.SyncProfile
		want     bool
	}{
		{"no spec", nil, profiles(&yes), false},
		{"service path, enabled", &v1alpha1.BidirectionalSpec{Enabled: true}, nil, true},
		{"service path, disabled", &v1alpha1.BidirectionalSpec{}, nil, false},
		{"one profile enables it", &v1alpha1.BidirectionalSpec{}, profiles(nil, &yes), true},
		{"one profile disables it", &v1alpha1.BidirectionalSpec{Enabled: true}, profiles(nil, &no), true},
		{"all profiles disable it", &v1alpha1.BidirectionalSpec{Enabled: true}, profiles(&no, &no), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			gs := smallest()
			gs.Spec.Bidirectional, gs.Spec.Sync.Profiles = c.spec, c.profiles
			assert.Equal(t, c.want, gs.Proposes())
		})
	}
}
