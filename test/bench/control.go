package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/program/output"
)

// control is a control plane, and the program stoker that is measured beside it.
type control struct {
	work, binary string // a directory, and the program in it
	config       *rest.Config
	progress     *log.Logger
}

// withControl calls measure with a control plane of its own, for at most 20 minutes.
func withControl(ctx context.Context, stderr io.Writer, measure func(context.Context, control) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Minute)
	defer cancel()
	c := control{progress: log.New(stderr, "", log.Ltime)}
	if c.work, err = os.MkdirTemp("", "stoker-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(c.work)) }()
	// A release contacts no address on loopback for a user, and the git server of the bench is there.
	const onLoopback = "-X stoker.io/stoker/internal/httpclient.loopback=allowed"
	c.progress.Print("building stoker, and starting a control plane")
	c.binary = filepath.Join(c.work, "stoker")
	if err := build(ctx, c.binary, "stoker.io/stoker/hooks", onLoopback); err != nil {
		return err
	}
	cluster, err := kubetest.Start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	c.config = cluster.RESTConfig()
	return measure(ctx, c)
}

// leads waits until a program says that it leads.
func leads(ctx context.Context, said *output.Log, text string) error {
	for deadline := time.Now().Add(time.Minute); !strings.Contains(said.String(), text); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("the program does not lead: %s", said.Tail())
		}
	}
	return nil
}
