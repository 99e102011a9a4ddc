package suggest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestNames(t *testing.T) {
	names := []string{"Pages/Main", "Pages/Maim", "pages/main", "Other/Main", "Unlike", "ab"}
	for _, c := range []struct {
		want string
		near []string
	}{
		{"Pages/Main", []string{"Pages/Main", "pages/main", "Pages/Maim"}},
		{"Pages/Mian", []string{"Pages/Main"}},
		{"Gone/main", []string{"Other/Main", "Pages/Main", "pages/main"}},
		{"xy", []string{}}, // "ab" differs in only two bytes, but these are all of its bytes
		{"nothing like these", []string{}},
	} {
		t.Run(c.want, func(t *testing.T) { assert.Equal(t, c.near, Names(c.want, slices.Values(names))) })
	}
	many := make([]string, maxSearch+1)
	for i := range many {
		many[i] = fmt.Sprint("n", i)
	}
	many[maxSearch] = "Main"
	assert.Empty(t, Names("Main", slices.Values(many)), "later names are not compared")
}
