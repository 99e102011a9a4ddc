package kargo

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/expr-lang/expr"
)

// Kargo's expression layer, as its documentation and its behaviour have it: what stands between ${{ }} or ${% %} is
// evaluated; a value with an expression in it that then reads as a number, a boolean or JSON becomes one, unless it stands
// in quotes.

// evaluate evaluates one string.
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

// opening finds the next expression, and what ends it: the first }} counts, wherever it stands.
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

// coerce is the trap: of a result without quotes, "1.10" is the number 1.1 and "t" is true.
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

// evaluateAll evaluates every string in a value that came from YAML; names are left alone.
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

// judge evaluates one of the http step's own expressions, which are not in ${{ }}.
func judge(code string, env map[string]any) (any, error) {
	program, err := expr.Compile(code)
	if err != nil {
		return nil, &terminalError{fmt.Errorf("compile %q: %w", code, err)}
	}
	return expr.Run(program, env)
}

// terminalError ends a step whatever its errorThreshold is.
type terminalError struct{ error }

func (e *terminalError) Unwrap() error { return e.error }

func terminal(err error) bool {
	_, is := errors.AsType[*terminalError](err)
	return is
}
