package resource

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/trees"
)

const viewPath = "projects/p/com.inductiveautomation.perspective/views/v/"

func TestValidFiles(t *testing.T) {
	for name, c := range map[string]struct{ path, content string }{
		"view":                               {viewPath + "view.json", `{"custom": {}, "root": {"x": [1, -2.5e+3, true, null, "\u003d"]}}`},
		"resource":                           {viewPath + "resource.json", `{"scope":"G","files":["view.json"],"attributes":{}}`},
		"resource without files":             {viewPath + "resource.json", `{"attributes":{"lastModification":{}}}`},
		"tags of a folder":                   {"config/resources/core/ignition/tag-definition/p/unary-resource.json", `{"files":["tags.json"]}`},
		"a foreign resource.json":            {"data/x/resource.json", `{"name":"not Ignition's"}`},
		"byte order mark":                    {viewPath + "view.json", "\xef\xbb\xbf{}"},
		"byte order mark in resource":        {viewPath + "resource.json", "\xef\xbb\xbf{\"attributes\":{}}"},
		"a value that is not an object":      {"projects/p/x.json", " 7 \n"},
		"binary":                             {viewPath + "thumbnail.png", "\x89PNG\x00"},
		"empty script":                       {viewPath + "code.py", ""},
		"broken JSON with another extension": {viewPath + "notes.txt", `{"a":`},
		"LFS header without an object":       {"projects/p/a.txt", "version https://git-lfs.github.com/spec/v1\nsize 1\n"},
		"LFS header without a size":          {"projects/p/a.txt", "version https://git-lfs.github.com/spec/v1\noid sha256:ab\n"},
		"text about LFS":                     {"projects/p/notes.md", "see version https://git-lfs.github.com/spec/v1"},
		"a long file with an LFS header":     {"projects/p/a.bin", lfsHeader + strings.Repeat("x", 2000)},
	} {
		t.Run(name, func(t *testing.T) {
			assert.NoError(t, check(c.path, strings.NewReader(c.content)))
			assert.NoError(t, check(c.path, iotest.OneByteReader(strings.NewReader(c.content))), "byte by byte")
		})
	}
}

