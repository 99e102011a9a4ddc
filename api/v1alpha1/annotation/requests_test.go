package annotation

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
)

func TestRequestsFor(t *testing.T) {
	a, snapshot := strings.Repeat("a", 40), "area-4-20260212-102000"
	gs := &v1alpha1.GatewaySync{}
	gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Windows: []v1alpha1.MaintenanceWindow{{Name: "nights"}}}
	gs.Annotations = map[string]string{
		v1alpha1.AnnotationForceSync: "now" + strings.Repeat("w", 300), v1alpha1.AnnotationConfirmDeletion: a[:7], v1alpha1.AnnotationPropose: "area-4 now",
		v1alpha1.AnnotationRestore: snapshot + " 2026-01-02T12:00:00Z", v1alpha1.AnnotationRetry: a + " 2026-01-02T12:00:00Z", v1alpha1.AnnotationApproved: "window@" + a,
	}
	all := Requests{Force: "now" + strings.Repeat("w", 253), ConfirmDeletion: a[:7], Propose: "area-4 now", Restore: snapshot + " 2026-01-02T12:00:00Z",
		Retry: a + " 2026-01-02T12:00:00Z", WindowApproved: true}
	assert.Equal(t, all, RequestsFor(gs, "area-4", a))
	other := all
	other.Propose, other.Restore, other.WindowApproved = "", "", false
	assert.Equal(t, other, RequestsFor(gs, "area-5", strings.Repeat("b", 40)))
	assert.Zero(t, RequestsFor(&v1alpha1.GatewaySync{}, "area-4", a))
}

// Each request that is not about the ref or a pause is in the hash, and no value can stand for another.
func TestHash(t *testing.T) {
	hash := func(annotations map[string]string) string {
		gs := &v1alpha1.GatewaySync{}
		gs.Annotations = annotations
		return Hash(gs)
	}
	none := hash(nil)
	require.Regexp(t, `^[0-9a-f]{64}$`, none)
	seen := map[string]string{none: "no request"}
	for _, a := range v1alpha1.RequestAnnotations() {
		t.Run(a.Name, func(t *testing.T) {
			is := hash(map[string]string{a.Name: "x"})
			if strings.HasPrefix(a.Name, "stoker.io/requested-") || a.Name == v1alpha1.AnnotationPaused {
				assert.Equal(t, none, is, "the SyncTarget itself has the outcome of this request")
				return
			}
			assert.Empty(t, seen[is])
			seen[is] = a.Name
			sameSync := a.Name == v1alpha1.AnnotationPropose || a.Name == v1alpha1.AnnotationApproved
			assert.Equal(t, sameSync, SameSync(none, is))
		})
	}
	assert.NotEqual(t, hash(map[string]string{v1alpha1.AnnotationForceSync: "1", v1alpha1.AnnotationConfirmDeletion: "2"}), hash(map[string]string{v1alpha1.AnnotationForceSync: "10 2"}))
	assert.False(t, SameSync("", ""), "nothing is known")
	assert.False(t, SameSync(none, none[:32]))
}

func TestProposeAnnotation(t *testing.T) {
	value := ProposeValue("line-1", time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600)))
	assert.Equal(t, "line-1 2026-01-02T02:04:05Z", value)
	assert.True(t, ProposesFor(value, "line-1"))
	assert.True(t, ProposesFor("line-1", "line-1"), "a value without a time must count")
	assert.False(t, ProposesFor(value, "line"))
	assert.False(t, ProposesFor("", ""))
	for name, c := range map[string]struct{ text, want string }{
		"valid":         {value, value},
		"two lines":     {"a\nb", ""},
		"invalid UTF-8": {"a\xff", ""},
		"too long":      {strings.Repeat("a", 321), ""},
		"at the limit":  {strings.Repeat("a", 320), strings.Repeat("a", 320)},
	} {
		t.Run(name, func(t *testing.T) {
			gs := &v1alpha1.GatewaySync{}
			gs.Annotations = map[string]string{v1alpha1.AnnotationPropose: c.text}
			assert.Equal(t, c.want, Propose(gs))
		})
	}
}

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

func TestRestoreRequest(t *testing.T) {
	const id = "area-4-20260212-102000"
	for name, tt := range map[string]struct {
		annotation, spec, want string
	}{
		"none":                        {},
		"the annotation":              {annotation: id + " 2026-02-13T00:00:00Z", want: id + " 2026-02-13T00:00:00Z"},
		"the spec":                    {spec: id, want: id},
		"file name of an archive":     {spec: id + ".tar.gz", want: id},
		"annotation takes precedence": {annotation: id, spec: "area-4-20260101-000000", want: id + " "},
		"annotation without snapshot": {annotation: "area-4", spec: id, want: id},
		"annotation, other gateway":   {annotation: "area-7-20260101-000000 2026-02-13T00:00:00Z", spec: id, want: id},
		"the spec, other gateway":     {spec: "area-7-20260101-000000"},
		"control characters":          {annotation: id + " \x1b[2J", spec: id, want: id},
		"too long":                    {annotation: id + strings.Repeat(" ", 300)},
	} {
		t.Run(name, func(t *testing.T) {
			gs := &v1alpha1.GatewaySync{}
			gs.Annotations = map[string]string{v1alpha1.AnnotationRestore: tt.annotation}
			if tt.spec != "" {
				gs.Spec.Rollback = &v1alpha1.RollbackSpec{ToSnapshot: tt.spec}
			}
			assert.Equal(t, tt.want, Restore(gs, "area-4"))
			assert.Equal(t, RestoresOn(tt.spec, "area-4"), RequestsFor(gs, "area-4", "").RestoreOfSpec())
		})
	}
	value := RestoreValue(id, time.Date(2026, 2, 13, 0, 0, 0, 0, time.UTC))
	assert.Equal(t, id+" 2026-02-13T00:00:00Z", value)
	for gateway, want := range map[string]string{"area-4": id, "area": "", "area-4-20260212": "", "": ""} {
		t.Run("for "+gateway, func(t *testing.T) { assert.Equal(t, want, RestoresOn(value, gateway)) })
	}
	long := strings.Repeat("a", 253)
	assert.Equal(t, long[:200]+"-20260212-102000", RestoresOn(long[:200]+"-20260212-102000", long))
}

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
