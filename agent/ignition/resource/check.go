// Package resource knows Ignition's file formats: which paths of a data directory belong to the gateway alone, what a
// resource.json must look like, and when two of them mean the same. It is pure and opens no files.
package resource

import (
	"bytes"
	"encoding/json"
	"errors"
	"path"
	"slices"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

const (
	// maxShape is the largest resource.json, in bytes, that a Checker accepts, because it decodes the file in memory.
	// The largest one in public repositories has 4 kB.
	maxShape = 4 << 20
	// maxPointer is the size in bytes that git-lfs pointers always stay below.
	maxPointer = 1024
	lfsHeader  = "version https://git-lfs"
)

// lfsHeaders are the beginnings of the first line of a pointer: of today's, of those before LFS 1.0, and of the first ones.
var lfsHeaders = []string{lfsHeader, "version https://hawser.github.com/", "version http://git-media.io/"}

// A Checker is a writer for a file on its way to the data directory. Close reports whether the gateway can use the
// file:
//
//   - A Git LFS pointer in place of the content is LFSPointer.
//   - A *.json file must be JSON; an invalid or empty file is ConfigSyntaxError with file, line and column. Like the gateway,
//     the Checker accepts a UTF-8 byte order mark (Gson skips it), duplicate keys, and invalid UTF-8 in strings.
//   - A resource.json or unary-resource.json must be an object, and its "files", if present, a list of different plain names. One
//     larger than maxShape is LimitExceeded.
//   - The resource.json of a project or config resource must have an object "attributes": a missing one was seen to break
//     the next cold start of the whole gateway.
//
// A Checker keeps up to maxShape of a resource.json in memory, and up to some kilobytes of any other file. Write never fails, so that a
// Checker can be part of an io.MultiWriter.
type Checker struct {
	path  string
	json  *scanner
	head  []byte // the first bytes, up to maxPointer
	shape *bytes.Buffer
	size  int64
	// embedded looks for embedded secrets in a *.json file; see EmbeddedSecrets.
	embedded EmbeddedFinder
}

// NewChecker returns a Checker for the file at path, relative to the data directory.
func NewChecker(path string) *Checker {
	c := &Checker{path: path}
	if isJSON(path) {
		c.json = &scanner{}
	}
	if isResource(path) {
		c.shape = &bytes.Buffer{}
	}
	return c
}

// Write implements io.Writer. It never fails.
func (c *Checker) Write(p []byte) (int, error) {
	if c.size < maxPointer {
		c.head = append(c.head, p[:min(len(p), maxPointer-int(c.size))]...)
	}
	c.size += int64(len(p))
	if c.json != nil {
		c.json.write(p)
		c.embedded.Add(p)
	}
	if c.shape != nil && c.size <= maxShape {
		c.shape.Write(p)
	}
	return len(p), nil
}

// Close returns what is wrong with the file as a *failure.Error, or nil.
func (c *Checker) Close() error {
	if c.size < maxPointer && IsPointer(c.head) {
		return failure.New(v1alpha1.ReasonLFSPointer, "%s is a Git LFS pointer, not the content itself: "+
			"commit the file without LFS, or exclude it", c.path)
	}
	if c.json == nil {
		return nil
	}
	if err := c.json.end(); err != nil {
		return c.broken(err)
	}
	if c.shape != nil {
		return c.checkShape()
	}
	return nil
}

// IsPointer reports whether a file is a Git LFS pointer: the first line has the version, and other lines the object and
// its size. Without these, git-lfs could not fetch anything, and the file is ordinary text.
func IsPointer(b []byte) bool {
	return slices.ContainsFunc(lfsHeaders, func(h string) bool { return bytes.HasPrefix(b, []byte(h)) }) && bytes.Contains(b, []byte("\noid ")) && bytes.Contains(b, []byte("\nsize "))
}

// broken returns the error for a file that is not JSON.
func (c *Checker) broken(err error) error {
	if at, ok := errors.AsType[*syntaxError](err); ok {
		return failure.New(v1alpha1.ReasonConfigSyntaxError, "%s:%d:%d: %w", c.path, at.line, at.column, err)
	}
	return failure.New(v1alpha1.ReasonConfigSyntaxError, "%s: %w", c.path, err)
}

// checkShape checks the structure of a resource.json.
func (c *Checker) checkShape() error {
	if c.size > maxShape {
		return failure.New(v1alpha1.ReasonLimitExceeded, "%s has %d bytes; the limit of a resource.json is %d",
			c.path, c.size, maxShape)
	}
	var shape map[string]json.RawMessage
	if err := json.Unmarshal(withoutMark(c.shape.Bytes()), &shape); err != nil || shape == nil {
		return c.misshaped("must be a JSON object")
	}
	if needsAttributes(c.path) {
		var attributes map[string]json.RawMessage
		raw, ok := shape["attributes"]
		if !ok {
			return c.misshaped(`"attributes" is missing, which can keep the whole gateway from starting; ` +
				`add "attributes": {} or save the resource again`)
		}
		if err := json.Unmarshal(raw, &attributes); err != nil || attributes == nil {
			return c.misshaped(`"attributes" must be an object`)
		}
	}
	if raw, ok := shape["files"]; ok {
		return c.checkFiles(raw)
	}
	return nil
}

func (c *Checker) checkFiles(raw json.RawMessage) error {
	var files []string
	if err := json.Unmarshal(raw, &files); err != nil || files == nil {
		return c.misshaped(`"files" must be a list of file names`)
	}
	for _, name := range files {
		if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\\\x00") {
			return failure.New(v1alpha1.ReasonConfigSyntaxError,
				`%s: "files" names %q, which is not a plain file name`, c.path, name)
		}
	}
	if name, found := duplicate(files); found {
		return failure.New(v1alpha1.ReasonConfigSyntaxError, `%s: "files" names %q twice`, c.path, name)
	}
	return nil
}

func (c *Checker) misshaped(text string) error {
	return failure.New(v1alpha1.ReasonConfigSyntaxError, "%s: %s", c.path, text)
}

func isJSON(p string) bool { return strings.EqualFold(path.Ext(p), ".json") }

func isResource(p string) bool {
	base := path.Base(p)
	return base == File || base == "unary-resource.json"
}

// needsAttributes reports whether path is the resource.json of a project or config resource, all of which were seen to
// have the object. A resource.json elsewhere is not the gateway's.
func needsAttributes(p string) bool {
	return path.Base(p) == File && (strings.HasPrefix(p, "projects/") || strings.HasPrefix(p, "config/resources/"))
}

func withoutMark(b []byte) []byte { return bytes.TrimPrefix(b, []byte(byteOrderMark)) }
