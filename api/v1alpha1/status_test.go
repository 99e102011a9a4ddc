package v1alpha1_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/test/verdicts"
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
	gs := verdicts.Smallest()
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
			gs := verdicts.Smallest()
			gs.Spec.Bidirectional, gs.Spec.Sync.Profiles = c.spec, c.profiles
			assert.Equal(t, c.want, gs.Proposes())
		})
	}
}

// A constant that is missing from the list counts as an unknown reason, and has no section in the documentation and no label.
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

const (
	commit1 = "1111111111111111111111111111111111111111"
	commit2 = "2222222222222222222222222222222222222222"
)

// C1: any writer of pods or GatewaySyncs controls the annotations, so reading them must never panic, and an error names the field.
func FuzzAnnotations(f *testing.F) {
	f.Add("gw-1", "blue", "main", "v2", "v2@main t1", commit1, "v2@main", "v2@main unless "+commit1, "services/a", "*.{a,b},c", "30", commit2, "v2@main t1 at "+commit2+" not at "+commit1)
	f.Add("", "", "", "", "", "", "", "", "", "", "", "", "")
	f.Add("-", "{{", "refs/heads/../x", "@", "@@", "\x00", "@", " ", "./", `\`, "-1", "main", " at ")
	f.Fuzz(func(t *testing.T, pod, name, spec, requested, over, unless, statusOver, lapsed, path, excludes, period, commit, refused string) {
		gs := verdicts.Smallest()
		gs.Spec.Git.Ref = spec
		gs.Status.Request = &v1alpha1.RequestStatus{Over: statusOver, Lapsed: lapsed, Refused: refused}
		gs.Annotations = map[string]string{
			v1alpha1.AnnotationRequestedRef: requested, v1alpha1.AnnotationRequestedOver: over,
			v1alpha1.AnnotationRequestedUnless: unless, v1alpha1.AnnotationRequestedAt: name, v1alpha1.AnnotationRequestedBy: pod,
			v1alpha1.AnnotationRequestedCommit: commit,
		}
		d, err := desiredref.Of(gs, lapsed)
		if err == nil {
			assert.Contains(t, []string{spec, requested}, d.Ref)
			assert.Equal(t, d.Override, d.Ref != spec)
			assert.True(t, requested == "" || strings.HasPrefix(d.Over, requested+"@"))
			if len(spec) <= 255 {
				assert.LessOrEqual(t, len(d.Over), 640)
				assert.LessOrEqual(t, len(d.Lapsed), 768)
				assert.LessOrEqual(t, len(d.Refused), 768)
			}
			assert.True(t, d.Commit == "" || syntax.IsCommit(d.Commit))
			if d.Commit != "" {
				require.Error(t, d.CheckCommit(strings.Repeat("e", 40)+"x"))
			}
			gs.Status.Request = &v1alpha1.RequestStatus{Over: d.Over, Lapsed: d.Lapsed, Refused: d.Refused}
			again, err := desiredref.Of(gs, lapsed)
			require.NoError(t, err)
			assert.Equal(t, d, again)
		}

		labels := map[string]string{"app.kubernetes.io/name": spec, "apps.kubernetes.io/pod-index": period, "statefulset.kubernetes.io/pod-name": over}
		if got, err := gatewaypod.GatewayName(pod, labels, map[string]string{v1alpha1.AnnotationGatewayName: name}); err == nil && got != pod {
			assert.LessOrEqual(t, len(got), 253)
			assert.NotContains(t, got, "/")
		}

		e, err := effective.Of(gs, "", map[string]string{
			v1alpha1.AnnotationServicePath: path, v1alpha1.AnnotationExcludePatterns: excludes, v1alpha1.AnnotationSyncPeriod: period,
			v1alpha1.AnnotationProfile: requested, v1alpha1.AnnotationTagProvider: unless, v1alpha1.AnnotationDeploymentMode: over,
			v1alpha1.AnnotationSystemName: name, v1alpha1.AnnotationSystemNameTemplate: lapsed,
		})
		if err != nil {
			var named *v1alpha1.Error
			require.ErrorAs(t, err, &named)
			return
		}
		require.Len(t, e.Mappings, 3)
		for _, m := range e.Mappings {
			assertLocal(t, m.Source)
			assertLocal(t, m.Destination)
		}
	})
}

func assertLocal(t *testing.T, p string) {
	t.Helper()
	assert.True(t, filepath.IsLocal(p), "%q", p)
	root := "/data"
	joined := path.Join(root, p)
	assert.True(t, joined == root || strings.HasPrefix(joined, root+"/"), "%q", p)
}

func TestSchemeRoundTrip(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	codec := serializer.NewSerializerWithOptions(serializer.DefaultMetaFactory, scheme, scheme, serializer.SerializerOptions{})
	gs := verdicts.Smallest()
	gs.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{"area": {Mappings: []v1alpha1.Mapping{{Source: ".", Destination: "./config", Type: v1alpha1.MappingDir}}}}
	gs.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.KindGatewaySync))
	written, err := runtime.Encode(codec, gs)
	require.NoError(t, err)
	read, err := runtime.Decode(codec, written)
	require.NoError(t, err)
	assert.Equal(t, gs, read)
	assert.Equal(t, "gatewaysyncs.stoker.io", v1alpha1.Resource("gatewaysyncs").String())

	list, err := scheme.New(v1alpha1.GroupVersion.WithKind(v1alpha1.KindGatewaySync + "List"))
	require.NoError(t, err)
	assert.IsType(t, &v1alpha1.GatewaySyncList{}, list)
}

func TestSnapshotSizes(t *testing.T) {
	for size, want := range map[string]int64{"1": 1, "2Ki": 2048, "1Gi": 1 << 30, "0": 0, "-1": 0, "1Ti": 0, "1e9": 0, "": 0} {
		t.Run("size "+size, func(t *testing.T) { assert.Equal(t, want, syntax.SnapshotSize(size)) })
	}
	for bytes, want := range map[int64]string{0: "0", 1023: "1023", 1024: "1Ki", 1500: "1.5Ki", 1 << 20: "1Mi", 5 << 40: "5120Gi"} {
		t.Run("text of "+want, func(t *testing.T) { assert.Equal(t, want, syntax.SizeText(bytes)) })
	}
}
