package fields

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// group is a part of a table: fields whose effect one probe sees.
type group[T any] struct {
	name string
	// at is the path that contains the fields.
	at string
	// given changes the complete object, so that the fields have an effect; it may be nil.
	given func(*T)
	// see returns what a program builds from an object, as text. The same object must give the same text.
	see func(t *testing.T, object *T) string
	// to has the changed value of each field; nil stands for any other value. A field that contains others stands for all of them.
	to map[string]any
}

// checkTable runs the table of a kind. spec returns the spec of an object.
func checkTable[T any](t *testing.T, complete func() *T, spec func(*T) any, table []group[T]) {
	t.Helper()
	leaves := Leaves(reflect.TypeOf(spec(complete())), "")
	var observed []string
	for _, g := range table {
		rows := map[string]any{}
		for name, to := range g.to {
			path := join(g.at, name)
			below := slices.DeleteFunc(slices.Clone(leaves), func(leaf string) bool { return leaf != path && !strings.HasPrefix(leaf, path+".") })
			require.NotEmpty(t, below, "no field is named %s", path)
			for _, leaf := range below {
				rows[leaf] = to
				observed = append(observed, leaf)
			}
		}
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			object := func() *T {
				o := complete()
				if g.given != nil {
					g.given(o)
				}
				return o
			}
			before := g.see(t, object())
			t.Logf("without a change: %s", before)
			require.Equal(t, before, g.see(t, object()), "the probe sees two things in the same object")
			for path, to := range rows {
				t.Run(path, func(t *testing.T) {
					changed := object()
					require.NoError(t, Set(reflect.ValueOf(spec(changed)), path, to))
					require.NotEqual(t, object(), changed, "the object is not changed")
					after := g.see(t, changed)
					t.Logf("after the change: %s", after)
					assert.NotEqual(t, before, after, "%s has no effect", path)
				})
			}
		})
	}
	missing := slices.DeleteFunc(slices.Clone(leaves), func(leaf string) bool { return slices.Contains(observed, leaf) })
	assert.Empty(t, missing, "add each of these fields to a group of the table whose probe sees its effect")
}

func TestSet(t *testing.T) {
	type object struct {
		Text string         `json:"text"`
		More map[string]int `json:"more"`
	}
	v := &object{}
	require.NoError(t, Set(reflect.ValueOf(v), "text", nil))
	require.NoError(t, Set(reflect.ValueOf(v), "more", map[string]int{"a": 1}))
	assert.Equal(t, &object{"2", map[string]int{"a": 1}}, v)
	require.ErrorContains(t, Set(reflect.ValueOf(v), "none", nil), "no field")
}
