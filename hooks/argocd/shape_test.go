//go:build !race

package argocd

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/status"
)

// requireAnswers expects a valid answer of both scripts for any object. Argo CD shows a script error as health Unknown, which fails a sync.
func requireAnswers(t testing.TB, health, discovery *script, obj map[string]any) {
	t.Helper()
	h := health.health(t, obj)
	require.Contains(t, []string{"Healthy", "Progressing", "Degraded", "Suspended"}, h.Status)
	raw, err := discovery.run(obj, noon)
	require.NoError(t, err)
	var menu map[string]offer
	require.NoError(t, json.Unmarshal(raw, &menu))
	require.Len(t, menu, 7)
}

// dice changes objects at random.
type dice struct{ *rand.Rand }

// distort replaces or removes one value somewhere in v.
func (d dice) distort(v any) any {
	switch inner := v.(type) {
	case map[string]any:
		if len(inner) > 0 && d.IntN(5) > 0 {
			keys := make([]string, 0, len(inner))
			for k := range inner {
				keys = append(keys, k)
			}
			slices.Sort(keys)
			k := keys[d.IntN(len(keys))]
			inner[k] = d.distort(inner[k])
			return inner
		}
	case []any:
		if len(inner) > 0 && d.IntN(5) > 0 {
			i := d.IntN(len(inner))
			inner[i] = d.distort(inner[i])
			return inner
		}
	}
	odd := []any{nil, "", "text", 0.0, -1.5, 1e300, true, []any{}, []any{nil}, []any{"x", 1.0}, map[string]any{}, map[string]any{"1": "x"},
		[]any{[]any{}}, strings.Repeat("é", 600), "a\x00b", "\U0010ffff"}
	return odd[d.IntN(len(odd))]
}

func TestMalformedObjects(t *testing.T) {
	t.Parallel()
	health, discovery := load(t, "health.lua"), load(t, "actions/discovery.lua")
	for seed := range uint64(600) {
		d := dice{rand.New(rand.NewPCG(seed, 10))}
		obj := object(t, arranged(t, statuses[d.IntN(len(statuses))].arrange))
		for range 1 + d.IntN(4) {
			distorted, ok := d.distort(obj).(map[string]any)
			if ok {
				obj = distorted
			}
		}
		requireAnswers(t, health, discovery, obj)
	}
	for _, obj := range []map[string]any{nil, {}, {"status": nil}, {"metadata": "x", "spec": 1.0, "status": []any{}}} {
		requireAnswers(t, health, discovery, obj)
	}
}

func FuzzObject(f *testing.F) {
	// setup: a seed of each status
	for _, c := range statuses {
		s := newScene(f)
		c.arrange(s)
		seed, err := json.Marshal(s.GatewaySync)
		require.NoError(f, err)
		f.Add(seed)
	}
	health, discovery := load(f, "health.lua"), load(f, "actions/discovery.lua")
	f.Fuzz(func(t *testing.T, raw []byte) {
		var obj map[string]any
		if json.Unmarshal(raw, &obj) == nil {
			requireAnswers(t, health, discovery, obj)
		}
	})
}

// The scripts handle large objects within the time limit of script.run.
func TestLargeObjects(t *testing.T) {
	health, discovery := load(t, "health.lua"), load(t, "actions/discovery.lua")
	s := newScene(t)
	for i := range 2000 {
		s.GatewaySync.Status.DiscoveredGateways = append(s.GatewaySync.Status.DiscoveredGateways,
			v1alpha1.DiscoveredGateway{Name: fmt.Sprintf("line-%04d", i), SyncStatus: v1alpha1.GatewaySynced, SyncedCommit: commitA})
	}
	requireAnswers(t, health, discovery, object(t, s.GatewaySync))
	long := strings.Repeat("x", 200_000)
	for _, name := range []string{v1alpha1.AnnotationRequestedRef, v1alpha1.AnnotationRequestedOver, v1alpha1.AnnotationRequestedUnless, v1alpha1.AnnotationRequestedAt} {
		s.annotate(name, long)
		requireAnswers(t, health, discovery, object(t, s.GatewaySync))
	}
	_, err := desiredref.Of(s.GatewaySync, "")
	s.Ref = status.Ref{Polled: true, Err: err}
	s.write()
	h := health.health(t, object(t, s.GatewaySync))
	assert.Equal(t, "Degraded", h.Status)
	assert.Contains(t, h.Message, "have more than 4096 bytes")
}
