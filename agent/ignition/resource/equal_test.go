package resource

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSameJSON(t *testing.T) {
	for _, pair := range [][2]string{
		{`{"a":1,"b":[true,null]}`, "{\n  \"b\": [ true, null ],\n  \"a\": 1\n}\n"},
		{`{"a":"\u003d\u0026"}`, `{"a":"=&"}`},
		{"\xef\xbb\xbf{}", "{}"},
		{`{"a": "\ufffd\ud83d\ude00\\ud800"}`, "{\"a\":\"\ufffd😀\\\\ud800\"}"},
		{`{"a":1,"a":2}`, `{"a":2}`},
		{`12345678901234567890`, ` 12345678901234567890`},
		{`torn`, `torn`}, // equal bytes are not parsed
	} {
		t.Run(fmt.Sprintf("%.20q and %.20q", pair[0], pair[1]), func(t *testing.T) {
			same, err := SameJSON([]byte(pair[0]), []byte(pair[1]))
			require.NoError(t, err)
			assert.True(t, same)
		})
	}
}

func TestDifferentJSON(t *testing.T) {
	for _, pair := range [][2]string{
		{`1`, `1.0`}, {`1`, `1e0`}, {`12345678901234567890`, `12345678901234567891`}, {`[1,2]`, `[2,1]`}, {`[1]`, `[1,1]`},
		{`{"a":1}`, `{"a":1,"b":2}`}, {`{"a":null}`, `{}`}, {`{"a":null}`, `{"b":null}`}, {`"1"`, `1`}, {`null`, `false`},
		{`{}`, `[]`}, {`[]`, `{}`}, {`"a"`, `"A"`},
	} {
		t.Run(fmt.Sprintf("%.20q and %.20q", pair[0], pair[1]), func(t *testing.T) {
			same, err := SameJSON([]byte(pair[0]), []byte(pair[1]))
			require.NoError(t, err)
			assert.False(t, same)
		})
	}
}

// The decoder replaces what is not Unicode, so different texts would seem equal.
func TestInvalidUnicode(t *testing.T) {
	for _, pair := range [][2]string{
		{"{\"a\":\"\xe4\"}", "{\"a\":\"\xfc\"}"}, {`["\ud800"]`, `["\ud801"]`}, {`{"\udc00":1}`, `{"\udc01":1}`}, {`"\ufffd"`, "\"\xff\""}, {`"\ud83dx\ude00"`, `"\ud83dy\ude00"`},
	} {
		t.Run(fmt.Sprintf("%q and %q", pair[0], pair[1]), func(t *testing.T) {
			_, err := SameJSON([]byte(pair[0]), []byte(pair[1]))
			assert.Error(t, err)
			same, err := SameJSON([]byte(pair[0]), []byte(pair[0]))
			require.NoError(t, err)
			assert.True(t, same, "equal bytes are not parsed")
		})
	}
}

func TestSameButModification(t *testing.T) {
	const a = `{"scope":"G","attributes":{"enabled":true,"lastModification":{"actor":"x"},"lastModificationSignature":"aa"}}`
	for other, want := range map[string]bool{
		`{"scope":"G","attributes":{"enabled":true}}`:                                 true,
		`{"attributes":{"lastModificationSignature":"b","enabled":true},"scope":"G"}`: true,
		`{"scope":"G","attributes":{"enabled":false}}`:                                false,
		`{"scope":"A","attributes":{"enabled":true}}`:                                 false,
		`{"scope":"G"}`:                 false,
		`{"scope":"G","attributes":[]}`: false,
		`{"scope":"G","attributes":{"enabled":true},"lastModification":{"actor":"x"}}`:                       false,
		`{"scope":"G","attributes":{"enabled":true,"hint":{"lastModification":1}}}`:                          false,
		`[{"scope":"G","attributes":{"enabled":true}}]`:                                                      false,
		`{"scope":"G","attributes":{"enabled":true,"lastModification":null,"lastModificationSignature":[]}}`: true,
	} {
		t.Run(other, func(t *testing.T) {
			same, err := SameButModification([]byte(a), []byte(other))
			require.NoError(t, err)
			assert.Equal(t, want, same, other)
		})
	}
}

func TestBrokenJSON(t *testing.T) {
	for _, broken := range []string{``, `{`, `{} {}`, `{"a":}`, `nul`} {
		t.Run(broken, func(t *testing.T) {
			for _, same := range []func(a, b []byte) (bool, error){SameJSON, SameButModification} {
				_, err := same([]byte(broken), []byte(`{"attributes":{}}`))
				assert.Error(t, err, broken)
				_, err = same([]byte(`{"attributes":{}}`), []byte(broken))
				assert.Error(t, err, broken)
			}
		})
	}
}

// FuzzSameButModification checks that the comparison is symmetric, ignores leading white space, and accepts whatever SameJSON accepts.
func FuzzSameButModification(f *testing.F) {
	f.Add([]byte(`{"attributes":{}}`), []byte(`{"attributes":{"lastModification":1}}`))
	f.Add([]byte(`{"attributes":1}`), []byte(`{}`))
	f.Add([]byte("\xef\xbb\xbf[]"), []byte(`[]`))
	f.Add([]byte(`{"a":1,"a":2}`), []byte(`{"a":"\ud800"}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		same, err := SameButModification(a, b)
		back, backErr := SameButModification(b, a)
		if same != back || (err == nil) != (backErr == nil) {
			t.Fatalf("%t, %v one way and %t, %v the other", same, err, back, backErr)
		}
		if err != nil {
			return
		}
		strict, err := SameJSON(a, b)
		if err != nil || strict && !same {
			t.Fatalf("the same JSON (%v), but not the same resource", err)
		}
		if itself, err := SameButModification(a, append([]byte(" "), a...)); err == nil && !itself {
			t.Fatalf("%q is not the same as itself", a)
		}
	})
}
