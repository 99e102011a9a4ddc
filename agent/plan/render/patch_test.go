package render

import (
	"bytes"
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

const pretty = `{
  "systemName": "old\u003dname",
  "port" : 8088,
  "tls": false,
  "version": "1.9",
  "list": [
    1,
    {"a": null}
  ],
  "empty": {},
  "a.b": {"0": "zero"}
}`

func patched(t *testing.T, doc string, edits ...Edit) string {
	t.Helper()
	out, err := Patch("config/x.json", []byte(doc), edits)
	require.NoError(t, err)
	require.True(t, json.Valid(bytes.TrimPrefix(out, []byte(byteOrderMark))), "%s", out)
	again, err := Patch("config/x.json", out, edits)
	require.NoError(t, err)
	assert.Equal(t, string(out), string(again), "a second patch changes nothing")
	return string(out)
}

func TestPatch(t *testing.T) {
	for name, c := range map[string]struct{ path, value, old, new string }{
		"text":                        {"systemName", "a'b", `"old\u003dname"`, `"a\u0027b"`},
		"equal text":                  {"systemName", "old=name", `"old\u003dname"`, `"old\u003dname"`},
		"a version stays a string":    {"version", "1.10", `"1.9"`, `"1.10"`},
		"a quoted string":             {"version", `"1.10"`, `"1.9"`, `"1.10"`},
		"number":                      {"port", "1e3", "8088", "1e3"},
		"boolean":                     {"tls", " true ", "false", "true"},
		"element":                     {"list.0", "-7", "1,", "-7,"},
		"null becomes a literal":      {"list.1.a", "3", "null", "3"},
		"null becomes a string":       {"list.1.a", "x y", "null", `"x y"`},
		"list":                        {"list", `["x"]`, "[\n    1,\n    {\"a\": null}\n  ]", `["x"]`},
		"object":                      {"empty", `{"x": 1}`, "{}", `{"x": 1}`},
		"a name with a dot":           {`a\.b.0`, "one", `"zero"`, `"one"`},
		"a name that is a number":     {`a\.b.:0`, "one", `"zero"`, `"one"`},
		"new member":                  {"new", "1.10", "\"zero\"}\n", "\"zero\"},\n  \"new\": 1.10\n"},
		"new member with a string":    {"new", `"1.10"`, "\"zero\"}\n", "\"zero\"},\n  \"new\": \"1.10\"\n"},
		"new nested member":           {`a\.b.1`, "x", `"zero"}`, `"zero","1": "x"}`},
		"new member of a new object":  {"n.o", "x y", "\"zero\"}\n", "\"zero\"},\n  \"n\": {\n    \"o\": \"x y\"\n  }\n"},
		"a member of an empty object": {"empty.x", "true", "{},", "{\n    \"x\": true\n  },"},
		"an element at the end":       {"list.2", `"x"`, "{\"a\": null}\n", "{\"a\": null},\n    \"x\"\n"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, 1, strings.Count(pretty, c.old))
			want := strings.Replace(pretty, c.old, c.new, 1)
			assert.Equal(t, want, patched(t, pretty, Edit{Path: c.path, Value: c.value}))
			assert.Equal(t, byteOrderMark+want+"\n", patched(t, byteOrderMark+pretty+"\n", Edit{Path: c.path, Value: c.value}))
		})
	}
}

func TestPatchKeepsLayout(t *testing.T) {
	assert.Equal(t, `{"a":1,"b":{"c":"x"}}`, patched(t, `{"a":1}`, Edit{Path: "b.c", Value: "x"}))
	assert.Equal(t, `{"b":2}`, patched(t, `{ }`, Edit{Path: "b", Value: "2"}))
	assert.Equal(t, `{ "a" : 1, "b" : 2 }`, patched(t, `{ "a" : 1 }`, Edit{Path: "b", Value: "2"}))
	assert.Equal(t, `[{"a":[1]}]`, patched(t, `[{"a":[]}]`, Edit{Path: "0.a.0", Value: "1"}))
	assert.Equal(t, "{\n  \"b\": 2\n}\n", patched(t, "{\n}\n", Edit{Path: "b", Value: "2"}))
	assert.Equal(t, `{"a":"1.10"}`, patched(t, `{}`, Edit{Path: "a", Value: "1.10", Text: true}))
	assert.Equal(t, `{"a":"\"7\""}`, patched(t, `{"a":null}`, Edit{Path: "a", Value: `"7"`, Text: true}))
	assert.Equal(t, `{"a":1,"a":3}`, patched(t, `{"a":1,"a":2}`, Edit{Path: "a", Value: "3"}), "the last of two equal names is patched")
	assert.Equal(t, `{"a":{"b":2},"c":"x"}`, patched(t, `{"a":{"b":1}}`, Edit{Path: "a.b", Value: "2"}, Edit{Path: "c", Value: "x"}))
}

