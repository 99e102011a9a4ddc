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
