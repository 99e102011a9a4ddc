package simulator

import (
	"archive/zip"
	"io"
	"net/http"
	"os"
	"path/filepath"
)

// getBackup serves a backup of the gateway, which is a zip file: its projects and its configuration.
func (g *Gateway) getBackup(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/octet-stream")
	out := zip.NewWriter(w)
	for _, dir := range []string{"projects", "config"} {
		_ = filepath.WalkDir(filepath.Join(g.opts.Data, dir), func(path string, e os.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return nil //nolint:nilerr // it was removed meanwhile
			}
			rel, err := filepath.Rel(g.opts.Data, path)
			if err != nil {
				return err
			}
			return addFile(out, filepath.ToSlash(rel), path)
		}) // the reader finds what is missing
	}
	_ = out.Close()
}

func addFile(out *zip.Writer, name, path string) error {
	in, err := os.Open(path)
	if err != nil {
		return nil // it was removed meanwhile
	}
	defer func() { _ = in.Close() }() // opened for reading
	w, err := out.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, in)
	return err
}
