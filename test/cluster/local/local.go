//go:build linux

// Package local says how a cluster is made on this machine: what is built and installed for it, and where it runs.
package local

import (
	"context"
	"path/filepath"

	"stoker.io/stoker/test/cluster/build"
	"stoker.io/stoker/test/cluster/keeper"
	"stoker.io/stoker/test/cluster/node"
)

// ControlRun is the run directory of a control plane that somebody started by hand.
func ControlRun(c *build.Cache) string { return filepath.Join(c.Dir, "run", "up") }

// Prepare installs and builds what a cluster with a number of nodes needs, and returns how to run it. Without nodes it is a
// control plane alone.
func Prepare(ctx context.Context, c *build.Cache, nodes int, version string) (keeper.Config, error) {
	config := keeper.Config{Run: ControlRun(c), Dir: filepath.Join(c.Dir, "run", "up-state"), Nodes: nodes}
	var err error
	if nodes > 0 {
		config.Run, config.Dir = keeper.Nodes, filepath.Join(c.Dir, "run", "nodes")
		if err := node.Check(nodes); err != nil {
			return config, err
		}
		if err := node.Install(ctx, c.Say); err != nil {
			return config, err
		}
		if config.Images, err = c.Images(ctx); err != nil {
			return config, err
		}
	}
	config.Bin, err = c.Kubernetes(ctx, version)
	return config, err
}

// KindRun is the run directory of a cluster of kind.
func KindRun(c *build.Cache) string { return filepath.Join(c.Dir, "run", "kind") }

// Kind returns how a cluster of kind is kept.
func Kind(c *build.Cache, kind keeper.Kind) keeper.Config {
	return keeper.Config{Run: KindRun(c), Dir: filepath.Join(c.Dir, "run", "kind-state"), Kind: &kind}
}
