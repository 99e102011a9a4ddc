package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"time"

	"stoker.io/stoker/injector/admission"
	"stoker.io/stoker/injector/certificate"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/kube"
)

const (
	commandRenew = "renew"
	// renewTimeout is how long the command waits for a new installation. The Job starts a new pod after that.
	renewTimeout = 5 * time.Minute
	// publishTime is how long a new authority is published before its certificate is served.
	publishTime = time.Hour
)

// renew is the command renew: it issues or renews the certificate of the webhook, if it is time, and ends.
func renew(ctx context.Context, args []string, env func(string) string, stderr io.Writer) error {
	f := flag.NewFlagSet("injector "+commandRenew, flag.ContinueOnError)
	f.SetOutput(stderr)
	kubeconfig := f.String("kubeconfig", "", "how to reach the API server, a `file`; else the pod's own service account")
	namespace := f.String("namespace", env("POD_NAMESPACE"), "`namespace` of the injector")
	var hosts daemon.Texts
	f.Var(&hosts, "host", "an additional `name` or address of the certificate (repeatable)")
	if err := daemon.Parse(f, args); err != nil {
		return err
	}
	switch {
	case f.NArg() > 0:
		fmt.Fprintf(stderr, "injector %s: unexpected argument %q\n", commandRenew, f.Arg(0))
		return daemon.ErrUsage
	case *namespace == "":
		fmt.Fprintf(stderr, "injector %s: set --namespace or POD_NAMESPACE\n", commandRenew)
		return daemon.ErrUsage
	}
	clients, err := kube.Connect(*kubeconfig, "stoker-certificate/"+version)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	service := "stoker-injector." + *namespace
	return certificate.Renew(ctx, certificate.Config{
		Client: clients.Core, Namespace: *namespace, Configuration: admission.ConfigurationName, PublishTime: publishTime, Now: clients.Now,
		Names: append([]string{service + ".svc", service + ".svc.cluster.local"}, hosts...),
		Log:   daemon.Log(stderr, "json", "info"),
	})
}
