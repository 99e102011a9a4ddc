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
