package push

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/hooks/offline"
)

// timeout bounds the whole push.
const timeout = 30 * time.Minute

// NewCommand returns the command stoker push. It prints the address with the digest to stdout.
func NewCommand(stdout io.Writer) *cobra.Command {
	command := &cobra.Command{
		Use:   "push oci://REGISTRY/PATH:TAG",
		Short: "Push a commit of a local clone to a registry",
		Long: `Push a commit of a local clone to a registry, as an artifact that gateways can sync.

The artifact has the files of the commit, without uncommitted changes. The same commit gives the same digest, from a clone with the same
origin and by the same version of stoker. Credentials are those of docker or podman login.`,
		Example: `  stoker push oci://registry.example.com/plants/line:1.4.2 --tag stable`,
		Args:    cobra.ExactArgs(1),
	}
	var dir, ref string
	var tags []string
	f := command.Flags()
	f.StringVar(&dir, "repo", ".", "local clone")
	f.StringVar(&ref, "ref", "HEAD", "branch, tag or commit of the clone")
	f.StringSliceVar(&tags, "tag", nil, "another tag for the artifact (repeatable)")
	command.RunE = func(command *cobra.Command, args []string) error {
		to, err := ParseAddress(args[0])
		if err != nil {
			return exit.Errorf(exit.Usage, "%w", err)
		}
		for _, tag := range tags {
			if !syntax.IsTag(tag) {
				return exit.Errorf(exit.Usage, "--tag: %.100q is not a tag of a registry", tag)
			}
		}
		ctx, cancel := context.WithTimeout(command.Context(), timeout)
		defer cancel()
		a, err := fromClone(ctx, dir, ref)
		if err != nil {
			return err
		}
		defer func() { _ = a.Close() }()
		if err := a.Push(ctx, to, tags); err != nil {
			return err
		}
		_, err = fmt.Fprintf(stdout, "%s@%s\n", to.repository, a.Digest)
		return err
	}
	return command
}

// fromClone makes an artifact from a commit of a local clone.
func fromClone(ctx context.Context, dir, ref string) (_ *Artifact, err error) {
	clone, err := offline.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, clone.Close()) }()
	at, err := clone.Resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	c := Content{Revision: at.Commit.String()}
	if c.Objects, c.Root, c.Created, err = clone.Content(ctx, at); err != nil {
		return nil, err
	}
	origin, err := clone.Origin()
	if err != nil {
		return nil, err
	}
	if u, err := url.Parse(origin); err == nil && u.Host != "" {
		u.User, u.RawQuery, u.Fragment, u.RawFragment = nil, "", "", "" // each may be a credential
		c.Source = u.String()
	}
	return Make(c)
}
