package v1alpha1_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
)

func TestProposalSizes(t *testing.T) {
	for _, c := range []struct {
		text string
		want int64 // 0 for an error
	}{
		{"", 10 << 20}, {"1", 1}, {"1Ki", 1 << 10}, {"512Ki", 512 << 10}, {"32Mi", 32 << 20}, {"999999999Mi", 999999999 << 20},
		{"0", 0}, {"-1", 0}, {"1Gi", 0}, {"1.5Mi", 0}, {"Mi", 0}, {"1KiMi", 0}, {" 1", 0}, {strings.Repeat("9", 10), 0},
	} {
		t.Run("maxFileSize_"+c.text, func(t *testing.T) {
			got, err := (&v1alpha1.ProposalGuardrails{MaxFileSize: c.text}).MaxFileBytes()
			if c.want == 0 {
				require.ErrorContains(t, err, "spec.bidirectional.guardrails.maxFileSize")
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
		})
	}
	t.Run("default of maxTotalSize", func(t *testing.T) {
		got, err := (&v1alpha1.ProposalGuardrails{}).MaxTotalBytes()
		require.NoError(t, err)
		assert.Equal(t, int64(32<<20), got)
	})
	t.Run("error of maxTotalSize", func(t *testing.T) {
		_, err := (&v1alpha1.ProposalGuardrails{MaxTotalSize: "x"}).MaxTotalBytes()
		require.ErrorContains(t, err, "spec.bidirectional.guardrails.maxTotalSize")
	})
}

func TestDebounceDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 30 * time.Second, "1s": time.Second, "10m": 10 * time.Minute, "999ms": 0, "10m1s": 0, "soon": 0} {
		t.Run(text, func(t *testing.T) {
			got, err := (&v1alpha1.BidirectionalSpec{Debounce: text}).DebounceDuration()
			if want == 0 {
				require.ErrorContains(t, err, "spec.bidirectional.debounce")
				return
			}
			require.NoError(t, err)
			assert.Equal(t, want, got)
		})
	}
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

func TestProposeAnnotation(t *testing.T) {
	value := v1alpha1.ProposeValue("line-1", time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600)))
	assert.Equal(t, "line-1 2026-01-02T02:04:05Z", value)
	assert.True(t, v1alpha1.ProposesFor(value, "line-1"))
	assert.True(t, v1alpha1.ProposesFor("line-1", "line-1"), "written by hand without a time")
	assert.False(t, v1alpha1.ProposesFor(value, "line"))
	assert.False(t, v1alpha1.ProposesFor("", ""))
	for name, c := range map[string]struct{ text, want string }{
		"valid":         {value, value},
		"two lines":     {"a\nb", ""},
		"invalid UTF-8": {"a\xff", ""},
		"too long":      {strings.Repeat("a", 321), ""},
		"at the limit":  {strings.Repeat("a", 320), strings.Repeat("a", 320)},
	} {
		t.Run(name, func(t *testing.T) {
			gs := smallest()
			gs.Annotations = map[string]string{v1alpha1.AnnotationPropose: c.text}
			assert.Equal(t, c.want, gs.Propose())
		})
	}
}
