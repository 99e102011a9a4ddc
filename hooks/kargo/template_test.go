package kargo

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/expr-lang/expr"
)

// This file implements Kargo's expressions according to its documentation and observed behavior. Text between ${{ }} or ${% %} is
// evaluated. If the resulting value looks like a number, a boolean or JSON, it becomes one, unless it is quoted.

// evaluate evaluates the expressions in a string.
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

// coerce converts an unquoted result, which is the trap: "1.10" becomes the number 1.1, and "t" becomes true.
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
