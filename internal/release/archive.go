package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

type entry struct {
	name    string
	content []byte
	mode    fs.FileMode // of its permissions
}

// writeArchive writes a .zip, .tar.gz or .tgz. Order, times and owners are fixed, so that the same files give the same archive.
func writeArchive(to string, entries []entry, at time.Time) error {
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	var b bytes.Buffer
	var err error
	if filepath.Ext(to) == ".zip" {
		err = writeZip(&b, entries, at)
	} else {
		z := gzip.NewWriter(&b)
		if err = writeTarEntries(tar.NewWriter(z), entries, at); err == nil {
			err = z.Close()
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(to), err)
	}
	return os.WriteFile(to, b.Bytes(), 0o644)
}

func writeZip(to io.Writer, entries []entry, at time.Time) error {
	z := zip.NewWriter(to)
	for _, e := range entries {
		h := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: at}
		h.SetMode(e.mode)
		w, err := z.CreateHeader(h)
		if err != nil {
			return err
		}
		if _, err := w.Write(e.content); err != nil {
			return err
		}
	}
	return z.Close()
}

// writeTarEntries writes files, and the end of the archive.
func writeTarEntries(t *tar.Writer, entries []entry, at time.Time) error {
	for _, e := range entries {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: int64(e.mode), Size: int64(len(e.content)), ModTime: at, Format: tar.FormatPAX}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(e.content); err != nil {
			return err
		}
	}
	return t.Close()
}

// readNames returns the names of the files below a folder, with slashes.
func readNames(dir string) (names []string, err error) {
	err = filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, file)
		names = append(names, filepath.ToSlash(name))
		return err
	})
	return names, err
}

// readTree returns the files below a folder that keep accepts, with a prefix for their names.
func readTree(dir, prefix string, keep func(name string) bool) ([]entry, error) {
	names, err := readNames(dir)
	if err != nil {
		return nil, err
	}
	var entries []entry
	for _, name := range names {
		if keep != nil && !keep(name) {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry{prefix + name, content, 0o644})
	}
	return entries, nil
}
