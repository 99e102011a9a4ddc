package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/decode"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/api/v1alpha1/validation"
)

const (
	types = "../../v1alpha1"
	docs  = "../../../docs/reference/"
)

func TestReferenceIsCurrent(t *testing.T) {
	for _, name := range []string{"gatewaysync.md", "configsync.md"} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), name)
			require.NoError(t, run([]string{out}, types))
			want, err := os.ReadFile(out)
			require.NoError(t, err)
			got, err := os.ReadFile(docs + name)
			require.NoError(t, err)
			assert.Equal(t, string(want), string(got), "run go generate ./api/...")
		})
	}
}

func TestConfigSyncExamplesAreValid(t *testing.T) {
	for name, text := range map[string]string{"minimal": configMinimal, "full": configFull} {
		t.Run(name, func(t *testing.T) {
			cs, err := decode.ConfigSync([]byte(text))
			require.NoError(t, err)
			assert.Empty(t, validation.ConfigSync(cs))
		})
	}
}

func TestGatewaySyncExamplesAreValid(t *testing.T) {
	for name, text := range map[string]string{"minimal": minimal, "full": full} {
		t.Run(name, func(t *testing.T) {
			gs, err := decode.GatewaySync([]byte(text))
			require.NoError(t, err)
			assert.Empty(t, validation.GatewaySync(gs))
			assert.Empty(t, validation.Warnings(gs))
			for profile := range gs.Spec.Sync.Profiles {
				_, err := effective.Of(gs, profile, nil)
				require.NoError(t, err)
			}
		})
	}
}

func TestFieldsAndAnnotationsAreDocumented(t *testing.T) {
	api, err := parse(types)
	require.NoError(t, err)
	fields := 0
	for name, st := range api.structs {
		for _, f := range st.fields {
			if f.name == "metadata" || f.name == "items" {
				continue
			}
			fields++
			assert.NotEmpty(t, f.doc, "%s.%s", name, f.name)
			assert.True(t, strings.HasSuffix(f.doc, "."), "%s.%s: the description %q must be a sentence", name, f.name, f.doc)
			_, required := f.markers["required"]
			_, optional := f.markers["optional"]
			assert.NotEqual(t, required, optional, "%s.%s must be marked either required or optional", name, f.name)
		}
	}
	assert.Greater(t, fields, 100)
	page, err := render(api, gatewaySync)
	require.NoError(t, err)
	for _, name := range []string{v1alpha1.AnnotationRequestedRef, v1alpha1.AnnotationForceSync, v1alpha1.AnnotationApproved, v1alpha1.AnnotationInject, v1alpha1.AnnotationExcludePatterns} {
		assert.Contains(t, string(page), "| `"+name+"` |")
	}
}

func TestAnnotationsOfPodsAreKnown(t *testing.T) {
	api, err := parse(types)
	require.NoError(t, err)
	n := 0
	for _, g := range api.groups {
		if strings.Contains(g.doc, "older prefix") {
			for _, c := range g.values {
				n++
				assert.False(t, gatewaypod.IsUnknown(c.value), c.value)
			}
		}
	}
	assert.Greater(t, n, 10)
	assert.True(t, gatewaypod.IsUnknown(gatewaypod.Prefix+"profil"))
}

func TestCell(t *testing.T) {
	for text, want := range map[string]string{
		`Names, or patterns with "*".`:                       "Names, or patterns with `\"*\"`.",
		`As in a crontab, such as "0 22 * * 1-5". Then all.`: "As in a crontab, such as `\"0 22 * * 1-5\"`. Then all.",
		`If it is "a b" (see stoker.io/paused), a|b.`:        "If it is \"a b\" (see `stoker.io/paused`), a\\|b.",
	} {
		t.Run(text, func(t *testing.T) { assert.Equal(t, want, cell(text)) })
	}
}

func TestReferenceWithoutTypes(t *testing.T) {
	assert.ErrorContains(t, run([]string{filepath.Join(t.TempDir(), "x")}, t.TempDir()), "GatewaySync")
	assert.ErrorContains(t, run(nil, types), "one argument")
}