func TestInvalidFiles(t *testing.T) {
	const view, meta = viewPath + "view.json", viewPath + "resource.json"
	for name, c := range map[string]struct {
		path, content string
		reason        v1alpha1.Reason
		text          string
	}{
		"truncated":              {view, "{\n  \"a\": [1,\n", v1alpha1.ReasonConfigSyntaxError, "view.json:3:1: the file ends in the middle"},
		"trailing comma":         {view, "{\n  \"a\": 1,\n}\n", v1alpha1.ReasonConfigSyntaxError, "view.json:3:1: unexpected '}'; want a key"},
		"conflict marker":        {view, "{\n<<<<<<< HEAD\n", v1alpha1.ReasonConfigSyntaxError, "view.json:2:1: unexpected '<'"},
		"two values":             {view, "{} {}", v1alpha1.ReasonConfigSyntaxError, ":1:4: unexpected '{' after the end"},
		"control character":      {view, "\"a\tb\"", v1alpha1.ReasonConfigSyntaxError, ":1:3: unexpected byte 0x09 in a string"},
		"single quotes":          {view, "{'a':1}", v1alpha1.ReasonConfigSyntaxError, ":1:2:"},
		"NaN":                    {view, "[NaN]", v1alpha1.ReasonConfigSyntaxError, ":1:2:"},
		"empty":                  {view, "", v1alpha1.ReasonConfigSyntaxError, ":1:1: the file is empty"},
		"blank":                  {view, " \n\n", v1alpha1.ReasonConfigSyntaxError, ":3:1: the file is empty"},
		"half a byte order mark": {view, "\xef\xbb{}", v1alpha1.ReasonConfigSyntaxError, ":1:3:"},
		"two byte order marks":   {view, "\xef\xbb\xbf\xef\xbb\xbf{}", v1alpha1.ReasonConfigSyntaxError, ":1:4:"},
		"UTF-16":                 {view, "\xff\xfe{\x00}\x00", v1alpha1.ReasonConfigSyntaxError, ":1:1: unexpected byte 0xff"},
		"extension in capitals":  {viewPath + "VIEW.JSON", "{", v1alpha1.ReasonConfigSyntaxError, "VIEW.JSON:1:2"},
		"too deep":               {view, strings.Repeat("[", 10001), v1alpha1.ReasonConfigSyntaxError, "nested deeper than 10000"},
		"LFS pointer": {
			viewPath + "thumbnail.png", "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 1\n", v1alpha1.ReasonLFSPointer, "thumbnail.png is a Git LFS pointer",
		},
		"LFS pointer before LFS 1.0": {
			"a.bin", "version https://hawser.github.com/spec/v1\noid sha256:ab\nsize 1\n", v1alpha1.ReasonLFSPointer, "a.bin is a Git LFS pointer",
		},
		"first LFS pointer": {
			"a.bin", "version http://git-media.io/v/2\noid sha256:ab\nsize 1\n", v1alpha1.ReasonLFSPointer, "a.bin is a Git LFS pointer",
		},
		"LFS pointer for JSON":            {view, "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 1\n", v1alpha1.ReasonLFSPointer, "LFS"},
		"no attributes":                   {meta, `{"scope":"G","files":[]}`, v1alpha1.ReasonConfigSyntaxError, `"attributes" is missing`},
		"no attributes in config":         {"config/resources/core/ignition/x/resource.json", `{}`, v1alpha1.ReasonConfigSyntaxError, `"attributes" is missing`},
		"attributes null":                 {meta, `{"attributes":null}`, v1alpha1.ReasonConfigSyntaxError, `"attributes" must be an object`},
		"attributes a list":               {meta, `{"attributes":[]}`, v1alpha1.ReasonConfigSyntaxError, `"attributes" must be an object`},
		"a list":                          {meta, `[]`, v1alpha1.ReasonConfigSyntaxError, "must be a JSON object"},
		"null":                            {meta, `null`, v1alpha1.ReasonConfigSyntaxError, "must be a JSON object"},
		"files a string":                  {meta, `{"attributes":{},"files":"view.json"}`, v1alpha1.ReasonConfigSyntaxError, `"files" must be a list`},
		"files null":                      {meta, `{"attributes":{},"files":null}`, v1alpha1.ReasonConfigSyntaxError, `"files" must be a list`},
		"files of numbers":                {meta, `{"attributes":{},"files":[1]}`, v1alpha1.ReasonConfigSyntaxError, `"files" must be a list`},
		"files in a parent directory":     {meta, `{"attributes":{},"files":["../x"]}`, v1alpha1.ReasonConfigSyntaxError, `names "../x"`},
		"files in folders":                {meta, `{"attributes":{},"files":["a/b"]}`, v1alpha1.ReasonConfigSyntaxError, `names "a/b"`},
		"files with a duplicate":          {meta, `{"attributes":{},"files":["b","a","b"]}`, v1alpha1.ReasonConfigSyntaxError, `names "b" twice`},
		"files without a name":            {meta, `{"attributes":{},"files":[""]}`, v1alpha1.ReasonConfigSyntaxError, `names ""`},
		"unary-resource.json of a number": {viewPath + "unary-resource.json", `3`, v1alpha1.ReasonConfigSyntaxError, "must be a JSON object"},
		"a resource.json of 5 MiB":        {meta, `{"attributes":{"a":"` + strings.Repeat("a", 5<<20) + `"}}`, v1alpha1.ReasonLimitExceeded, "resource.json"},
	} {
		t.Run(name, func(t *testing.T) {
			for split, r := range map[string]io.Reader{"whole": strings.NewReader(c.content), "byte by byte": iotest.OneByteReader(strings.NewReader(c.content))} {
				t.Run(split, func(t *testing.T) {
					err := check(c.path, r)
					require.Error(t, err)
					assert.Equal(t, c.reason, failure.Reason(err, ""), "%v", err)
					assert.ErrorContains(t, err, c.text)
					assert.ErrorContains(t, err, c.path)
				})
			}
		})
	}
}

