package effective_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
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
			got, err := effective.MaxFileBytes(&v1alpha1.ProposalGuardrails{MaxFileSize: c.text})
			if c.want == 0 {
				require.ErrorContains(t, err, "spec.bidirectional.guardrails.maxFileSize")
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
		})
	}
	t.Run("default of maxTotalSize", func(t *testing.T) {
		got, err := effective.MaxTotalBytes(&v1alpha1.ProposalGuardrails{})
		require.NoError(t, err)
		assert.Equal(t, int64(32<<20), got)
	})
	t.Run("error of maxTotalSize", func(t *testing.T) {
		_, err := effective.MaxTotalBytes(&v1alpha1.ProposalGuardrails{MaxTotalSize: "x"})
		require.ErrorContains(t, err, "spec.bidirectional.guardrails.maxTotalSize")
	})
}

func TestDebounceDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 30 * time.Second, "1s": time.Second, "10m": 10 * time.Minute, "999ms": 0, "10m1s": 0, "soon": 0} {
		t.Run(text, func(t *testing.T) {
			got, err := effective.Debounce(&v1alpha1.BidirectionalSpec{Debounce: text})
			if want == 0 {
				require.ErrorContains(t, err, "spec.bidirectional.debounce")
				return
			}
			require.NoError(t, err)
			assert.Equal(t, want, got)
		})
	}
}

func TestInvalidDurationNamesItsField(t *testing.T) {
	gs := &v1alpha1.GatewaySync{}
	gs.Spec.Polling.Interval = "banana"
	_, err := effective.PollingInterval(&gs.Spec.Polling)
	assert.ErrorContains(t, err, "spec.polling.interval")
}

func TestProgressDeadline(t *testing.T) {
	for value, want := range map[string]time.Duration{"": 10 * time.Minute, "90s": 90 * time.Second, "9999h": 10 * time.Minute, "banana": 10 * time.Minute} {
		t.Run(value, func(t *testing.T) {
			assert.Equal(t, want, effective.ProgressDeadline(&v1alpha1.GatewaySyncSpec{ProgressDeadline: value}))
		})
	}
}
