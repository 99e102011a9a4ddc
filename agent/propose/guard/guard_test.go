package guard

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/propose/guard/guardtest"
)

// P3 of docs/internals/threats.md: Content finds planted secrets, and nothing in ordinary files.
func TestContent(t *testing.T) {
	for name, planted := range guardtest.Secrets() {
		t.Run(name, func(t *testing.T) {
			rule, found := Content(strings.NewReader(planted.Text))
			assert.True(t, found)
			assert.Equal(t, planted.Rule, rule)
		})
	}
	t.Run("a secret deep in a big file", func(t *testing.T) {
		text := strings.Repeat(`{"x":1,"name":"label"}`, 40_000) + guardtest.Secrets()["GitHub token"].Text
		rule, found := Content(strings.NewReader(text))
		assert.True(t, found)
		assert.Equal(t, "GitHub token", rule)
	})
	t.Run("at any offset of a file of several pieces", func(t *testing.T) {
		secret := guardtest.Secrets()["GitHub token"].Text
		for _, at := range []int{0, pieceSize - overlap - 3, pieceSize - overlap, pieceSize - 5, pieceSize, 2*pieceSize - overlap - 3, 3 * pieceSize} {
			t.Run(fmt.Sprint(at), func(t *testing.T) {
				text := strings.Repeat(" ", at) + secret + strings.Repeat(" ", 3*pieceSize-at+9)
				_, found := Content(strings.NewReader(text))
				assert.True(t, found)
			})
		}
		_, found := Content(strings.NewReader(`{"ciphertext":"a"` + strings.Repeat(" ", 3*pieceSize) + `,"encrypted_key":"b"}`))
		assert.True(t, found, "an embedded secret across several pieces")
	})
	token := guardtest.Secrets()["GitHub token"].Text
	embedded := `{"ciphertext":"AAAA","encrypted_key":"BBBB"}`
	quoted := func(s string) string {
		b, err := json.Marshal(map[string]string{"value": s})
		require.NoError(t, err)
		return strings.ReplaceAll(string(b), "=", `\u003d`) // as Ignition writes it
	}
	packed := func(s string) string {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, err := w.Write([]byte(s))
		require.NoError(t, err)
		require.NoError(t, w.Close())
		return b.String()
	}
	script := "db = connect()\npassword = " + `"T7u9-Kq2z.Wm4x"`
	for name, content := range map[string]string{
		"a script":                              script,
		"a script in a view":                    quoted(script),
		"a script in JSON in a view":            quoted(quoted(script)),
		"an embedded secret in a text":          quoted(embedded),
		"an embedded secret with escaped names": strings.ReplaceAll(embedded, "_", `\u005f`),
		"a JDBC address in a view":              quoted("jdbc:mysql://db/x?user=a&password=Rt5-kLw9"),
		"a token in a compressed file":          packed(token),
		"a script in a compressed view":         packed(quoted(script)),
		"a damaged compressed file":             packed(token)[:20],
	} {
		t.Run("found in "+name, func(t *testing.T) {
			_, found := Content(strings.NewReader(content))
			assert.True(t, found)
		})
	}
	t.Run("found in a compressed file that is too large", func(t *testing.T) {
		_, found := Content(strings.NewReader(packed(strings.Repeat(" ", maxInside+1))))
		assert.True(t, found)
	})
	for name, text := range map[string]string{
		"a compressed file":      packed("harmless"),
		"a large compressed one": packed(strings.Repeat(" ", 3*pieceSize)),
		"a view":                 `{"custom":{},"params":{"password":""},"props":{"type":"password-field","placeholder":"Password"},"root":{"type":"ia.container.flex"}}`,
		"a binding":              `{"password":"{[.]Parameters/password}","token":"{this.custom.token}"}`,
		"a script":               "def login(user, password):\n\treturn system.security.validateUser(user, password)\n",
		"a signature":            `{"attributes":{"lastModificationSignature":"` + strings.Repeat("0a1b2c3d4e5f6978", 4) + `","lastModification":{"actor":"admin"}}}`,
		"an empty file":          "",
		"a reference":            `{"type":"Referenced","data":{"providerName":"vault","secretName":"db-password"}}`,
		"a URL without password": "https://user@example.com/x and https://example.com:8443/x@y",
		"a placeholder":          `password = "changeme-changeme"`,
		"a picture":              "\x89PNG\r\n\x1a\n" + strings.Repeat("\x00\xff", 5000),
		"a UUID":                 `{"uuid":"01234567-89ab-cdef-0123-456789abcdef"}`,
	} {
		t.Run(name, func(t *testing.T) {
			rule, found := Content(strings.NewReader(text))
			assert.False(t, found, rule)
		})
	}
}

func TestPath(t *testing.T) {
	for _, source := range guardtest.Paths {
		t.Run(strings.ToValidUTF8(source, "?"), func(t *testing.T) {
			_, denied := Path("projects/x/file", source)
			assert.True(t, denied)
		})
	}
	t.Run("the path on the gateway", func(t *testing.T) {
		for _, dest := range []string{"config/local/x", "config/resources/core/ignition/api-token/x/config.json", "projects/x/server.pem"} {
			t.Run(dest, func(t *testing.T) {
				_, denied := Path(dest, "site/harmless")
				assert.True(t, denied)
			})
		}
	})
	for _, source := range []string{
		"site/projects/line/project.json", "site/projects/line/com.inductiveautomation.perspective/views/Main/view.json", "site/projects/line/ignition/script-python/keys/code.py",
		"config/resources/core/ignition/tag-definition/default/tags.json", "a/Makefile", "site/projects/x/ignition/named-query/users/query.sql",
	} {
		t.Run(source, func(t *testing.T) {
			rule, denied := Path(strings.TrimPrefix(source, "site/"), source)
			assert.False(t, denied, rule)
		})
	}
}

// TestRealTrees scans real repositories, if STOKER_TREES names a folder of them. Content must find nothing, or a change of an ordinary resource
// would be refused. The test leaves out resources that hold credentials.
func TestRealTrees(t *testing.T) {
	root := os.Getenv("STOKER_TREES")
	if root == "" {
		t.Skip("STOKER_TREES is not set: it names a folder with checked-out Ignition repositories")
	}
	holds := []string{"/database-connection/", "/opc-connection/", "/secret-provider/", "/system-properties/"}
	require.NoError(t, filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || slices.ContainsFunc(holds, func(h string) bool { return strings.Contains(p, h) }) {
			return err
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		if rule, found := Content(bytes.NewReader(b)); found {
			t.Errorf("%s: %s", strings.TrimPrefix(p, root), rule)
		}
		return nil
	}))
}

func FuzzContent(f *testing.F) {
	f.Add([]byte(`{"password":"x"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		rule, _ := Content(bytes.NewReader(b))
		assert.LessOrEqual(t, len(rule), 40, "the name of a rule, and no text of the file")
	})
}
