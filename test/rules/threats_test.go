package rules

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

const threatPage = "docs/internals/threats.md"

var (
	threatRow = regexp.MustCompile(`(?m)^\| ([A-Z][0-9]+) \|`)
	threatID  = regexp.MustCompile(`\b[FCRIPUG][0-9]{1,2}\b`)
)

// brokenThreats returns the threats of the page that no test names, and the threats in test comments that
// the page does not have.
func brokenThreats(all []file) []string {
	listed, tested := map[string]bool{}, map[string]string{}
	for _, f := range all {
		if f.path == threatPage {
			for _, row := range threatRow.FindAllSubmatch(f.content, -1) {
				listed[string(row[1])] = true
			}
		}
		if !strings.HasSuffix(f.path, "_test.go") {
			continue
		}
		for line := range strings.Lines(string(f.content)) {
			_, comment, found := strings.Cut(line, "// ")
			if found {
				for _, id := range threatID.FindAllString(comment, -1) {
					tested[id] = f.path
				}
			}
		}
	}
	var broken []string
	for id := range listed {
		if tested[id] == "" {
			broken = append(broken, fmt.Sprintf("%s: no comment of a test names %s", threatPage, id))
		}
	}
	for id, where := range tested {
		if !listed[id] {
			broken = append(broken, fmt.Sprintf("%s names %s, which %s does not have", where, id, threatPage))
		}
	}
	return broken
}

func TestThreatsHaveTests(t *testing.T) { report(t, brokenThreats(files(t))) }

func TestThreatRules(t *testing.T) {
	page := file{threatPage, []byte("| | x |\n|---|---|\n| F1 | x |\n| C10 | x |\n")}
	check := func(text string) []string { return brokenThreats([]file{page, {"a/a_test.go", []byte(text)}}) }
	assert.Empty(t, check("// F1: links.\nfunc TestX() {} // C10, too\n"))
	assert.Len(t, check("// F1: links.\n"), 1, "C10 has no test")
	assert.Len(t, check("// F1, C10, R1\n"), 1, "R1 has no row")
	assert.Len(t, check("x := F1 + C10\n"), 2, "an identifier must not count as a comment")
}
