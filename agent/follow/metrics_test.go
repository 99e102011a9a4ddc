package follow

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// gathered is the sum of a metric's series.
func gathered(t *testing.T, a *agent, name string) float64 {
	t.Helper()
	families, err := a.reg.Gather()
	require.NoError(t, err)
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}