// F11 of docs/internals/threats.md: the memory for a check does not depend on the size of the file.
func TestHugeFileMemory(t *testing.T) {
	chunk := []byte(strings.Repeat("a", 1<<20))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c := NewChecker("projects/p/huge.json")
	_, err := io.WriteString(c, `["`)
	require.NoError(t, err)
	for range 64 {
		_, err := c.Write(chunk)
		require.NoError(t, err)
	}
	_, err = io.WriteString(c, `"]`)
	require.NoError(t, err)
	assert.NoError(t, c.Close())
	runtime.ReadMemStats(&after)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}

// A check that refuses a file that the gateway accepts would block a plant. Every file of real repositories must pass.
func TestRealTrees(t *testing.T) {
	files, resources := 0, 0
	for at, text := range trees.Files(t, trees.Root(t)) {
		content, name := []byte(text), path.Base(at)
		assert.NoError(t, check("projects/p/"+name, bytes.NewReader(content)), at)
		if files++; name == File {
			resources++
			same, err := SameButModification(content, resign(t, content))
			assert.NoError(t, err)
			assert.True(t, same, at)
		}
	}
	require.NotZero(t, resources)
	t.Logf("%d files, %d of them resource.json", files, resources)
}

// resign changes the modification of a resource.json, as the gateway does, and its formatting.
func resign(t testing.TB, content []byte) []byte {
	t.Helper()
	var v map[string]any
	d := json.NewDecoder(bytes.NewReader(content))
	d.UseNumber()
	require.NoError(t, d.Decode(&v))
	attributes, ok := v["attributes"].(map[string]any)
	require.True(t, ok)
	attributes["lastModification"] = map[string]any{"actor": "external"}
	attributes["lastModificationSignature"] = "00"
	out, err := json.Marshal(v)
	require.NoError(t, err)
	return out
}

// FuzzCheck compares the streaming parser with encoding/json: both must accept the same texts, however they are split.
func FuzzCheck(f *testing.F) {
	for _, s := range []string{
		``, `{}`, `{"files":["view.json"],"attributes":{"lastModification":{"actor":"a"}}}`, `[1,-0.5e-7,"\u00e9\n"]`, `-`, `01`,
		`1.`, `1e`, `"\x"`, `tru`, `nulll`, `[1,]`, `{"a"}`, "\xef\xbb\xbf1", `{"a":1}}`, `"\ud800"`, "\"\x7f\"", `[[[]]]`, `1 2`, `{,}`,
	} {
		f.Add([]byte(s), 1)
	}
	f.Fuzz(func(t *testing.T, content []byte, cut int) {
		if bytes.HasPrefix(content, []byte(lfsHeader)) {
			return
		}
		c := NewChecker("projects/p/x.json")
		cut = min(max(cut, 0), len(content))
		_, _ = c.Write(content[:cut])
		_, _ = c.Write(content[cut:])
		err := c.Close()
		if valid := json.Valid(withoutMark(content)); valid != (err == nil) {
			t.Fatalf("encoding/json says %t, the checker says %v", valid, err)
		}
		if err != nil && !failure.Is(err, v1alpha1.ReasonConfigSyntaxError) {
			t.Fatalf("an error without its reason: %v", err)
		}
		if err := check(viewPath+File, bytes.NewReader(content)); err == nil {
			var shape struct {
				Attributes map[string]any `json:"attributes"`
			}
			if json.Unmarshal(withoutMark(content), &shape) != nil {
				t.Fatalf("%q passed as a resource.json", content)
			}
		}
	})
}

