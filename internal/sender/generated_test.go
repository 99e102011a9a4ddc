//go:build !race

package sender

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// checkModified parses a modified delivery and compares the result with the original. The result may be an error or contain less, but
// must not differ otherwise.
func checkModified(t *testing.T, d delivered, h http.Header, body []byte, what string) {
	t.Helper()
	got, err := Parse(h, body)
	if err != nil {
		var invalid *InvalidError
		require.ErrorAs(t, err, &invalid)
		require.Less(t, len(err.Error()), 500, what)
		return
	}
	want := d.Want
	switch got.Kind {
	case KindPing, KindNothing:
		require.Empty(t, got.Refs)
	case KindPush:
		require.Equal(t, KindPush, want.Kind, "%s: %s became a push: %+v", d.name, what, got)
		for _, ref := range got.Refs {
			require.Contains(t, want.Refs, ref, "%s: %s", d.name, what)
		}
		for _, r := range got.Repositories {
			same := slices.Contains(want.Repositories, r) || r.Address == "" && strings.HasSuffix(strings.ToLower(want.Repositories[0].Address), strings.ToLower(r.Path)+".git")
			require.True(t, same, "%s: %s: %+v", d.name, what, r)
		}
	case KindRequest:
		if got.Ref == "" {
			return // an unnecessary poll of git does no harm
		}
		require.Equal(t, KindRequest, want.Kind, "%s: %s became a request for a ref: %+v", d.name, what, got)
		require.Contains(t, []string{"", want.Ref}, got.Ref, "%s: %s", d.name, what)
	}
	if got.Kind != KindRequest {
		require.Empty(t, got.Ref)
	}
}

// nothingID is the id that hosts send for a commit that does not exist.
const nothingID = "0000000000000000000000000000000000000000"

// R2: every prefix of every delivery.
func TestR2TruncatedDelivery(t *testing.T) {
	for _, d := range deliveries(t) {
		for n := range len(d.Body) {
			checkModified(t, d, d.header(), d.Body[:n], "cut short")
		}
	}
}

// R2: every field of every delivery missing, null, and of every other type; every header missing.
func TestR2MissingOrMistypedFields(t *testing.T) {
	others := []any{nil, 7, -1.5, true, false, "", "x", "refs/heads/other", nothingID, []any{}, []any{nil}, []any{"x"}, map[string]any{}, map[string]any{"x": nil}}
	cases := 0
	for _, d := range deliveries(t) {
		var body any
		require.NoError(t, json.Unmarshal(d.Body, &body))
		try := func(what string, given any) {
			cases++
			changed, err := json.Marshal(body)
			require.NoError(t, err)
			if _, other := given.(string); other && given != "" { // another string is a different delivery, which must not request zeros
				got, err := Parse(d.header(), changed)
				require.True(t, err != nil || got.Ref != nothingID && !slices.ContainsFunc(got.Refs, func(r string) bool { return strings.HasSuffix(r, nothingID) }) || d.Want.Kind == KindPush, what)
				return
			}
			checkModified(t, d, d.header(), changed, what)
		}
		everyField(body, "", others, try)
		for name := range d.Header {
			cases++
			h := d.header()
			h.Del(name)
			checkModified(t, d, h, d.Body, "without "+name)
		}
	}
	t.Logf("%d cases", cases)
	assert.Greater(t, cases, 5000)
}

// everyField removes each value in turn, replaces it by each of the others, and restores it. It calls try after each change.
func everyField(value any, path string, others []any, try func(what string, given any)) {
	name := func(o any) string {
		b, _ := json.Marshal(o)
		return strings.Trim(string(b), `"`)
	}
	switch v := value.(type) {
	case map[string]any:
		for key, was := range v {
			delete(v, key)
			try(path+"."+key+" is missing", nil)
			for _, o := range others {
				v[key] = o
				try(path+"."+key+" is "+name(o), o)
			}
			v[key] = was
			everyField(was, path+"."+key, others, try)
		}
	case []any:
		for i, was := range v {
			for _, o := range others {
				v[i] = o
				try(path+"[] is "+name(o), o)
			}
			v[i] = was
			everyField(was, path+"[]", others, try)
		}
	}
}
