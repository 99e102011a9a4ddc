package charts

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUnknownAlertHasNoSeverity(t *testing.T) {
	t.Parallel()
	_, err := install(t, with(set("metrics.rules.enabled", true), set("metrics.rules.severities", values{"StokerMadeUp": "page"})))
	require.ErrorContains(t, err, "there is no alert StokerMadeUp")
}
