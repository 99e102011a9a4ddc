package rules

import (
	"bytes"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Every field, page and line costs each later change, so their numbers have limits. make lint prints them.
const (
	maxFields = 428    // of the kinds
	maxWords  = 80_000 // in docs
)

func TestBudget(t *testing.T) {
	var fields, words, product, tests int
	all := files(t)
	for _, f := range all { // sequence: a sum
		lines := bytes.Count(f.content, []byte("\n"))
		switch {
		case strings.HasPrefix(f.path, "docs/") && strings.HasSuffix(f.path, ".md"):
			words += len(bytes.Fields(f.content))
		case !f.isGo():
		case f.isTest() || strings.HasPrefix(f.path, "test/"):
			tests += lines
		case strings.HasPrefix(f.path, "api/v1alpha1/") && path.Dir(f.path) == "api/v1alpha1" && !generated.Match(f.content):
			fields += bytes.Count(f.content, []byte(`json:"`))
			product += lines
		default:
			product += lines
		}
	}
	t.Logf("budget: %d fields of the kinds, at most %d; %d words in docs, at most %d; %d lines of Go in the product, %d in tests; %d files",
		fields, maxFields, words, maxWords, product, tests, len(all))
	assert.LessOrEqual(t, fields, maxFields, "fields of the kinds: does an operator ask for it, and can no other field carry it?")
	assert.LessOrEqual(t, words, maxWords, "words in docs: state a fact once, and link to it")
}
