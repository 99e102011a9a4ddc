package disk

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/lock"
	"stoker.io/stoker/agent/disk/lostfound"
	"stoker.io/stoker/agent/disk/records"
	"stoker.io/stoker/agent/disk/snapshot"
)

// TestNamesAreDocumented compares the names in .stoker with the package comment and docs/reference/files.md.
func TestNamesAreDocumented(t *testing.T) {
	names := []string{
		manifestFile, journalFile, undoFile, areasFile, modesFile, scratchFile, lock.FileName, records.AuditFile,
		stagingDir, lostfound.DirName, snapshot.DirName, snapshot.BackupsDir, records.HistoryDir, "*.new",
	}
	doc := section(t, "doc.go", "// # Files in .stoker", "// # ")
	page := section(t, "../../docs/reference/files.md", "## In `.stoker/`", "\n## ")
	t.Run("package comment", func(t *testing.T) {
		var listed []string
		for _, m := range regexp.MustCompile(`(?m)^//\t(\S+)`).FindAllStringSubmatch(doc, -1) {
			listed = append(listed, strings.TrimSuffix(m[1], "/"))
		}
		assert.ElementsMatch(t, append(names, records.NotePrefix+"*"), listed)
	})
	t.Run("files.md", func(t *testing.T) {
		want := slices.Concat(names, noteFiles(t), []string{"*.damaged", "*.damaged-*"})
		var listed []string
		for _, row := range regexp.MustCompile("(?m)^\\| (`.*?)$").FindAllString(page, -1) {
			columns := strings.Split(row, "|")
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(columns[1], -1) {
				listed = append(listed, strings.TrimSuffix(m[1], "/"))
			}
		}
		// The rows of journal and staging name these two in their text.
		assert.ElementsMatch(t, want, append(listed, undoFile, areasFile))
		assert.Contains(t, page, "`"+undoFile+"`")
		assert.Contains(t, page, "`"+areasFile+"`")
	})
}

// section returns the text of a file from a heading to the next one.
func section(t *testing.T, file, heading, next string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	_, text, found := strings.Cut(string(b), heading)
	require.True(t, found, "%s has no %q", file, heading)
	text, _, _ = strings.Cut(text, next)
	return text
}

// noteFiles returns the files of the notes that the packages of the agent declare.
func noteFiles(t *testing.T) []string {
	t.Helper()
	declared := regexp.MustCompile(`(?m)^\s*(?:const )?[a-z]\w*Note(?:Name)?\s+= "([a-z-]+)"`)
	var files []string
	require.NoError(t, filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range declared.FindAllStringSubmatch(string(b), -1) {
			files = append(files, records.NotePrefix+m[1])
		}
		return err
	}))
	return files
}
