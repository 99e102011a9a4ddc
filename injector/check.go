package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/injector/admission"
	"stoker.io/stoker/injector/check"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/kube"
)

// checkTimeout is how long the command check waits for a new installation: images are pulled, the certificate is issued, and the
// Service gets its endpoints.
const (
	checkTimeout, checkInterval = 3 * time.Minute, 2 * time.Second
	commandCheck                = "check"
)

// checkWebhook is the command check: it lets the API server call the webhook.
func checkWebhook(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flag.NewFlagSet("injector "+commandCheck, flag.ContinueOnError)
	f.SetOutput(stderr)
	kubeconfig := f.String("kubeconfig", "", "how to reach the API server, a `file`; else the pod's own service account")
	namespace := f.String("dry-run-namespace", metav1.NamespaceDefault, "`namespace` in which the API server tries to create a pod that requires an agent, in a dry run")
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
		Client: clients.Core, Configuration: admission.ConfigurationName, Namespace: *namespace, Out: stdout, Timeout: checkTimeout, Interval: checkInterval,
	})
}
