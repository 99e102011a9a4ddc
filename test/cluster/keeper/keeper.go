//go:build linux

// Package keeper keeps a cluster that lives longer than one function call, and sees to it that nothing of it stays behind.
//
// A cluster with nodes is three processes deep. The keeper holds the lock, changes the machine's network and cgroups and puts
// them right at the end. Its child, the first process of a PID and mount namespace of its own, reaps. The child of that runs
// the cluster. The end of the cluster is the end of the first process: the kernel then kills every process in the namespace,
// also the containers and what containerd left to itself, and drops every mount. That happens, too, when the keeper is killed
// by SIGKILL; what is then left, links, a table and empty cgroups, the next start or stop removes.
//
// Whoever starts a keeper holds a pipe to it. When the pipe ends, because its holder ended in whatever way, the keeper ends the
// cluster, unless it was told before that the cluster stays.
package keeper

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Nodes is where the one cluster of a machine that has nodes keeps its lock, its sockets and what it changed. It is gone after
// a restart of the machine, as all of that is.
const Nodes = "/run/stoker-cluster"

// Config is what to run.
type Config struct {
	Run       string   // lock, sockets and the log of the keeper; a short path
	Dir       string   // state and logs of the cluster; removed at its end
	Bin       string   // the commands of Kubernetes
	Images    []string // archives to import into every node
	Nodes     int      // 0: the control plane alone, which needs no root
	APIServer []string // further flags
	Kind      *Kind    // a cluster of kind in place of all this but Run and Dir
}

// Verbs are the arguments by which the program of test/cluster becomes a keeper, or one of its two descendants.
const (
	VerbKeep   = "keep"
	verbFirst  = "first"
	verbInside = "inside"
)

// message is what the cluster tells its starter, one JSON object a line, until it is ready.
type message struct {
	Say        string `json:",omitempty"`
	Error      string `json:",omitempty"`
	Kubeconfig string `json:",omitempty"` // it is ready
}

const stays = "stays\n"

// Keeper is a running keeper, seen from its starter.
type Keeper struct {
	Kubeconfig string
	*Client

	cmd   *exec.Cmd
	stdin io.WriteCloser
	log   string
}

// Start starts a keeper, which is the program of test/cluster, and returns when its cluster is ready.
func Start(ctx context.Context, program string, c Config, say io.Writer) (*Keeper, error) {
	if err := os.MkdirAll(c.Run, 0o700); err != nil {
		return nil, err
	}
	k := &Keeper{Client: NewClient(c.Run), cmd: exec.Command(program, VerbKeep), log: filepath.Join(c.Run, "keeper.log")}
	log, err := os.OpenFile(k.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	stdin, err := k.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := k.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	k.stdin, k.cmd.Stderr = stdin, log
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // an interrupt at the terminal is for the starter
	if err := k.cmd.Start(); err != nil {
		return nil, err
	}
	heard := make(chan error, 1)
	go func() { heard <- k.hear(stdout, say) }()
	err = json.NewEncoder(stdin).Encode(c)
	if err == nil {
		select {
		case err = <-heard:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err != nil {
		return nil, errors.Join(err, k.Stop())
	}
	return k, nil
}

// hear passes on what the cluster says, until it is ready or has failed.
func (k *Keeper) hear(stdout io.Reader, say io.Writer) error {
	for decoder := json.NewDecoder(stdout); ; {
		var m message
		if err := decoder.Decode(&m); err != nil {
			tail, _ := os.ReadFile(k.log)
			return fmt.Errorf("the keeper of the cluster ended before it was ready: %w: %.2000s", err, tail)
		}
		switch {
		case m.Error != "":
			return errors.New(m.Error)
		case m.Kubeconfig != "":
			k.Kubeconfig = m.Kubeconfig
			return nil
		}
		fmt.Fprintln(say, m.Say)
	}
}

// Stay lets the cluster live on without its starter.
func (k *Keeper) Stay() error {
	_, err := io.WriteString(k.stdin, stays)
	return errors.Join(err, k.stdin.Close(), k.cmd.Process.Release())
}

// endWithin bounds the end of a cluster.
const endWithin = time.Minute

// Stop ends the cluster and returns when nothing of it is left.
func (k *Keeper) Stop() error {
	_ = k.stdin.Close()
	ended := make(chan error, 1)
	go func() { ended <- k.cmd.Wait() }()
	timer := time.NewTimer(endWithin)
	defer timer.Stop()
	select {
	case err := <-ended:
		return err
	case <-timer.C:
		return fmt.Errorf("the keeper of the cluster (process %d) has not ended after %s: see %s", k.cmd.Process.Pid, endWithin, k.log)
	}
}

// waitForOwner returns when the starter's end of the pipe is closed and the cluster was not told to stay.
func waitForOwner(from *bufio.Reader) {
	if line, err := from.ReadString('\n'); err == nil && line == stays {
		select {}
	}
}
