//go:build linux

// Package local prepares clusters on this machine: what to build and install, and where they run.
package local

import (
	"context"
	"path/filepath"

	"stoker.io/stoker/test/cluster/build"
	"stoker.io/stoker/test/cluster/keeper"
	"stoker.io/stoker/test/cluster/node"
)

// ControlRun returns the run directory of a control plane that a user started.
func ControlRun(c *build.Cache) string { return filepath.Join(c.Dir, "run", "up") }

// Prepare builds and installs what a cluster with a number of nodes needs, and returns its configuration. With 0 nodes
// it is only a control plane. version is the version of Kubernetes; "" is the default one.
func Prepare(ctx context.Context, c *build.Cache, nodes int, version string) (keeper.Config, error) {
	config := keeper.Config{Run: ControlRun(c), Dir: filepath.Join(c.Dir, "run", "up-state"), Nodes: nodes}
	var err error
	if nodes > 0 {
		config.Run, config.Dir = keeper.Nodes, filepath.Join(c.Dir, "run", "nodes")
		if err := node.Check(nodes); err != nil {
			return config, err
		}
		if err := node.Install(ctx, c.Progress); err != nil {
			return config, err
		}
		if config.Images, err = c.Images(ctx); err != nil {
			return config, err
		}
	}
	config.Bin, err = c.Kubernetes(ctx, version)
	return config, err
}

// KindRun returns the run directory of a kind cluster.
func KindRun(c *build.Cache) string { return filepath.Join(c.Dir, "run", "kind") }

// Kind returns the configuration of a kind cluster.
func Kind(c *build.Cache, kind keeper.Kind) keeper.Config {
	return keeper.Config{Run: KindRun(c), Dir: filepath.Join(c.Dir, "run", "kind-state"), Kind: &kind}
}
