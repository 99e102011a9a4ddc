package v1alpha1_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/api/v1alpha1"
)

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
