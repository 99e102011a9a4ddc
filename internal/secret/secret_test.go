package secret_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/internal/secret"
)

// C7: the type redacts a secret in every way of printing.
func FuzzSecretString(f *testing.F) {
	f.Add("S3CR3T-1")
	f.Add("%s %v \x00")
	f.Fuzz(func(t *testing.T, value string) {
		value = "S3CR3T" + value
		s := secret.New(value)
		holder := struct {
			Token secret.String
			Deep  map[string]*secret.String
			inner secret.String // fmt cannot call methods of an unexported field
			list  []secret.String
		}{s, map[string]*secret.String{"k": &s}, s, []secret.String{s}}
		var out bytes.Buffer
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T", "%10.3s"} {
			fmt.Fprintf(&out, verb, s)
			fmt.Fprintf(&out, verb, holder)
			fmt.Fprintf(&out, verb, holder.Deep["k"])
		}
		enc, err := json.Marshal(holder)
		require.NoError(t, err)
		out.Write(enc)
		for _, h := range []slog.Handler{slog.NewJSONHandler(&out, nil), slog.NewTextHandler(&out, nil)} {
			slog.New(h).Info("m", "token", s, "holder", holder, "p", &s)
		}
		assert.NotContains(t, out.String(), "S3CR3T")
		assert.NotContains(t, out.String(), fmt.Sprintf("%x", "S3CR3T"))
		assert.Equal(t, value, s.Reveal())
	})
}
