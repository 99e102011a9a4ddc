package v1alpha1_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
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

// A constant that is missing from the list has no class, no section in the documentation and no label.
func TestReasonsListEveryConstant(t *testing.T) {
	declared := declaredReasons(t)
	require.NotEmpty(t, declared)
	var listed []string
	for _, r := range v1alpha1.Reasons {
		t.Run(string(r.Reason), func(t *testing.T) {
			assert.NotEmpty(t, r.Meaning)
			assert.Contains(t, []v1alpha1.Class{v1alpha1.ClassDone, v1alpha1.ClassWorking, v1alpha1.ClassRetry, v1alpha1.ClassHeld,
				v1alpha1.ClassStalled, v1alpha1.ClassNotInjected}, r.Class)
			assert.Equal(t, r.Class, r.Reason.Class())
		})
		listed = append(listed, string(r.Reason))
	}
	assert.Equal(t, declared, listed, "constants and list, in the same order")
}

func TestUnknownReasonIsTransient(t *testing.T) {
	assert.Equal(t, v1alpha1.ClassRetry, v1alpha1.Reason("OfTomorrow").Class())
}

// declaredReasons returns the values of the constants, in their order.
func declaredReasons(t *testing.T) (declared []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := spec.Type.(*ast.Ident); ok && typ.Name == "Reason" {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			require.NoError(t, err)
			assert.Equal(t, "Reason"+value, spec.Names[0].Name)
			declared = append(declared, value)
		}
		return true
	})
	return declared
}
