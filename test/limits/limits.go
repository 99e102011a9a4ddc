// Package limits generates values at the limits of every field of Stoker's kinds: the largest and the smallest that a
// schema admits, and some that it might admit by mistake. For numbers, only the largest. The API server decides which of them it accepts.
package limits

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// Case is one value in one field.
type Case struct {
	Name string
	path []any // names of fields, and 0 for the first item of a list
	// value is set at path; nil removes the field.
	value any
	// items is how often the first item of the list at path is repeated, and key the field that makes the items different, if any.
	items int
	key   string
}

// Of returns the cases of spec or status of a kind, such as "synctargets".
func Of(t testing.TB, plural, part string) []Case {
	t.Helper()
	var all []Case
	walk([]any{part}, read(t, plural, part), &all)
	return all
}

func read(t testing.TB, plural, part string) schema {
	t.Helper()
	_, source, _, _ := runtime.Caller(0)
	data, err := os.ReadFile(filepath.Join(filepath.Dir(source), "../../charts/stoker/files/crds/stoker.io_"+plural+".yaml"))
	require.NoError(t, err)
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema struct{ Properties map[string]schema }
				}
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(data, &crd))
	require.Len(t, crd.Spec.Versions, 1)
	return crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties[part]
}

// Times returns the fields of spec or status of a kind that are times without a pattern in the schema.
func Times(t testing.TB, plural, part string) []string {
	t.Helper()
	var loose []string
	var visit func(path []any, s schema)
	visit = func(path []any, s schema) {
		if s.Format == "date-time" && s.Pattern == "" {
			loose = append(loose, name(path))
		}
		for field, of := range s.Properties {
			visit(append(slices.Clone(path), field), of)
		}
		if s.Items != nil {
			visit(append(slices.Clone(path), 0), *s.Items)
		}
	}
	visit([]any{part}, read(t, plural, part))
	return loose
}

type schema struct {
	Type, Format, Pattern string
	Properties            map[string]schema
	Items                 *schema
	Enum                  []any
	MaxLength, MaxItems   int
	Maximum               *int64
	Keys                  []string `json:"x-kubernetes-list-map-keys"`
}

// texts are values for text fields.
var texts = []string{"", "\x00", "../..", strings.Repeat("0", 40)}

// times are values for fields with the format date-time, among them some that parsers of times disagree on.
var times = []string{
	"2020-01-01T00:00:00Z", "2020-01-01T00:00:00.000000Z", "2020-01-01t00:00:00z", "2020-01-01T00:00:00.1Z", "2020-01-01T00:00:00+23:59",
	"2020-01-01T00:00:00-99:99", "2020-01-01T00:00:00.000000+01:00", "2016-12-31T23:59:60Z", "2020-02-30T00:00:00Z", "0000-01-01T00:00:00Z",
	"0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59.999999Z", "2020-01-01", "2020-01-01T24:00:00Z",
}

// walk appends the cases of a field and of the fields below it.
func walk(path []any, s schema, all *[]Case) {
	path = slices.Clone(path)
	add := func(what string, value any) {
		*all = append(*all, Case{Name: fmt.Sprintf("%s=%.40s", name(path), what), path: path, value: value})
	}
	add("none", nil)
	switch s.Type {
	case "object":
		add("{}", map[string]any{})
		for _, field := range slices.Sorted(maps.Keys(s.Properties)) {
			walk(append(path, field), s.Properties[field], all)
		}
	case "array":
		add("[]", []any{})
		walk(append(path, 0), *s.Items, all)
		if s.Items.Type == "string" {
			add("as many as may be", slices.Repeat([]any{strings.Repeat("\U0001F600", s.Items.MaxLength)}, s.MaxItems))
		}
		if s.Items.Type == "object" && s.MaxItems <= 100 {
			c := Case{Name: name(path) + "=as many as may be", path: path, items: s.MaxItems}
			if len(s.Keys) > 0 {
				c.key = s.Keys[0]
			}
			*all = append(*all, c)
		}
	case "boolean":
		add("true", true)
		add("false", false)
	case "integer":
		numbers := []int64{0, -1, math.MaxInt32, math.MinInt32, math.MaxInt64, math.MinInt64}
		if s.Maximum != nil {
			numbers = append(numbers, *s.Maximum)
		}
		for _, n := range numbers {
			add(fmt.Sprint(n), n)
		}
		add("1e30", 1e30)
	case "string":
		words := slices.Clone(texts)
		if s.Format == "date-time" {
			words = times
		}
		if s.MaxLength > 0 {
			words = append(words, strings.Repeat("x", s.MaxLength), strings.Repeat("\U0001F600", s.MaxLength))
		}
		for _, v := range s.Enum {
			words = append(words, fmt.Sprint(v))
		}
		for _, w := range words {
			add(fmt.Sprintf("%.20q(%d)", w, len(w)), w)
		}
	}
}

func name(path []any) string {
	parts := make([]string, len(path))
	for i, p := range path {
		parts[i] = fmt.Sprint(p)
	}
	return strings.Join(parts, ".")
}

// Put sets the value in an object as an untyped client has it. It reports false if the object has nothing to put it into.
func (c Case) Put(object map[string]any) bool {
	var current any = object
	for i, step := range c.path {
		last := i == len(c.path)-1
		switch step := step.(type) {
		case string:
			m, ok := current.(map[string]any)
			if !ok {
				return false
			}
			switch {
			case last && c.items > 0:
				list, ok := m[step].([]any)
				if !ok || len(list) == 0 {
					return false
				}
				m[step] = c.repeat(list[0])
			case last && c.value == nil:
				delete(m, step)
			case last:
				m[step] = deepCopy(c.value)
			}
			current = m[step]
		case int:
			list, ok := current.([]any)
			if !ok || len(list) == 0 || last && c.value == nil && c.items == 0 {
				return false
			}
			if last {
				list[0] = deepCopy(c.value)
			}
			current = list[0]
		}
	}
	return true
}

// repeat returns a list of copies of an item with different keys.
func (c Case) repeat(item any) (list []any) {
	for i := range c.items {
		next := deepCopy(item)
		if m, ok := next.(map[string]any); ok && c.key != "" {
			m[c.key] = fmt.Sprint("item-", i)
		}
		list = append(list, next)
	}
	return list
}

// deepCopy copies a value, so that changes of an object do not reach the case.
func deepCopy(v any) any {
	switch v.(type) {
	case map[string]any, []any:
		data, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		var out any
		if err := json.Unmarshal(data, &out); err != nil {
			panic(err)
		}
		return out
	}
	return v
}
