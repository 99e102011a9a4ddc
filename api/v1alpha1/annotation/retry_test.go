package annotation

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/api/v1alpha1"
)

func TestRetryRequest(t *testing.T) {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	value := RetryValue(commit, time.Date(2026, 2, 13, 0, 0, 0, 0, time.UTC))
	assert.Equal(t, commit+" 2026-02-13T00:00:00Z", value)
	for name, tt := range map[string]struct {
		value string
		valid bool
	}{
		"empty":                 {"", false},
		"a commit and a time":   {value, true},
		"no time":               {commit, false},
		"a short commit":        {commit[:7] + " 2026-02-13T00:00:00Z", false},
		"not hexadecimal":       {strings.Repeat("x", 40) + " 2026-02-13T00:00:00Z", false},
		"control characters":    {value + "\x1b[2J", false},
		"too long":              {commit + " 2026-02-13T00:00:00." + strings.Repeat("1", 40) + "Z", false},
		"more than one request": {value + " " + value, false},
	} {
		t.Run(name, func(t *testing.T) {
			gs := &v1alpha1.GatewaySync{}
			gs.Annotations = map[string]string{v1alpha1.AnnotationRetry: tt.value}
			assert.Equal(t, tt.valid, Retry(gs) != "")
		})
	}
	assert.True(t, Retries(value, commit))
	assert.False(t, Retries(value, strings.Repeat("0", 40)))
	assert.False(t, Retries("", ""), "an empty value names no commit")
}
