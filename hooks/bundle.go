package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"stoker.io/stoker/hooks/bundle"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/cosign"
)

func newBundleCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "bundle",
		Short: "Install from one file, without the internet",
		Long: `Install from one file, without the internet.

A release has the file stoker-VERSION-bundle.tar with all images, the chart, this command line, manifests and man pages. These commands
need no cluster.`,
		Example: `  stoker bundle list stoker-0.1.0-bundle.tar
  stoker bundle verify stoker-0.1.0-bundle.tar --key cosign.pub
  stoker bundle push stoker-0.1.0-bundle.tar registry.example.com/stoker --key cosign.pub`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	command.AddCommand(newBundleListCommand(c), newBundleVerifyCommand(c), newBundlePushCommand(c))
	return command
}

// withBundle calls f with an open bundle, and closes it.
func withBundle(name string, f func(*bundle.Bundle) error) (err error) {
	b, err := bundle.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	return f(b)
}

func newBundleListCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:     "list BUNDLE",
		Short:   "List the images and files of a bundle",
		Example: `  stoker bundle list stoker-0.1.0-bundle.tar`,
		Args:    cobra.ExactArgs(1),
	}
	format := output.AddFlag(command.Flags())
	command.RunE = func(_ *cobra.Command, args []string) error {
		return withBundle(args[0], func(b *bundle.Bundle) error {
			images, err := b.Images()
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			list := struct {
				Images []*bundle.Image `json:"images"`
				Files  []bundledFile   `json:"files"`
			}{Images: images}
			r := output.Result{Head: []string{"NAME", "KIND", "SIZE", "DIGEST"}}
			for _, i := range images {
				kind := "image"
				if i.Chart {
					kind = "chart"
				}
				name := i.Name + ":" + i.Tag
				r.Add(name, name, kind, megabytes(i.Size), string(i.Digest))
			}
			names, size := b.Names()
			for _, name := range names {
				list.Files = append(list.Files, bundledFile{name, size(name)})
				r.Add(name, name, "file", megabytes(size(name)), "")
			}
			r.Data = list
			return c.printTable(&r, *format, "")
		})
	}
	return command
}

// bundledFile is a file of a bundle in JSON and YAML.
type bundledFile struct {
	Name string `json:"name"`
	Size int64  `json:"size"` // bytes
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// bundleKey is the flag of the commands that verify a bundle.
type bundleKey struct{ file string }

func (k *bundleKey) add(command *cobra.Command) {
	command.Flags().StringVar(&k.file, "key", "", "file with the publisher's public key (cosign.pub); without it, only damage is found")
}

func (k *bundleKey) verify(ctx context.Context, b *bundle.Bundle) error {
	if k.file == "" {
		return b.Verify(ctx, nil)
	}
	file, err := os.Open(k.file)
	if err != nil {
		return err
	}
	raw, err := bound.ReadAll(file, 64<<10)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("%s: %w", k.file, err)
	}
	key, err := cosign.ParseKey(raw)
	if err != nil {
		return fmt.Errorf("%s: %w", k.file, err)
	}
	return b.Verify(ctx, &key)
}

func newBundleVerifyCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "verify BUNDLE",
		Short: "Verify the sums of a bundle and, with --key, its signature",
		Long: `Verify the sums of a bundle and, with --key, its signature.

Take the key from another place than the bundle.`,
		Example: `  stoker bundle verify stoker-0.1.0-bundle.tar --key cosign.pub`,
		Args:    cobra.ExactArgs(1),
	}
	var key bundleKey
	key.add(command)
	command.RunE = func(command *cobra.Command, args []string) error {
		return withBundle(args[0], func(b *bundle.Bundle) error {
			if err := key.verify(command.Context(), b); err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			fmt.Fprintln(c.stdout, c.verified(args[0], key))
			return nil
		})
	}
	return command
}

func (c *cli) verified(name string, key bundleKey) string {
	if key.file == "" {
		return name + " is complete; without --key, its origin was not checked"
	}
	return name + " is complete and signed by " + key.file
}

func newBundlePushCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "push BUNDLE REGISTRY",
		Short: "Push the images and the chart of a bundle to a registry",
		Long: `Push the images and the chart of a bundle to a registry.

The command verifies the bundle first. What the registry has already is not sent again. It uses the login of docker or podman.`,
		Example: `  stoker bundle push stoker-0.1.0-bundle.tar registry.example.com/stoker --key cosign.pub`,
		Args:    cobra.ExactArgs(2),
	}
	var key bundleKey
	key.add(command)
	plain := command.Flags().Bool("plain-http", false, "the registry has no TLS")
	command.RunE = func(command *cobra.Command, args []string) error {
		return withBundle(args[0], func(b *bundle.Bundle) error {
			if err := key.verify(command.Context(), b); err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			fmt.Fprintln(c.stderr, c.verified(args[0], key))
			return b.Push(command.Context(), bundle.Registry{Path: args[1], HTTP: *plain}, func(i bundle.Image, name string) {
				fmt.Fprintf(c.stdout, "%s@%s\n", name, i.Digest)
			})
		})
	}
	return command
}
