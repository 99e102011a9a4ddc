package status

import (
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/api/v1alpha1"
)

func TestNextForEveryReason(t *testing.T) {
	for _, r := range v1alpha1.Reasons {
		t.Run(string(r.Reason), func(t *testing.T) {
			s := Next(r.Reason)
			assert.NotEmpty(t, s, "add a sentence to next")
			assert.False(t, s != "" && unicode.IsUpper(rune(s[0])) || strings.HasSuffix(s, "."), "pages make it a sentence: %q", s)
			assert.LessOrEqual(t, len(strings.Fields(s)), 25, "%q", s)
			if r.Cause == v1alpha1.CausePlan && r.Reason != v1alpha1.ReasonApprovalNeeded {
				assert.Contains(t, s, "by itself", "%q", s)
				assert.NotContains(t, s, "needs a user")
			}
		})
	}
	assert.Len(t, next, len(v1alpha1.Reasons), "next has a reason that is not in the list")
	assert.Empty(t, Next("Unheard"))
}

// A user learns when a held or retried state ends, and how to ask now.
func TestNextOfNamesCommand(t *testing.T) {
	for _, r := range v1alpha1.Reasons {
		t.Run(string(r.Reason), func(t *testing.T) {
			s := NextOf("line", r.Reason)
			assert.True(t, strings.HasPrefix(s, Next(r.Reason)))
			assert.NotContains(t, s, "NAME")
			if r.Class != v1alpha1.ClassRetry || r.Reason == v1alpha1.ReasonGitThrottled || strings.Contains(r.Meaning, "ConfigSync") || r.Reason == v1alpha1.ReasonPruneFailed {
				return
			}
			assert.Contains(t, s, "within 5 minutes, or now: stoker sync line")
		})
	}
	for reason, command := range map[v1alpha1.Reason]string{
		v1alpha1.ReasonDesignerSessionActive: "every syncPeriod, or now: stoker sync line", v1alpha1.ReasonMassDeletion: "stoker sync line --confirm-deletion=COMMIT",
		v1alpha1.ReasonMaintenanceWindow: "stoker approve line --window", v1alpha1.ReasonApprovalNeeded: "stoker approve line",
		v1alpha1.ReasonValidationDenied: "stoker sync line --force", v1alpha1.ReasonRolledBack: "stoker retry line",
		v1alpha1.ReasonGatewayForbidden: "within 5 minutes, or now: stoker sync line", v1alpha1.ReasonRestored: "stoker retry line",
	} {
		t.Run(string(reason), func(t *testing.T) { assert.Contains(t, NextOf("line", reason), command) })
	}
	assert.Equal(t, Next(v1alpha1.ReasonSynced), NextOf("line", v1alpha1.ReasonSynced))
	assert.Empty(t, NextOf("line", "Unheard"))
}
