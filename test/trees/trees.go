// Package trees finds real Ignition repositories for tests, in the folder that the environment variable STOKER_TREES names.
// They are not part of the project. Tests that need one are skipped if it does not exist.
package trees

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// Root is the folder of all trees.
func Root(t testing.TB) string {
	t.Helper()
	root := os.Getenv("STOKER_TREES")
	if root == "" {
		t.Skip("STOKER_TREES is not set: it names a folder with checked-out Ignition repositories")
	}
	return root
}

// Repository83 is the checkout of a repository of Ignition 8.3, which has a gateway's projects and config in
// services/<gateway>.
func Repository83(t testing.TB) string {
	t.Helper()
	return filepath.Dir(filepath.Dir(Gateway83(t)))
}

// Gateway83 is the folder of the gateway in Repository83.
func Gateway83(t testing.TB) string {
	t.Helper()
	return filepath.Dir(filepath.Dir(first(t, "a repository of 8.3", "*", "services", "*", "config", "resources")))
}

// Project81 is the first folder of STOKER_TREES with a project.json at its top, as repositories of one project of Ignition 8.1 have it.
func Project81(t testing.TB) string {
	t.Helper()
	return filepath.Dir(first(t, "a project of 8.1", "*", "project.json"))
}

func first(t testing.TB, what string, pattern ...string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(append([]string{Root(t)}, pattern...)...))
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		t.Skipf("there is no %s in STOKER_TREES", what)
	}
	return found[0]
}

// Files reads the regular files of a folder, also of its .git: slash path → content.
func Files(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		files[filepath.ToSlash(name)] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
