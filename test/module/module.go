// Package module finds the source of this project for tests and for the programs that they use.
package module

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Path is the path of the main module.
const Path = "stoker.io/stoker"

// Root returns the root directory of the main module, also if the working directory is in a nested module.
func Root() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil {
			first, _, _ := strings.Cut(string(content), "\n")
			if strings.TrimSpace(first) == "module "+Path {
				return dir, nil
			}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if filepath.Dir(dir) == dir {
			return "", fmt.Errorf("%s is not inside module %s", start, Path)
		}
	}
}
