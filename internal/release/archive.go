package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// entry is a file of an archive.
type entry struct {
	name    string
	content []byte
	mode    fs.FileMode // permissions
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

// readKey reads a private key, such as openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 writes.
func readKey(file string) (*ecdsa.PrivateKey, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(raw)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, fmt.Errorf("%s is not a private key in PKCS #8 without a password: openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256", file)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New(file + " is not an ECDSA key, and cosign and stoker bundle verify read no other")
	}
	return key, nil
}

// signFile writes a signature of a file as cosign sign-blob --bundle does, without an entry of a transparency log: a site without a network
// could not check one (https://github.com/sigstore/protobuf-specs, Bundle 0.3).
func signFile(keyFile, file, to string) error {
	key, err := readKey(keyFile)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	signed, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	hint := sha256.Sum256(public)
	raw, err := json.Marshal(map[string]any{
		"mediaType":            "application/vnd.dev.sigstore.bundle.v0.3+json",
		"verificationMaterial": map[string]any{"publicKey": map[string]any{"hint": base64.StdEncoding.EncodeToString(hint[:])}, "tlogEntries": []any{}},
		"messageSignature":     map[string]any{"messageDigest": map[string]any{"algorithm": "SHA2_256", "digest": sum[:]}, "signature": signed},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(to, raw, 0o644)
}
