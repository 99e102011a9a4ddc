package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"stoker.io/stoker/hooks/bundle"
)

// reproduce makes the release of the current commit from two clones in two folders, and compares the sums of all artifacts.
func reproduce(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	work, err := os.MkdirTemp("", "stoker-reproduce-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	top, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return err
	}
	build := func(name string) ([]byte, error) {
		clone, out := filepath.Join(work, name), filepath.Join(work, "out", name)
		cmd := exec.CommandContext(ctx, "git", "clone", "--quiet", "--no-hardlinks", top, clone)
		cmd.Stderr = stderr
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("git clone: %w", err)
		}
		if err := artifacts(ctx, append(slices.Clone(args), "--root", clone, "--out", out), io.Discard, stderr); err != nil {
			return nil, err
		}
		return os.ReadFile(filepath.Join(out, bundle.Sums))
	}
	first, err := build("one")
	if err != nil {
		return err
	}
	second, err := build(filepath.Join("another", "folder"))
	if err != nil {
		return err
	}
	if !bytes.Equal(first, second) {
		return fmt.Errorf("two builds of one commit differ in: %s", strings.Join(different(first, second), ", "))
	}
	_, err = stdout.Write(first)
	return err
}

// different returns the names of the files whose sums are not the same.
func different(a, b []byte) (names []string) {
	other := strings.Split(string(b), "\n")
	for line := range strings.Lines(string(a)) {
		line = strings.TrimSuffix(line, "\n")
		if _, name, ok := strings.Cut(line, "  "); ok && !slices.Contains(other, line) {
			names = append(names, name)
		}
	}
	return names
}
