package v1alpha1

import (
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
)

func TestNextForEveryReason(t *testing.T) {
	for _, r := range Reasons {
		t.Run(string(r.Reason), func(t *testing.T) {
			s := r.Reason.Next()
			assert.NotEmpty(t, s, "add a sentence to next")
			assert.False(t, s != "" && unicode.IsUpper(rune(s[0])) || strings.HasSuffix(s, "."), "pages make it a sentence: %q", s)
			assert.LessOrEqual(t, len(strings.Fields(s)), 25, "%q", s)
			if r.Cause == CausePlan && r.Reason != ReasonApprovalNeeded {
				assert.Contains(t, s, "by itself", "%q", s)
				assert.NotContains(t, s, "needs a user")
			}
		})
	}
	assert.Len(t, next, len(Reasons), "next has a reason that is not in the list")
	assert.Empty(t, Reason("Unheard").Next())
}
