package resource

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

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