// check reads a file to its end and reports whether the gateway can use it at path; see Checker.
func check(path string, r io.Reader) error {
	c := NewChecker(path)
	if _, err := io.Copy(c, r); err != nil {
		return err
	}
	return c.Close()
}

func TestNeverTouch(t *testing.T) {
	for _, path := range []string{
		"projects/.resources", "projects/.resources/0a1b", "projects/p/.resources/x", ".resources/x",
		"config/local", "config/local/ignition/x.pfx", "config/resources/local/ignition/tag-provider/p/config.json",
		"config/ignition/keys/root.json", "config/ignition/tags/valueStore.idb", "config/ignition/tags/valueStore.idb-wal",
		"config/ignition/tags/valueStore.idb-shm", "db/config.idb", "metricsdb/x", "var/ignition/modl/m.modl",
		"autobackup/x.gwbk", "jar-cache/x", "logs/wrapper.log", "wrapper.log", "config/x/y.log",
		"config/com.inductiveautomation.opcua/certificates/x.der", "config/ignition/keystore/x", "keystore",
		".container-init.conf", ".ignition-seed-complete", "commissioning.json", "modules.json", "redundancy.xml",
		"gateway.xml", "gateway.xml_clean", "gateway.xml.bak", "ignition.conf", "logback.xml", "conversion-report.txt",
		"migration-log-2026.md", "config/resources/core/x.digest.json", "config/.digest.json", ".alarms_1", "var/.alarms_x",
		".git", ".git/config", "projects/p/.git/HEAD", "projects/p/.GIT", "projects/p/git~1/x", "projects/p/.git./x",
		".stoker", ".stoker/manifest", "projects/.stoker/staging/1",
		"VAR/x", "Config/Local/x", "projects/p/.Resources/x", "REDUNDANCY.XML", "projects/.sto\u212aer/x",
	} {
		t.Run(path, func(t *testing.T) {
			assert.True(t, NeverTouch(path), path)
		})
	}
}

func TestNeverTouchLeavesGitFiles(t *testing.T) {
	for _, path := range []string{
		"projects", "projects/p/project.json", "projects/p/com.inductiveautomation.perspective/views/v/view.json",
		"projects/p/views/certificates/view.json", "projects/p/views/keystore/resource.json", "projects/p/x.log",
		"projects/db/project.json", "projects/var/project.json", "projects/logs/project.json", "projects/p/modules.json",
		"config", "config/resources", "config/resources/core/config-mode.json", "config/resources/locale/x",
		"config/resources/core/ignition/tag-provider/local/config.json", "config/localization/x",
		"config/ignition/keys-of-mine/x", "config/resources/external/redundancy.xml", "dbx/y", "variable", "gateway.json",
		".gitignore", ".gitkeep", "projects/p/.github/x", "projects/p/digest.json", "config/valueStore/x",
	} {
		t.Run(path, func(t *testing.T) {
			assert.False(t, NeverTouch(path), path)
		})
	}
}

func FuzzNeverTouch(f *testing.F) {
	f.Add("config/local", "x")
	f.Add("projects/p", "a/.GIT/b")
	f.Fuzz(func(t *testing.T, dir, below string) {
		if strings.HasSuffix(dir, "/") || dir == "" || below == "" {
			return
		}
		if NeverTouch(dir) && strings.Contains(dir, "/") && !NeverTouch(dir+"/"+below) {
			t.Fatalf("%q is never touched, but %q is", dir, dir+"/"+below)
		}
		if NeverTouch(dir) != NeverTouch(strings.ToUpper(dir)) && isASCII(dir) {
			t.Fatalf("the case of %q matters", dir)
		}
	})
}

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r >= 0x80 })
}

