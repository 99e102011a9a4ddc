package plantest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
)

// Rules validates rules as ParseRules does.
func Rules(t testing.TB, r plan.Rules) plan.Rules {
	t.Helper()
	r, err := plan.NewRules(r)
	require.NoError(t, err)
	return r
}

// Mappings returns a mapping for each pair of source and destination.
func Mappings(t testing.TB, pairs ...string) []plan.Mapping {
	t.Helper()
	var list []plan.Mapping
	for i := 0; i < len(pairs); i += 2 {
		source, err := plan.ParsePath(pairs[i])
		require.NoError(t, err)
		destination, err := plan.ParsePath(pairs[i+1])
		require.NoError(t, err)
		list = append(list, plan.Mapping{Source: source, Destination: destination})
	}
	return list
}

// Excludes compiles patterns.
func Excludes(t testing.TB, patterns ...string) plan.Excludes {
	t.Helper()
	x, err := plan.NewExcludes(patterns)
	require.NoError(t, err)
	return x
}

// Facts returns the facts of a gateway.
func Facts() plan.Facts {
	return plan.Facts{
		GatewayName: "line-1", PodName: "line-1-0", Namespace: "north", CRName: "plant", Ref: "main",
		Commit: "0123456789abcdef0123456789abcdef01234567", Labels: map[string]string{"hostile": ".git", "site": "7"},
	}
}
