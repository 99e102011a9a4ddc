package annotation

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/api/v1alpha1"
)

func TestProposeAnnotation(t *testing.T) {
	value := ProposeValue("line-1", time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600)))
	assert.Equal(t, "line-1 2026-01-02T02:04:05Z", value)
	assert.True(t, ProposesFor(value, "line-1"))
	assert.True(t, ProposesFor("line-1", "line-1"), "a value without a time must count")
	assert.False(t, ProposesFor(value, "line"))
	assert.False(t, ProposesFor("", ""))
	for name, c := range map[string]struct{ text, want string }{
		"valid":         {value, value},
		"two lines":     {"a\nb", ""},
		"invalid UTF-8": {"a\xff", ""},
		"too long":      {strings.Repeat("a", 321), ""},
		"at the limit":  {strings.Repeat("a", 320), strings.Repeat("a", 320)},
	} {
		t.Run(name, func(t *testing.T) {
			gs := &v1alpha1.GatewaySync{}
			gs.Annotations = map[string]string{v1alpha1.AnnotationPropose: c.text}
			assert.Equal(t, c.want, Propose(gs))
		})
	}
}
