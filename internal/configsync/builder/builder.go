// Package builder runs tools that make objects from untrusted files, such as kustomize, each in a child process. On Linux a child has bounds
// for CPU time and memory. It runs this same program, gets the files on its standard input, inherits no environment variable, and opens no
// file and no connection.
//
// The packages of the tools read the files from a Tree and say what the child does with them.
package builder

import (
	"context"
	"encoding/gob"
	"errors"
	"strings"
	"sync"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Kind is the type of a path in a commit.
type Kind int

// Nothing means that the commit does not have the path.
const (
	Nothing Kind = iota
	File
	Folder
)

// Tree is the commit that files are read from. Paths are relative to its root, and clean.
type Tree interface {
	// Stat returns the type of a path. It fails for symbolic links and submodules.
	Stat(path string) (Kind, error)
	// Fetch returns the contents of files.
	Fetch(ctx context.Context, paths []string) (map[string][]byte, error)
}

// InputFile is a file that a child reads.
type InputFile struct {
	Name    string
	Content []byte
}

// Function is what a child does: it decodes the values that were given to Run, and returns what Run returns, at most manifest.MaxBytes. An
// error with a reason keeps it.
type Function func(in *gob.Decoder) ([]byte, error)

// Builder runs the builds of one run, each in a process of its own.
type Builder struct {
	release func()
	cpu     time.Duration // that the builds took
}

// maxBuilders bounds the Builders of all owners together, because each takes up to maxMemory.
const maxBuilders = 2

// builders has maxBuilders slots for all Builders together, and one for each owner.
var builders = struct {
	all    chan struct{}
	mu     sync.Mutex
	owners map[string]chan struct{}
}{all: make(chan struct{}, maxBuilders), owners: map[string]chan struct{}{}}

// maxWait bounds the wait for other Builders.
const maxWait = 20 * time.Second

// NewBuilder waits until the owner, a namespace, has no other Builder and there are fewer than maxBuilders, but not longer than maxWait. The
// caller must call Close.
func NewBuilder(ctx context.Context, owner string) (*Builder, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, maxWait, failure.New(v1alpha1.ReasonProgressing, "waits for the builder: other ConfigSyncs are being built; the next run tries again"))
	defer cancel()
	builders.mu.Lock()
	own := builders.owners[owner]
	if own == nil {
		own = make(chan struct{}, 1)
		builders.owners[owner] = own
	}
	builders.mu.Unlock()
	for _, slots := range []chan struct{}{own, builders.all} {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			if slots == builders.all {
				<-own
			}
			return nil, context.Cause(ctx)
		}
	}
	return &Builder{release: func() { <-builders.all; <-own }}, nil
}

// Close lets the next Builder begin.
func (b *Builder) Close() { b.release() }

// Fault says how the error of a build is shown to the author of the files.
type Fault struct {
	// File is the file that was built, Tool the tool, and Command the command of a user that shows the full message.
	File, Tool, Command string
	// Hidden means that the text of an error may quote a value of a Secret, so it is not shown.
	Hidden bool
}

// maxText bounds the text that is shown of an error of a tool, in bytes.
const maxText = 500

// Explain turns the error of a build into one with a reason. If the build failed because ctx ended, Explain returns err as it is. rename
// replaces generated names in the text; nil replaces nothing.
func (f Fault) Explain(ctx context.Context, err error, rename func(string) string) error {
	if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return err
	}
	if failure.Reason(err, "") != "" {
		return failure.New(failure.Reason(err, ""), "%s: %w", failure.Quote(f.File), err)
	}
	if f.Hidden {
		return failure.New(v1alpha1.ReasonManifestInvalid, "%s: %s cannot build it; the message is not shown because it may hold a value of a Secret: "+
			"run '%s' in a clone to see it", failure.Quote(f.File), f.Tool, f.Command)
	}
	text := strings.Join(strings.Fields(err.Error()), " ")
	if rename != nil {
		text = rename(text)
	}
	return failure.New(v1alpha1.ReasonManifestInvalid, "%s: %s cannot build it: %s", failure.Quote(f.File), f.Tool, failure.Cut(text, maxText))
}
