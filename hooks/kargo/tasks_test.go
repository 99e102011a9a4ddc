package kargo

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

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

// shape describes a field of a built-in step of Kargo 1.11.
type shape struct {
	kind     string // string, text (may be empty), bool, number, duration, any
	of       fields // the fields of an object, or of the elements if list is set
	list     bool
	required bool
	among    []string
}

type fields map[string]shape

var pair = fields{"name": {kind: "string", required: true}, "value": {kind: "string", required: true}}

// steps are the fields of the built-in steps that the tasks use, by the name of the step.
var steps = map[string]fields{
	"http": {
		"method": {kind: "string", among: []string{"DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"}}, "url": {kind: "string", required: true},
		"headers": {of: pair, list: true}, "queryParams": {of: pair, list: true}, "body": {kind: "text"},
		"insecureSkipTLSVerify": {kind: "bool"}, "proxy": {kind: "string"}, "timeout": {kind: "duration"}, "pollInterval": {kind: "duration"},
		"responseContentType": {kind: "string"}, "successExpression": {kind: "text"}, "failureExpression": {kind: "text"}, "errorExpression": {kind: "text"},
		"outputs": {list: true, of: fields{"name": {kind: "string", required: true}, "fromExpression": {kind: "string", required: true}}},
	},
	"fail": {"message": {kind: "string"}},
	"git-clone": {
		"repoURL": {kind: "string", required: true}, "insecureSkipTLSVerify": {kind: "bool"},
		"checkout": {list: true, required: true, of: fields{"branch": {kind: "text"}, "commit": {kind: "text"}, "tag": {kind: "text"}, "create": {kind: "bool"}, "path": {kind: "string", required: true}}},
	},
	"yaml-update": {
		"path":    {kind: "string", required: true},
		"updates": {list: true, required: true, of: fields{"key": {kind: "string", required: true}, "value": {kind: "any", required: true}}},
	},
	"git-commit": {"path": {kind: "string", required: true}, "message": {kind: "string", required: true}},
	"git-push":   {"path": {kind: "string", required: true}, "targetBranch": {kind: "text"}, "maxAttempts": {kind: "number"}, "generateTargetBranch": {kind: "bool"}},
	"argocd-update": {"apps": {list: true, required: true, of: fields{
		"name": {kind: "string"}, "namespace": {kind: "string"},
		"sources": {list: true, of: fields{"repoURL": {kind: "string", required: true}, "chart": {kind: "string"}, "desiredRevision": {kind: "string"}, "updateTargetRevision": {kind: "bool"}}},
	}}},
}

// check returns the problems for which a step would reject its configuration.
func (f fields) check(at string, value any) []string {
	object, is := value.(map[string]any)
	if !is {
		return []string{fmt.Sprintf("%s is %T and no object", at, value)}
	}
	var wrong []string
	for _, name := range slices.Sorted(maps.Keys(object)) {
		s, known := f[name]
		if !known {
			wrong = append(wrong, fmt.Sprintf("%s.%s is not a field", at, name))
			continue
		}
		wrong = append(wrong, s.check(at+"."+name, object[name])...)
	}
	for _, name := range slices.Sorted(maps.Keys(f)) {
		if _, there := object[name]; f[name].required && !there {
			wrong = append(wrong, fmt.Sprintf("%s.%s is missing", at, name))
		}
	}
	return wrong
}

func (s shape) check(at string, value any) []string {
	if s.list {
		list, is := value.([]any)
		if !is || len(list) == 0 && s.required {
			return []string{fmt.Sprintf("%s is %T and no list with elements", at, value)}
		}
		var wrong []string
		for i := range list {
			wrong = append(wrong, s.of.check(fmt.Sprintf("%s[%d]", at, i), list[i])...)
		}
		return wrong
	}
	ok := true
	switch s.kind {
	case "any":
	case "bool":
		_, ok = value.(bool)
	case "number":
		_, ok = value.(float64)
	default:
		var text string
		text, ok = value.(string)
		ok = ok && (s.kind == "text" || text != "") && (s.among == nil || slices.Contains(s.among, text))
		if _, err := time.ParseDuration(text); s.kind == "duration" {
			ok = ok && err == nil && !strings.HasPrefix(text, "-")
		}
	}
	if !ok {
		return []string{fmt.Sprintf("%s: %T %v is not %s", at, value, value, strings.TrimSpace(s.kind+" "+strings.Join(s.among, "|")))}
	}
	return nil
}