func TestInvalidPatch(t *testing.T) {
	for name, c := range map[string]struct{ doc, path, value, says string }{
		"not JSON":              {"{", "a", "1", "not valid JSON"},
		"empty":                 {"", "a", "1", "not valid JSON"},
		"number by text":        {pretty, "port", "x", "a number"},
		"number by boolean":     {pretty, "port", "true", "a number"},
		"boolean by number":     {pretty, "tls", "1", "true or false"},
		"object by list":        {pretty, "empty", "[]", "an object"},
		"list by text":          {pretty, "list", "x", "a list"},
		"through a text":        {pretty, "version.x", "1", `"version" is a text`},
		"a name in a list":      {pretty, "list.x", "1", "is not an index"},
		"beyond the end":        {pretty, "list.3", "1", "beyond its end"},
		"appending":             {pretty, "list.-1", "1", "is not an index"},
		"a new list":            {pretty, "n.0", "1", `no list "n"`},
		"modifier":              {pretty, "list.#", "1", "'#'"},
		"a part without a name": {pretty, "a..b", "1", "without a name"},
		"the file is a text":    {`"x"`, "a", "1", "the file is a text"},
		"too deep":              {pretty, strings.Repeat("a.", 300) + "a", "1", "256"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Patch("config/x.json", []byte(c.doc), []Edit{{Path: c.path, Value: c.value}})
			assert.Equal(t, v1alpha1.ReasonPatchFailed, failure.Reason(err, ""), "%v", err)
			assert.ErrorContains(t, err, "config/x.json")
			assert.ErrorContains(t, err, c.says)
		})
	}
}

// FuzzJSONPatch checks that a successful patch leaves everything outside its path unchanged, and is idempotent.
func FuzzJSONPatch(f *testing.F) {
	for _, c := range [][3]string{
		{pretty, "systemName", "x"}, {pretty, "list.1.a", "null"}, {pretty, "empty.x.y", `"1"`}, {`{}`, "a", "{}"}, {"[]", "0", "-0"},
		{`{"a":1,"a":{"b":[]}}`, "a.b.0", " "}, {"{\"a\\u002eb\":\"\\ud800\"}", `a\.b`, "\xff"}, {"\xef\xbb\xbf{ }\r\n", ":7", "1e400"},
		{"{\n\t\"a\": {\n\t}\n}", "a.b.c", "[1 ]"}, {`[[],{}]`, "1.:1", "true"},
	} {
		f.Add([]byte(c[0]), c[1], c[2])
	}
	f.Fuzz(func(t *testing.T, doc []byte, path, value string) {
		for _, text := range []bool{false, true} {
			edits := []Edit{{Path: path, Value: value, Text: text}}
			out, err := Patch("file", doc, edits)
			if err != nil {
				require.True(t, failure.Is(err, v1alpha1.ReasonPatchFailed))
				continue
			}
			again, err := Patch("file", out, edits)
			require.NoError(t, err)
			require.Equal(t, string(out), string(again))
			segments, err := parsePath(path)
			require.NoError(t, err)
			before, after := decoded(t, doc), decoded(t, out)
			require.Equal(t, without(before, segments), without(after, segments), "%s", out)
		}
	})
}

func decoded(t *testing.T, doc []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(bytes.TrimPrefix(doc, []byte(byteOrderMark))))
	d.UseNumber()
	var v any
	require.NoError(t, d.Decode(&v))
	return v
}

// without removes the value at a path, and containers on that path that become empty.
func without(v any, path []segment) any {
	switch v := v.(type) {
	case map[string]any:
		below, ok := v[path[0].name]
		if !ok {
			break
		}
		delete(v, path[0].name)
		if len(path) > 1 {
			if left := without(below, path[1:]); !hollow(left) {
				v[path[0].name] = left
			}
		}
	case []any:
		i := path[0].index
		if i < 0 || i >= len(v) {
			break
		}
		var left any
		if len(path) > 1 {
			left = without(v[i], path[1:])
		}
		v = append([]any{}, v...)
		if v[i] = left; hollow(left) && i == len(v)-1 {
			v = v[:i]
		}
		return v
	}
	return v
}

func hollow(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return v == nil
}

// A parser that recurses without a bound would exceed the stack, which ends the program.
func TestUnpatchOfNestedJSON(t *testing.T) {
	const edited = `{"a": 1}`
	nested := bytes.Repeat([]byte("["), 10<<20)
	for name, texts := range map[string][2][]byte{"in git": {nested, []byte(edited)}, "on the gateway": {[]byte(edited), nested}} {
		t.Run(name, func(t *testing.T) {
			_, err := Unpatch("x.json", texts[0], texts[1], []Edit{{Path: "a", Value: "2"}})
			assert.ErrorContains(t, err, "it is not JSON")
		})
	}
}

// F11 of docs/internals/threats.md: patching a large file allocates only a few times its size.
func TestPatchMemory(t *testing.T) {
	doc := []byte(`{"tags":[` + strings.Repeat(`{"name":"a tag","value":1},`, 400_000) + `{}],"name":"x"}`)
	edits := []Edit{{Path: "name", Value: "y"}, {Path: "tags.7.value", Value: "2"}, {Path: "new.deep", Value: "true"}}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	out, err := Patch("config/x.json", doc, edits)
	require.NoError(t, err)
	runtime.ReadMemStats(&after)
	assert.InDelta(t, len(doc), len(out), 50)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8*len(doc)), "total allocations")
}
