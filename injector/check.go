package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"time"

	"stoker.io/stoker/injector/admission"
	"stoker.io/stoker/injector/check"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/kube"
)

// checkWithin is how long the command check waits for an installation that has just been made: images are pulled, the
// certificate is made, and the Service hears of its pods.
const (
	checkWithin, checkEvery = time.Minute, 2 * time.Second
	commandCheck            = "check"
)

// checkWebhook is the command check: does the webhook answer as the API server would ask it?
func checkWebhook(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flag.NewFlagSet("injector "+commandCheck, flag.ContinueOnError)
	f.SetOutput(stderr)
	kubeconfig := f.String("kubeconfig", "", "how to reach the API server, a `file`; else the pod's own service account")
	configuration := f.String("webhook-configuration", admission.ConfigurationName, "`name` of the MutatingWebhookConfiguration")
	if err := daemon.Parse(f, args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		fmt.Fprintf(stderr, "injector %s: unexpected argument %q\n", commandCheck, f.Arg(0))
		return daemon.ErrUsage
	}
	clients, err := kube.Connect(*kubeconfig, "stoker-injector-check/"+version)
	if err != nil {
		return err
	}
	return check.Run(ctx, check.Config{
		Client: clients.Core, Configuration: *configuration, Out: stdout, Within: checkWithin, Every: checkEvery,
	})
}