// The page states for each rule in which directories it holds.
func TestNeverTouchDocumentation(t *testing.T) {
	page, err := os.ReadFile("../../../docs/reference/files.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(page), "## Never touched\n")
	section, _, _ = strings.Cut(section, "\n## ")
	places := []string{"", "config/", "modules/a/", "projects/line/"}
	holds := map[string][]bool{ // for each of places
		"directly in the data directory": {true, false, false, false},
		"directly in `config/`":          {false, true, false, false},
		"anywhere outside `projects/`":   {true, true, true, false},
		"anywhere":                       {true, true, true, true},
	}
	for _, row := range regexp.MustCompile(`(?m)^\| (.+) \| (`+"`"+`.+) \|$`).FindAllStringSubmatch(section, -1) {
		for _, name := range strings.Split(row[2], ", ") {
			name = strings.ReplaceAll(strings.Trim(name, "`"), "*", "x")
			for i, place := range places {
				t.Run(place, func(t *testing.T) {
					assert.Equal(t, holds[row[1]][i], NeverTouch(place+name), place+name)
					assert.Equal(t, holds[row[1]][i], NeverTouch(place+strings.ToUpper(name)), place+name)
				})
			}
		}
		delete(holds, row[1])
	}
	assert.Empty(t, holds, "rows missing from the page")
}

const embedded = `{"password": {"type": "Embedded", "data": {"encrypted_key": "x", "iv": "y", "ciphertext": "z"}}}`

func TestEmbeddedSecrets(t *testing.T) {
	// check writes content in chunks of n bytes.
	check := func(e *EmbeddedSecrets, path, content string, n int) error {
		c := NewChecker(path)
		for len(content) > 0 {
			k := min(n, len(content))
			_, err := c.Write([]byte(content[:k]))
			require.NoError(t, err)
			content = content[k:]
		}
		return e.Check(c)
	}
	for name, tt := range map[string]struct {
		path, content string
		found         bool
	}{
		"a secret":                {"config/resources/core/ignition/database-connection/db/config.json", embedded, true},
		"far apart":               {"a.json", strings.Replace(embedded, `"y"`, `"`+strings.Repeat("y", 100_000)+`"`, 1), true},
		"a reference":             {"a.json", `{"type": "Referenced", "data": {"providerName": "files", "secretName": "db"}}`, false},
		"one of the two keys":     {"a.json", `{"ciphertext": "z"}`, false},
		"the keys in a string":    {"a.json", `{"text": "ciphertext and encrypted_key"}`, false},
		"a file that is not JSON": {"code.py", embedded, false},
		"extension in other case": {"a.JSON", embedded, true},
		"an empty object":         {"a.json", `{}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, n := range []int{1, 7, 14, 64, 1 << 20} {
				e := &EmbeddedSecrets{}
				require.NoError(t, check(e, tt.path, tt.content, n))
				assert.Equal(t, tt.found, e.Warning() != "", "in chunks of %d bytes", n)
			}
			err := check(&EmbeddedSecrets{Refuse: true}, tt.path, tt.content, 64)
			assert.Equal(t, tt.found, failure.Is(err, v1alpha1.ReasonEmbeddedSecret), "%v", err)
		})
	}
	t.Run("a broken file", func(t *testing.T) {
		err := check(&EmbeddedSecrets{Refuse: true}, "a.json", embedded[:len(embedded)-1], 64)
		assert.True(t, failure.Is(err, v1alpha1.ReasonConfigSyntaxError), "%v", err)
	})
	t.Run("the warning names three files and no secret", func(t *testing.T) {
		e := &EmbeddedSecrets{}
		for _, p := range []string{"a.json", "b.json", "c\x1b.json", "d.json", "e.json"} {
			require.NoError(t, check(e, p, embedded, 64))
		}
		assert.Contains(t, e.Warning(), `"a.json", "b.json", "c\x1b.json" and 2 more: `)
		assert.NotContains(t, e.Warning(), "Embedded")
	})
}
