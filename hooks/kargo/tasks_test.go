package kargo

import (
	"os"
	"regexp"
	"testing"

	"github.com/expr-lang/expr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var expression = regexp.MustCompile(`(?s)\$\{\{(.*?)\}\}|\$\{%(.*?)%\}`)

// Kargo reports a wrong field or an invalid expression only during a promotion, so this test checks them.
func TestTasksAreValid(t *testing.T) {
	t.Parallel()
	for name, one := range tasks(t) {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, "kargo.akuity.io/v1alpha1", one.APIVersion, name)
			assert.Equal(t, "ClusterPromotionTask", one.Kind, name)
			assert.Equal(t, map[string]string{"app.kubernetes.io/name": "stoker", "app.kubernetes.io/part-of": "stoker"}, one.Metadata.Labels, name)
			aliases, vars := map[string]bool{}, map[string]bool{}
			for _, v := range one.Spec.Vars {
				assert.Regexp(t, `^[a-zA-Z_]\w*$`, v.Name, name)
				assert.False(t, vars[v.Name], "%s: var %s twice", name, v.Name)
				vars[v.Name] = true
			}
			for _, s := range one.Spec.Steps {
				at := name + "/" + s.As
				assert.Nil(t, s.Task, "%s: a task must not call another one", at)
				assert.NotEmpty(t, s.As, name)
				assert.False(t, aliases[s.As], "%s: twice", at)
				aliases[s.As] = true
				if s.Uses != "compose-output" {
					require.Contains(t, steps, s.Uses, at)
					assert.Empty(t, steps[s.Uses].check("config", s.Config), at)
				}
				if s.Uses == "http" {
					require.NotNil(t, s.Retry, at)
					assert.NotEmpty(t, s.Retry.Timeout, "%s: without a timeout, the step is retried forever", at)
					assert.Greater(t, s.Retry.ErrorThreshold, uint32(1), "%s: one broken connection must not fail the step", at)
					assert.NotEmpty(t, s.Config["failureExpression"], at)
					assert.NotEmpty(t, s.Config["errorExpression"], at)
				}
				b, err := os.ReadFile(files + name + ".yaml")
				require.NoError(t, err)
				for _, used := range regexp.MustCompile(`vars\.(\w+)`).FindAllStringSubmatch(string(b), -1) {
					assert.True(t, vars[used[1]], "%s: no var %s", name, used[1])
				}
				eachString(s.Config, func(text string) {
					for _, m := range expression.FindAllStringSubmatch(text, -1) {
						_, err := expr.Compile(m[1] + m[2])
						assert.NoError(t, err, at)
					}
				})
			}
		})
	}
}

func eachString(value any, do func(string)) {
	switch v := value.(type) {
	case string:
		do(v)
	case []any:
		for _, one := range v {
			eachString(one, do)
		}
	case map[string]any:
		for _, one := range v {
			eachString(one, do)
		}
	}
}

func TestExpressions(t *testing.T) {
	t.Parallel()
	env := map[string]any{"vars": map[string]any{"tag": "1.10", "on": true, "n": 3.0}}
	for text, want := range map[string]any{
		"1.10":                               "1.10",
		"${{ vars.tag }}":                    1.1,
		"${{ quote(vars.tag) }}":             "1.10",
		"${{quote(vars.tag)}}\n":             "1.10\n",
		"v${{ vars.tag }}":                   "v1.10",
		"${{ vars.on }}":                     true,
		"${{ quote(vars.on) }}":              "true",
		`${{ quote({"a": vars.tag}) }}`:      `{"a":"1.10"}`,
		`${{ {"a": vars.tag} }}`:             map[string]any{"a": "1.10"},
		`${% quote({"a": {"b": vars.n}}) %}`: `{"a":{"b":3}}`,
		"${{ vars.n }} of ${% vars.n %}":     "3 of 3",
		"t${{ '' }}":                         true,
	} {
		t.Run(text, func(t *testing.T) {
			got, err := evaluate(text, env)
			require.NoError(t, err)
			assert.Equal(t, want, got)
		})
	}
	for _, text := range []string{"${{ vars.tag", "${% vars.tag }}", `${{ quote({"a": {"b": 1}}) }}`, "${{ nothing.at.all }}", "${{ quote( }}"} {
		t.Run(text, func(t *testing.T) {
			_, err := evaluate(text, env)
			require.Error(t, err)
		})
	}
}
