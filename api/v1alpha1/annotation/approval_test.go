package annotation

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/api/v1alpha1"
)

func TestApproved(t *testing.T) {
	a, b := strings.Repeat("a", 40), strings.Repeat("b", 40)
	var many []string
	for n := range 18 {
		many = append(many, fmt.Sprintf("s%d@%s", n, a))
	}
	for name, tt := range map[string]struct {
		value, stage, commit string
		want                 bool
	}{
		"no annotation":                  {"", "prod", a, false},
		"approved":                       {"prod@" + a, "prod", a, true},
		"one of several":                 {"dev@" + a + ", prod@" + a, "prod", a, true},
		"another commit":                 {"prod@" + a, "prod", b, false},
		"another stage":                  {"prod@" + a, "dev", a, false},
		"a short commit":                 {"prod@aaaaaaa", "prod", a, false},
		"short commit in the question":   {"prod@aaaaaaa", "prod", "aaaaaaa", false},
		"suffix of a stage":              {"pre-prod@" + a, "prod", a, false},
		"stage that contains an entry":   {"prod@" + a, "x,prod", a, false},
		"an empty stage":                 {"@" + a, "", a, false},
		"with the user":                  {"prod@" + a + " ann@example.com", "prod", a, true},
		"two users":                      {"prod@" + a + " ann bob", "prod", a, false},
		"valid entry among invalid ones": {"\x00,@@,prod@" + a + ",*@" + a, "prod", a, true},
		"18th entry from the end":        {strings.Join(many, ","), "s0", a, false},
		"17th entry from the end":        {strings.Join(many, ","), "s1", a, true},
		"too long":                       {"prod@" + a + strings.Repeat(",", maxApproved), "prod", a, false},
	} {
		t.Run(name, func(t *testing.T) {
			gs := &v1alpha1.GatewaySync{}
			gs.Annotations = map[string]string{v1alpha1.AnnotationApproved: tt.value}
			assert.Equal(t, tt.want, Approved(gs, tt.stage, tt.commit))
		})
	}
}

func TestApprove(t *testing.T) {
	a, b := strings.Repeat("a", 40), strings.Repeat("b", 40)
	for name, tt := range map[string]struct{ value, stage, commit, by, want string }{
		"first approval":               {"", "prod", a, "", "prod@" + a},
		"another stage":                {"dev@" + a, "prod", a, "", "dev@" + a + ",prod@" + a},
		"again":                        {"prod@" + a + ",dev@" + a, "prod", a, "", "dev@" + a + ",prod@" + a},
		"capital digits":               {"", "prod", strings.ToUpper(b), "", "prod@" + b},
		"invalid entries are dropped":  {"x,\n" + "dev@" + a + ",,\xff", "prod", b, "", "dev@" + a + ",prod@" + b},
		"a value too long":             {strings.Repeat("x", 1<<20), "prod", a, "", "prod@" + a},
		"a short commit":               {"dev@" + a, "prod", "aaaaaaa", "", "dev@" + a},
		"by a user":                    {"dev@" + a + " bob", "prod", a, "system:serviceaccount:plant:ci", "dev@" + a + " bob,prod@" + a + " system:serviceaccount:plant:ci"},
		"again by another user":        {"prod@" + a + " bob", "prod", a, "ann", "prod@" + a + " ann"},
		"a name with a comma":          {"", "prod", a, "ann,dev@" + a, "prod@" + a},
		"a name with a space":          {"", "prod", a, "ann smith", "prod@" + a},
		"a long name":                  {"", "prod", a, strings.Repeat("n", 129), "prod@" + a},
		"stage that contains an entry": {"dev@" + a, "x@" + b + ",prod", a, "", "dev@" + a},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tt.want, Approve(tt.value, tt.stage, tt.commit, tt.by)) })
	}
	value := ""
	for n := range 24 { // sequence: each approval is added to the ones before
		value = Approve(value, strings.Repeat("s", 61)+fmt.Sprintf("%02d", n), a, strings.Repeat("n", 128))
	}
	assert.Equal(t, 17, strings.Count(value, "@"), "16 stages and the windows must fit")
	assert.LessOrEqual(t, len(strings.ReplaceAll(value, ",", ", ")), maxApproved)
	gs := &v1alpha1.GatewaySync{}
	gs.Annotations = map[string]string{v1alpha1.AnnotationApproved: value}
	assert.True(t, Approved(gs, strings.Repeat("s", 61)+"07", a))
	assert.False(t, Approved(gs, strings.Repeat("s", 61)+"06", a))
}

func TestApprovers(t *testing.T) {
	a, b := strings.Repeat("a", 40), strings.Repeat("b", 40)
	gs := &v1alpha1.GatewaySync{}
	gs.Annotations = map[string]string{v1alpha1.AnnotationApproved: "dev@" + a + " bob,prod@" + b + " eve,prod@" + a + ",window@" + a + " ann@example.com"}
	assert.Equal(t, "dev by bob, prod, window by ann@example.com", Approvers(gs, a))
	assert.Empty(t, Approvers(gs, strings.Repeat("c", 40)))
}

func FuzzApprovals(f *testing.F) {
	f.Add("prod@"+strings.Repeat("a", 40), "prod", strings.Repeat("a", 40), "ann")
	f.Add(",@,", "", "\x00", " ")
	f.Fuzz(func(t *testing.T, value, stage, commit, by string) {
		after := Approve(value, stage, commit, by)
		assert.LessOrEqual(t, len(after), maxApproved)
		assert.Equal(t, after, Approve(after, "", "", ""), "a written value must be readable")
		gs := &v1alpha1.GatewaySync{}
		gs.Annotations = map[string]string{v1alpha1.AnnotationApproved: after}
		is := approval.FindStringSubmatch(stage + "@" + strings.ToLower(commit))
		assert.Equal(t, is != nil && is[3] == "", Approved(gs, stage, strings.ToLower(commit)))
	})
}