// evaluate evaluates the expressions in a string, according to Kargo's documentation and observed behavior. Text between ${{ }} or ${% %}
// is evaluated. If the resulting value looks like a number, a boolean or JSON, it becomes one, unless it is quoted.
func evaluate(text string, env map[string]any, functions ...expr.Option) (any, error) {
	if !strings.Contains(text, "${{") && !strings.Contains(text, "${%") {
		return text, nil
	}
	var out strings.Builder
	for rest := text; ; {
		start, closing := opening(rest)
		if start < 0 {
			out.WriteString(rest)
			break
		}
		out.WriteString(rest[:start])
		rest = rest[start+3:]
		end := strings.Index(rest, closing)
		if end < 0 {
			return nil, fmt.Errorf("%q has no %s", text, closing)
		}
		value, err := inner(rest[:end], env, functions)
		if err != nil {
			return nil, err
		}
		out.WriteString(value)
		rest = rest[end+2:]
	}
	return coerce(out.String()), nil
}

// opening finds the next expression and its closing delimiter. The first }} ends the expression, even inside a string.
func opening(text string) (start int, closing string) {
	double, percent := strings.Index(text, "${{"), strings.Index(text, "${%")
	if percent >= 0 && (double < 0 || percent < double) {
		return percent, "%}"
	}
	return double, "}}"
}

func inner(code string, env map[string]any, functions []expr.Option) (string, error) {
	program, err := expr.Compile(code, append(functions, expr.Function("quote", quote, new(func(any) string)))...)
	if err != nil {
		return "", err
	}
	value, err := expr.Run(program, env)
	if err != nil {
		return "", err
	}
	if s, ok := value.(string); ok {
		return s, nil
	}
	b, err := json.Marshal(value)
	return string(b), err
}

func quote(args ...any) (any, error) {
	if s, ok := args[0].(string); ok {
		return strconv.Quote(s), nil
	}
	b, err := json.Marshal(args[0])
	return `"` + string(b) + `"`, err
}

// coerce converts an unquoted result, as Kargo does: 1.10 becomes the number 1.1, and t becomes true. Of a quoted result it removes the quotes.
func coerce(text string) any {
	bare := strings.TrimSuffix(text, "\n")
	newline := text[len(bare):]
	if len(bare) > 1 && strings.HasPrefix(bare, `"`) && strings.HasSuffix(bare, `"`) {
		return bare[1:len(bare)-1] + newline
	}
	if n, err := strconv.ParseFloat(bare, 64); err == nil {
		return n
	}
	if b, err := strconv.ParseBool(bare); err == nil {
		return b
	}
	var v any
	if json.Unmarshal([]byte(bare), &v) == nil {
		return v
	}
	return text
}

// evaluateAll evaluates every string in a value from YAML, but not the keys of maps.
func evaluateAll(value any, env map[string]any, functions ...expr.Option) (any, error) {
	switch v := value.(type) {
	case string:
		return evaluate(v, env, functions...)
	case []any:
		all := make([]any, len(v))
		for i := range v {
			var err error
			if all[i], err = evaluateAll(v[i], env, functions...); err != nil {
				return nil, err
			}
		}
		return all, nil
	case map[string]any:
		all := make(map[string]any, len(v))
		for name := range v {
			var err error
			if all[name], err = evaluateAll(v[name], env, functions...); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
		return all, nil
	}
	return value, nil
}

// judge evaluates an expression of the http step, which has no ${{ }}.
func judge(code string, env map[string]any) (any, error) {
	program, err := expr.Compile(code)
	if err != nil {
		return nil, &terminalError{fmt.Errorf("compile %q: %w", code, err)}
	}
	return expr.Run(program, env)
}

// terminalError ends a step regardless of its errorThreshold.
type terminalError struct{ error }

func (e *terminalError) Unwrap() error { return e.error }

func terminal(err error) bool {
	_, is := errors.AsType[*terminalError](err)
	return is
}
