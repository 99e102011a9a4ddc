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
		"valid entry among invalid ones": {"\x00,@@,prod@" + a + ",*@" + a, "prod", a, true},
		"18th entry from the end":        {strings.Join(many, ","), "s0", a, false},
		"17th entry from the end":        {strings.Join(many, ","), "s1", a, true},
		"too long":                       {"prod@" + a + strings.Repeat(",", 2048), "prod", a, false},
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
	for name, tt := range map[string]struct{ value, stage, commit, want string }{
		"first approval":               {"", "prod", a, "prod@" + a},
		"another stage":                {"dev@" + a, "prod", a, "dev@" + a + ",prod@" + a},
		"again":                        {"prod@" + a + ",dev@" + a, "prod", a, "dev@" + a + ",prod@" + a},
		"capital digits":               {"", "prod", strings.ToUpper(b), "prod@" + b},
		"invalid entries are dropped":  {"x,\n" + "dev@" + a + ",,\xff", "prod", b, "dev@" + a + ",prod@" + b},
		"a value too long":             {strings.Repeat("x", 1<<20), "prod", a, "prod@" + a},
		"a short commit":               {"dev@" + a, "prod", "aaaaaaa", "dev@" + a},
		"stage that contains an entry": {"dev@" + a, "x@" + b + ",prod", a, "dev@" + a},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tt.want, Approve(tt.value, tt.stage, tt.commit)) })
	}
	value := ""
	for n := range 24 { // sequence: each approval is added to the ones before
		value = Approve(value, strings.Repeat("s", 61)+fmt.Sprintf("%02d", n), a)
	}
	assert.Equal(t, 17, strings.Count(value, "@"), "16 stages and the windows must fit")
	assert.LessOrEqual(t, len(strings.ReplaceAll(value, ",", ", ")), maxApproved)
	gs := &v1alpha1.GatewaySync{}
	gs.Annotations = map[string]string{v1alpha1.AnnotationApproved: value}
	assert.True(t, Approved(gs, strings.Repeat("s", 61)+"07", a))
	assert.False(t, Approved(gs, strings.Repeat("s", 61)+"06", a))
}

func FuzzApprovals(f *testing.F) {
	f.Add("prod@"+strings.Repeat("a", 40), "prod", strings.Repeat("a", 40))
	f.Add(",@,", "", "\x00")
	f.Fuzz(func(t *testing.T, value, stage, commit string) {
		after := Approve(value, stage, commit)
		assert.LessOrEqual(t, len(after), maxApproved)
		assert.Equal(t, after, Approve(after, "", ""), "a written value must be readable")
		gs := &v1alpha1.GatewaySync{}
		gs.Annotations = map[string]string{v1alpha1.AnnotationApproved: after}
		assert.Equal(t, approval.MatchString(stage+"@"+strings.ToLower(commit)), Approved(gs, stage, strings.ToLower(commit)))
	})
}
