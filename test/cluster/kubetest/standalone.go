package kubetest

import (
	"context"
	"errors"
	"os"
	"strings"

	"stoker.io/stoker/test/cluster/build"
)

// Start returns a private control plane for a program that is not a test. Close ends it. It does not outlive the
// program, however that ends.
func Start(ctx context.Context, opts ...Option) (*Cluster, error) {
	o := options{version: os.Getenv(build.VersionVariable)}
	for _, set := range opts {
		set(&o)
	}
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	c, err := start(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := c.startMissing(ctx, o); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// Close ends a control plane that Start returned.
func (c *Cluster) Close() error { return c.close() }

// Install applies the YAML files at a path, as Apply does.
func (c *Cluster) Install(ctx context.Context, path string) error { return c.apply(ctx, path) }

// InstallYAML applies the documents of a text.
func (c *Cluster) InstallYAML(ctx context.Context, text string) error {
	return c.applyDocuments(ctx, "", strings.NewReader(text))
}
