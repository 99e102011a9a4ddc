//go:build linux

package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"stoker.io/stoker/test/cluster/control"
	"stoker.io/stoker/test/cluster/node"
	"stoker.io/stoker/test/cluster/process"
)

// cluster is a control plane and its nodes.
type cluster struct {
	Config
	plane    *control.Plane
	programs *process.Group
	nodes    []*node.Node
}

// runCluster starts the cluster whose Config stdin has, and serves it until ctx is done.
func runCluster(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	var c Config
	if err := json.NewDecoder(stdin).Decode(&c); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	k, err := start(ctx, c, func(format string, args ...any) {
		_ = writeMessage(stdout, message{Say: fmt.Sprintf(format, args...)}) // progress is optional for the reader
	})
	if err != nil {
		return errors.Join(err, writeMessage(stdout, message{Error: err.Error()}))
	}
	listener, err := listen(c.Run)
	if err != nil {
		return errors.Join(err, writeMessage(stdout, message{Error: err.Error()}), k.plane.Close())
	}
	err = writeMessage(stdout, message{Kubeconfig: k.plane.Kubeconfig()})
	if err == nil {
		err = k.serve(ctx, listener)
	}
	return errors.Join(err, k.plane.Close())
}

// start starts a cluster and waits until it is ready. say receives progress messages.
func start(ctx context.Context, c Config, say func(string, ...any)) (_ *cluster, err error) {
	began := time.Now()
	report := func(what string) { say("%6.1fs  %s", time.Since(began).Seconds(), what) }
	logs := filepath.Join(c.Dir, "logs")
	if err := os.MkdirAll(logs, 0o700); err != nil {
		return nil, err
	}
	k := &cluster{Config: c, programs: process.NewGroup(logs)}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.programs.Close(true))
		}
	}()
	for n := 1; n <= c.Nodes; n++ {
		k.nodes = append(k.nodes, node.New(n, c.Run, c.Dir, k.programs))
	}
	starting, ctx := errgroup.WithContext(ctx)
	for _, n := range k.nodes {
		starting.Go(func() error {
			if err := n.StartContainerd(ctx, c.Images); err != nil {
				return err
			}
			report(n.Containerd() + " has its images")
			return nil
		})
	}
	starting.Go(func() error {
		options := control.Options{Bin: c.Bin, Dir: c.Dir, Programs: k.programs, APIServer: c.APIServer}
		if c.Nodes > 0 {
			options.Address = node.Address
		}
		var err error
		if k.plane, err = control.Start(ctx, options); err != nil {
			return err
		}
		report("the API server is ready")
		return errors.Join(k.plane.StartScheduler(), k.plane.StartControllers(ctx))
	})
	if err := starting.Wait(); err != nil {
		return nil, err
	}
	report("controllers and scheduler run")
	if c.Nodes == 0 {
		return k, nil
	}
	return k, k.startNodes(context.WithoutCancel(ctx), report) // Wait has canceled ctx
}

// nodesTimeout is the timeout for the start of all nodes.
const nodesTimeout = 3 * time.Minute

// startNodes starts kube-proxy, the kubelets and the DNS server, and waits until they are ready.
func (k *cluster) startNodes(ctx context.Context, report func(string)) error {
	ctx, cancel := context.WithTimeout(ctx, nodesTimeout)
	defer cancel()
	if err := node.StartProxy(k.plane, k.programs, k.Bin, k.Dir); err != nil {
		return err
	}
	var names, kubelets []string
	for i, n := range k.nodes {
		if err := n.StartKubelet(ctx, k.plane, k.Bin); err != nil {
			return err
		}
		names, kubelets = append(names, "node/"+node.Name(i+1)), append(kubelets, n.Kubelet())
	}
	manifest := filepath.Join(k.Dir, "coredns.yaml")
	if err := node.WriteDNS(manifest); err != nil {
		return err
	}
	if err := k.kubectl(ctx, "apply", "-f", manifest); err != nil {
		return err
	}
	err := k.programs.Wait(ctx, "nodes", func(ctx context.Context) error {
		return k.kubectl(ctx, append([]string{"wait", "--for=condition=Ready", "--timeout=5s"}, names...)...)
	}, append(kubelets, "kube-proxy")...)
	if err != nil {
		return err
	}
	report("nodes are ready")
	if err := k.kubectl(ctx, "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=90s"); err != nil {
		return err
	}
	report("DNS is ready")
	return nil
}

func (k *cluster) kubectl(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(k.Bin, "kubectl"), append([]string{"--kubeconfig=" + k.plane.Kubeconfig()}, args...)...)
	cmd.Env = []string{"HOME=" + k.Dir} // for kubectl's discovery cache
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

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
