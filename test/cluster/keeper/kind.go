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

// Kind says how a cluster of kind is made.
type Kind struct {
	Program string
	Image   string // of the node; it is there
}

// KindName is the name of the one cluster of kind that a keeper keeps.
const KindName = "stoker-test"

const kindWithin = 5 * time.Minute

// keepKind owns a cluster of kind from its start until gone is closed or ctx ends. What an earlier keeper left when it was
// killed is removed first.
func keepKind(ctx context.Context, c Config, gone <-chan struct{}, stdout io.Writer) error {
	remove := func() error { return c.kind(context.Background(), "delete", "cluster", "--name", KindName) }
	kubeconfig := filepath.Join(c.Dir, "kubeconfig")
	err := remove()
	if err == nil {
		starting, cancel := context.WithCancel(ctx)
		stop := make(chan struct{})
		go func() {
			select {
			case <-gone:
				cancel()
			case <-stop:
			}
		}()
		err = c.kind(starting, "create", "cluster", "--name", KindName, "--image", c.Kind.Image, "--kubeconfig", kubeconfig, "--wait", "3m")
		close(stop)
		cancel()
	}
	if err != nil {
		return errors.Join(err, tell(stdout, message{Error: err.Error()}), remove())
	}
	if err := tell(stdout, message{Kubeconfig: kubeconfig}); err != nil {
		return errors.Join(err, remove())
	}
	select {
	case <-gone:
	case <-ctx.Done():
	}
	return remove()
}

func (c Config) kind(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, kindWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Kind.Program, args...)
	// Without this it would write into the user's own kubeconfig.
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(c.Dir, "kubeconfig"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kind %s: %w: %s", args[0], err, strings.TrimSpace(string(out)))
	}
	return nil
}
