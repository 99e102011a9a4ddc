package annotation

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/api/v1alpha1"
)

func TestRestoreRequest(t *testing.T) {
	const id = "area-4-20260212-102000"
	for name, tt := range map[string]struct {
		annotation, spec, want string
	}{
		"none":                        {},
		"the annotation":              {annotation: id + " 2026-02-13T00:00:00Z", want: id + " 2026-02-13T00:00:00Z"},
		"the spec":                    {spec: id, want: id},
		"file name of an archive":     {spec: id + ".tar.gz", want: id},
		"annotation takes precedence": {annotation: id, spec: "area-4-20260101-000000", want: id},
		"annotation without snapshot": {annotation: "area-4", spec: id, want: id},
		"control characters":          {annotation: id + " \x1b[2J", spec: id, want: id},
		"too long":                    {annotation: id + strings.Repeat(" ", 300)},
	} {
		t.Run(name, func(t *testing.T) {
			gs := &v1alpha1.GatewaySync{}
			gs.Annotations = map[string]string{v1alpha1.AnnotationRestore: tt.annotation}
			if tt.spec != "" {
				gs.Spec.Rollback = &v1alpha1.RollbackSpec{ToSnapshot: tt.spec}
			}
			assert.Equal(t, tt.want, Restore(gs))
		})
	}
	value := RestoreValue(id, time.Date(2026, 2, 13, 0, 0, 0, 0, time.UTC))
	assert.Equal(t, id+" 2026-02-13T00:00:00Z", value)
	for gateway, want := range map[string]string{"area-4": id, "area": "", "area-4-20260212": "", "": ""} {
		t.Run("for "+gateway, func(t *testing.T) { assert.Equal(t, want, RestoresOn(value, gateway)) })
	}
	long := strings.Repeat("a", 253)
	assert.Equal(t, long[:200]+"-20260212-102000", RestoresOn(long[:200]+"-20260212-102000", long))
}
