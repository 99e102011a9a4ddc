package resource

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/trees"
)

// beside returns a function that reads the files next to a resource.json.
func beside(dir string) func(io.Writer, string) error {
	return func(w io.Writer, name string) error {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			_, err = w.Write(b)
		}
		return err
	}
}

// The signatures in real repositories must match the ones that we compute, except for one known difference.
func TestSignaturesOfRealTrees(t *testing.T) {
	for version, want := range map[string]struct {
		tree            func(testing.TB) string
		form            Form
		signed, matched int
		misses          []string
	}{
		"8.3": {trees.Repository83, Form83, 419, 418, []string{"internal-secret-provider"}},
		"8.1": {trees.Project81, Form81, 295, 295, nil},
	} {
		t.Run(version, func(t *testing.T) {
			signed, matched := 0, 0
			var misses []string
			err := filepath.WalkDir(want.tree(t), func(path string, e fs.DirEntry, err error) error {
				if err != nil || e.Name() != File {
					return err
				}
				raw, err := os.ReadFile(path)
				require.NoError(t, err)
				s, err := ParseSigned(raw)
				require.NoError(t, err, path)
				if s.Stored() == "" {
					return nil
				}
				signed++
				got, err := s.Signature(want.form, beside(filepath.Dir(path)))
				require.NoError(t, err, path)
				if got != s.Stored() {
					misses = append(misses, filepath.Base(filepath.Dir(path)))
					return nil
				}
				matched++
				assert.Equal(t, string(raw), string(s.WithSignature(got)), path)
				other, err := s.Signature(1-want.form, beside(filepath.Dir(path)))
				require.NoError(t, err)
				assert.True(t, other != got || len(s.Files()) == 0, "%s: the forms differ", path)
				return nil
			})
			require.NoError(t, err)
			assert.Equal(t, want.signed, signed)
			assert.Equal(t, want.matched, matched)
			assert.Equal(t, want.misses, misses)
		})
	}
}

const signedJSON = "{\n  \"scope\": \"DG\",\n  \"description\": \"a <b>\",\n  \"version\": 1,\n  \"restricted\": false,\n  \"overridable\": true,\n" +
	"  \"files\": [\n    \"view.json\"\n  ],\n  \"attributes\": {\n    \"lastModification\": {\n      \"actor\": \"o\\u0027hara\",\n" +
	"      \"timestamp\": \"2026-01-02T03:04:05Z\"\n    },\n    \"lastModificationSignature\": \"00ff\",\n    \"hint\": [1.0, null]\n  }\n}"

func content(text string) func(io.Writer, string) error {
	return func(w io.Writer, _ string) error {
		_, err := io.WriteString(w, text)
		return err
	}
}

func signature(t testing.TB, raw string, form Form, file string) string {
	t.Helper()
	s, err := ParseSigned([]byte(raw))
	require.NoError(t, err)
	sum, err := s.Signature(form, content(file))
	require.NoError(t, err)
	return sum
}

func TestSignatureCoverage(t *testing.T) {
	want := signature(t, signedJSON, Form83, "{}")
	assert.Equal(t, want, signature(t, "\xef\xbb\xbf"+string(bytes.ReplaceAll([]byte(signedJSON), []byte("00ff"), []byte("aa"))), Form83, "{}"))
	var loose bytes.Buffer
	require.NoError(t, json.Compact(&loose, []byte(signedJSON)))
	assert.Equal(t, want, signature(t, loose.String(), Form83, "{}"), "the layout does not matter")
	assert.NotEqual(t, want, signature(t, signedJSON, Form81, "{}"))
	assert.NotEqual(t, want, signature(t, signedJSON, Form83, "{ }"), "a changed file")
	for _, change := range [][2]string{
		{"DG", "G"}, {"a <b>", "a"}, {"\"version\": 1", "\"version\": 2"}, {"false", "true"}, {"true", "false"},
		{"view.json", "code.py"}, {"hara", "hare"}, {"05Z", "06Z"}, {"1.0", "1"}, {"\"hint\"", "\"hunt\""},
	} {
		t.Run(fmt.Sprintf("%s to %s", change[0], change[1]), func(t *testing.T) {
			changed := string(bytes.ReplaceAll([]byte(signedJSON), []byte(change[0]), []byte(change[1])))
			assert.NotEqual(t, want, signature(t, changed, Form83, "{}"))
		})
	}
}

