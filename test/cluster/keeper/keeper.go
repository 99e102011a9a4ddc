//go:build linux

// Package keeper runs a cluster that outlives a function call, and makes sure that nothing of it is left behind.
//
// A cluster with nodes has three levels of processes. The keeper holds the lock, and changes the machine's network and
// cgroups and restores them at the end. Its child, the first process of its own PID and mount namespace, reaps orphans.
// The grandchild runs the cluster. When the grandchild ends, so does the first process, and the kernel kills every
// process in the namespace, including containers and processes orphaned by containerd, and drops every mount. The same
// happens if the keeper is killed by SIGKILL. The next start or stop then removes what is left: links, a table and
// empty cgroups.
//
// The starter of a keeper holds a pipe to it. When the pipe closes, because the starter ended for any reason, the
// keeper ends the cluster, unless the starter has called Stay.
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

// Nodes is the run directory of a cluster with nodes, of which a machine has one: its lock, its sockets and its changes
// to the machine. Like these, it does not survive a reboot.
const Nodes = "/run/stoker-cluster"

// Config configures a cluster.
type Config struct {
	Run       string   // lock, sockets and log of the keeper; a short path
	Dir       string   // state and logs of the cluster; removed at its end
	Bin       string   // directory of the Kubernetes commands
	Images    []string // archives to import into every node
	Nodes     int      // 0 means only a control plane, which needs no root
	APIServer []string // additional flags of the API server
	Kind      *Kind    // a kind cluster; only Run and Dir apply to it
}

// Arguments that run test/cluster's program as a keeper, or as one of its two descendants.
const (
	VerbKeep   = "keep"
	verbFirst  = "first"
	verbInside = "inside"
)

// message is a message of the cluster to its starter, one JSON object per line, until it is ready.
type message struct {
	Say        string `json:",omitempty"`
	Error      string `json:",omitempty"`
	Kubeconfig string `json:",omitempty"` // set when the cluster is ready
}

// stayMessage is what a starter writes to the pipe before it closes it, so that the cluster continues.
const stayMessage = "stays\n"

// Keeper is a running keeper, as its starter sees it.
type Keeper struct {
	Kubeconfig string
	*Client

	cmd   *exec.Cmd
	stdin io.WriteCloser
	log   string
}

// Start starts a keeper and waits until its cluster is ready. program is the path of test/cluster's program. say receives
// progress messages.
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
	ready := make(chan error, 1)
	go func() { ready <- k.readMessages(stdout, say) }()
	err = json.NewEncoder(stdin).Encode(c)
	if err == nil {
		select {
		case err = <-ready:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err != nil {
		return nil, errors.Join(err, k.Stop())
	}
	return k, nil
}

// readMessages writes the cluster's progress messages to say until the cluster is ready or has failed.
func (k *Keeper) readMessages(stdout io.Reader, say io.Writer) error {
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

// Stay lets the cluster outlive its starter. After it only Down ends the cluster; Stop must not be called.
func (k *Keeper) Stay() error {
	_, err := io.WriteString(k.stdin, stayMessage)
	return errors.Join(err, k.stdin.Close(), k.cmd.Process.Release())
}

// endTimeout is the timeout for the end of a cluster.
const endTimeout = time.Minute

// Stop ends the cluster and waits until the keeper has cleaned up.
func (k *Keeper) Stop() error {
	_ = k.stdin.Close()
	ended := make(chan error, 1)
	go func() { ended <- k.cmd.Wait() }()
	timer := time.NewTimer(endTimeout)
	defer timer.Stop()
	select {
	case err := <-ended:
		return err
	case <-timer.C:
		return fmt.Errorf("the keeper of the cluster (process %d) has not ended after %s: see %s", k.cmd.Process.Pid, endTimeout, k.log)
	}
}

// waitForStarter returns when the starter's end of the pipe is closed. It never returns if the starter has called Stay.
func waitForStarter(pipe *bufio.Reader) {
	if line, err := pipe.ReadString('\n'); err == nil && line == stayMessage {
		select {}
	}
}
