//go:build linux

package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Kind configures a kind cluster.
type Kind struct {
	Program string
	Image   string // node image, which must be available locally
}

// KindName is the name of the only kind cluster that a keeper runs.
const KindName = "stoker-test"

const kindTimeout = 5 * time.Minute

// keepKind creates a kind cluster and returns when starterEnded is closed or ctx is done. cleanUp deletes the cluster.
func keepKind(ctx context.Context, c Config, starterEnded <-chan struct{}, stdout io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		<-starterEnded
		cancel()
	}()
	kubeconfig := filepath.Join(c.Dir, "kubeconfig")
	err := c.kind(ctx, "create", "cluster", "--name", KindName, "--image", c.Kind.Image, "--kubeconfig", kubeconfig, "--wait", "3m")
	if err != nil {
		return errors.Join(err, writeMessage(stdout, message{Error: err.Error()}))
	}
	if err := writeMessage(stdout, message{Kubeconfig: kubeconfig}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// deleteKind deletes the cluster. For kind, a missing cluster is not an error.
func (c Config) deleteKind(ctx context.Context) error {
	return c.kind(ctx, "delete", "cluster", "--name", KindName)
}

func (c Config) kind(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, kindTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Kind.Program, args...)
	// Without this, kind would write to the user's own kubeconfig.
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(c.Dir, "kubeconfig"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kind %s: %w: %s", args[0], err, strings.TrimSpace(string(out)))
	}
	return nil
}