func TestWithSignature(t *testing.T) {
	for _, mark := range []string{"", "\xef\xbb\xbf"} {
		s, err := ParseSigned([]byte(mark + signedJSON))
		require.NoError(t, err)
		want := mark + string(bytes.ReplaceAll([]byte(signedJSON), []byte("00ff"), []byte("cafe")))
		assert.Equal(t, want, string(s.WithSignature("cafe")))
	}
	const unsigned = `{"attributes":{}}`
	s, err := ParseSigned([]byte(unsigned))
	require.NoError(t, err)
	assert.Empty(t, s.Stored())
	assert.Equal(t, unsigned, string(s.WithSignature("cafe")), "no signature is added")
}

func TestSignatureErrors(t *testing.T) {
	for _, raw := range []string{
		``, `[]`, `{"scope":1}`, `{"scope":"X"}`, `{"version":"1"}`, `{"version":1.5}`, `{"version":3000000000}`, `{"files":{}}`,
		`{"files":[1]}`, `{"files":["a","b","a"]}`, `{"attributes":[]}`, `{"attributes":{}`,
	} {
		t.Run(raw, func(t *testing.T) {
			_, err := ParseSigned([]byte(raw))
			assert.Error(t, err, raw)
		})
	}
	s, err := ParseSigned([]byte(signedJSON))
	require.NoError(t, err)
	for _, form := range []Form{Form81, Form83} {
		_, err = s.Signature(form, func(io.Writer, string) error { return io.ErrUnexpectedEOF })
		assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
	}
}

func TestFormOfVersion(t *testing.T) {
	for version, want := range map[[2]int]Form{
		{0, 0}: Form83, {7, 9}: Form81, {8, 0}: Form81, {8, 1}: Form81, {8, 3}: Form83, {8, 4}: Form83, {9, 0}: Form83,
	} {
		t.Run(fmt.Sprintf("%d.%d", version[0], version[1]), func(t *testing.T) {
			assert.Equal(t, want, FormOf(version[0], version[1]))
		})
	}
}

func TestStringsLikeGateway(t *testing.T) {
	assert.Equal(t, `"\u003ca href\u003d\u0027x\u0027\u003e \u0026 \"\\/\n\t\u0001\u2028é😀`+"\ufffd\"",
		string(AppendString(nil, "<a href='x'> & \"\\/\n\t\x01\u2028é😀\xff")))
}

// FuzzSignature checks that a new signature changes only itself and is not part of the signed data.
func FuzzSignature(f *testing.F) {
	f.Add([]byte(signedJSON), "{}", "cafe")
	f.Add([]byte("\xef\xbb\xbf"+`{"attributes":{"lastModificationSignature":"a","lastModificationSignature":"b"}}`), "", `"`)
	f.Add([]byte(`{"files":["b","a"],"scope":"A","attributes":{"x":{"y":[{},"\ud800",-0.0e+1]}}}`), "x", "")
	f.Fuzz(func(t *testing.T, raw []byte, file, other string) {
		s, err := ParseSigned(raw)
		if err != nil {
			return
		}
		was := signature(t, string(raw), Form83, file)
		changed := s.WithSignature(other)
		if s.stored.Raw == "" {
			require.Equal(t, raw, changed)
			return
		}
		again, err := ParseSigned(changed)
		require.NoError(t, err, "%q", changed)
		assert.Equal(t, was, signature(t, string(changed), Form83, file))
		at := len(changed) - len(withoutMark(changed)) + again.stored.Index
		back := string(changed[:at]) + s.stored.Raw + string(changed[at+len(again.stored.Raw):])
		assert.Equal(t, string(raw), back)
		same, err := SameButModification(raw, changed)
		if isUnicode(raw) {
			require.NoError(t, err)
			assert.True(t, same)
		}
	})
}

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
