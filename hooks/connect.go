package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/hooks/sites"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
)

// queryTimeout bounds the queries of a command to the API server, unless the command has a bound of its own. It does not bound the wait for
// gateways.
const queryTimeout = 30 * time.Second

// target is a cluster and a namespace in it. connect sets the kind to GatewaySync and no name; connectTo sets the kind and the name of one object.
type target struct {
	kube.Clients
	namespace string
	kind      kube.Kind
	name      string
	role      string        // ClusterRole that grants the rights of the command
	retries   bool          // retry while the API server does not answer, see target.retry
	patience  time.Duration // maximum time of a query with its retries
}

// dialTimeout bounds the attempt to connect to an API server, so that a user learns soon that a network drops packets.
const dialTimeout = 5 * time.Second

// connect finds the cluster and the namespace as kubectl does.
func (c *cli) connect() (target, error) { return c.connectWith(c.flags, false) }

// connectWith is connect with other flags. If several is true, the command asks several clusters at once, so no credential plugin may read
// from the terminal.
func (c *cli) connectWith(flags *genericclioptions.ConfigFlags, several bool) (target, error) {
	loader := flags.ToRawKubeConfigLoader()
	namespace, _, err := loader.Namespace()
	if err != nil {
		return target{}, fmt.Errorf("load the kubeconfig: %w; set --kubeconfig or KUBECONFIG", err)
	}
	config, err := flags.ToRESTConfig()
	if err != nil {
		return target{}, fmt.Errorf("load the kubeconfig: %w; set --kubeconfig or KUBECONFIG", err)
	}
	if err := sites.FindCluster(loader, config, *flags.APIServer, c.env); err != nil {
		return target{}, err
	}
	if several && config.ExecProvider != nil {
		config.ExecProvider.StdinUnavailable = true
		config.ExecProvider.StdinUnavailableMessage = "several clusters are asked at once: log in to this one first"
	}
	kube.BypassProxy(config, c.env)
	if config.Dial == nil {
		config.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
	}
	retries, patience := !c.interactive && !c.answersAtOnce, queryTimeout
	if c.answersAtOnce {
		patience = sites.Deadline
	}
	if !retries {
		kube.TryOnce(config)
	}
	clients, err := kube.ConnectTo(config, "stoker/"+version)
	if err != nil {
		return target{}, err
	}
	return target{Clients: clients, namespace: namespace, kind: kube.GatewaySync, role: "stoker-setter", retries: retries, patience: patience}, nil
}

func (p target) setter() *request.Setter { return request.NewSetter(p.Dynamic, p.Now).Of(p.kind) }

// kindsByPrefix maps what may precede the name of an object, before a slash, as in kubectl.
var kindsByPrefix = map[string]kube.Kind{
	"gatewaysync": kube.GatewaySync, "gatewaysyncs": kube.GatewaySync, "gs": kube.GatewaySync, "gatewaysync.stoker.io": kube.GatewaySync,
	"configsync": kube.ConfigSync, "configsyncs": kube.ConfigSync, "csync": kube.ConfigSync, "configsync.stoker.io": kube.ConfigSync,
}

// connectTo returns the target for the object that an argument names: NAME is a GatewaySync, configsync/NAME a ConfigSync.
func (c *cli) connectTo(arg string) (target, error) {
	p, err := c.connect()
	if err != nil {
		return p, err
	}
	prefix, name, found := strings.Cut(arg, "/")
	if !found {
		p.name = arg
		return p, nil
	}
	kind, known := kindsByPrefix[strings.ToLower(prefix)]
	if !known || name == "" {
		return p, exit.Errorf(exit.Usage, "%.80q is not the name of an object: use NAME for a GatewaySync, or configsync/NAME", arg)
	}
	p.kind, p.name = kind, name
	return p, nil
}

// argument returns the argument of a command that names the object.
func (p target) argument() string {
	if p.kind == kube.ConfigSync {
		return "configsync/" + p.name
	}
	return p.name
}

// object reads the object of the target. Its error says what the user can do.
func (p target) object(ctx context.Context) (o v1alpha1.Requestable, err error) {
	err = p.retry(ctx, func(ctx context.Context) (err error) {
		o, err = p.setter().Get(ctx, p.namespace, p.name)
		return err
	})
	return o, p.explain(p.name, err)
}

// retry calls query until it succeeds, for at most p.patience. It retries only while the API server does not answer: in the
// first second of a Job the network may not be ready, and a restarting API server refuses connections for a few seconds. It does not
// retry on a terminal or for viewCommands: the user sees the error and decides.
func (p target) retry(ctx context.Context, query func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	for n := 0; ; n++ {
		err := query(ctx)
		if err == nil || !p.retries || !unavailable(err) || !backoff.Wait(ctx, pollInterval(n)) {
			return err
		}
	}
}

// unavailable reports whether the API server did not answer, or answered that it is not able to, so that a retry may help.
func unavailable(err error) bool {
	_, noAnswer := errors.AsType[*url.Error](err)
	status := apierrors.APIStatus(nil)
	return (noAnswer || errors.As(err, &status)) && kube.Transient(err)
}

// get reads one GatewaySync. Its error is that of the API server; load explains it.
func (p target) get(ctx context.Context, name string) (gs *v1alpha1.GatewaySync, err error) {
	err = p.retry(ctx, func(ctx context.Context) (err error) {
		gs, err = kube.GatewaySyncs(p.Dynamic, p.namespace).Get(ctx, name)
		return err
	})
	return gs, err
}

// load is get with an error that says what the user can do.
func (p target) load(ctx context.Context, name string) (*v1alpha1.GatewaySync, error) {
	gs, err := p.get(ctx, name)
	return gs, p.explain(name, err)
}

// loadGatewaySync connects to the cluster and reads one GatewaySync.
func (c *cli) loadGatewaySync(ctx context.Context, name string) (target, *v1alpha1.GatewaySync, error) {
	p, err := c.connect()
	if err != nil {
		return p, nil, err
	}
	gs, err := p.load(ctx, name)
	return p, gs, err
}

// explain adds to an error of the API server what the user can do about it. name is the object that was read or written.
func (p target) explain(name string, err error) error {
	answer, answered := errors.AsType[*apierrors.StatusError](err)
	switch {
	case err == nil:
		return nil
	case answered && apierrors.IsNotFound(err) && (answer.ErrStatus.Details == nil || answer.ErrStatus.Details.Name == ""): // the kind is not served
		return fmt.Errorf("the cluster does not serve %ss: install the chart or its custom resource definitions: %w", p.kind.Name, err)
	case errors.Is(err, request.ErrReplaced):
		return fmt.Errorf("%s %s in namespace %s: %w: run the command again", p.kind.Name, name, p.namespace, request.ErrReplaced)
	case apierrors.IsNotFound(err) && p.kind == kube.ConfigSync:
		return fmt.Errorf("there is no ConfigSync %s in namespace %s: list all with 'stoker config status', or choose a namespace with --namespace", name, p.namespace)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no GatewaySync %s in namespace %s: list all with 'stoker get -A', or choose a namespace with --namespace", name, p.namespace)
	case apierrors.IsForbidden(err) && p.namespace == "":
		return fmt.Errorf("%w\nThe ClusterRole stoker-view grants this right: bind it with a ClusterRoleBinding, or choose one namespace with --namespace", err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w\nThe ClusterRole %s grants the rights of these commands: bind it in namespace %s", err, p.role, p.namespace)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server rejected the credentials: log in again, or choose another context with --context: %w", err)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("interrupted: %w", err)
	case unavailable(err):
		return fmt.Errorf("the API server does not answer: check the server of the kubeconfig and the network, then try again: %w", err)
	}
	return err
}

// explainWrite is explain for the error of a write, which may have succeeded.
func (p target) explainWrite(name string, err error) error {
	explained := p.explain(name, err)
	if unavailable(err) {
		return fmt.Errorf("%w\nThe API server may have accepted the request", explained)
	}
	return explained
}

// addContextsFlag adds the flag that shows several contexts at once. It is not the flag --context of kubectl, which names one context, even one
// that is called all.
func addContextsFlag(command *cobra.Command) *string {
	return command.Flags().String("contexts", "", "contexts of the kubeconfig to show at once: names with commas between them, or all")
}

// sites returns the clusters of the contexts that the flag --contexts names, or the one of the flags of kubectl if it is "".
func (c *cli) sites(command *cobra.Command, contexts string, allNamespaces bool) ([]sites.Site, error) {
	list, skipped, err := sites.Select(command.Flags(), c.flags, contexts, allNamespaces, func(flags *genericclioptions.ConfigFlags, several bool) (kube.Clients, string, error) {
		p, err := c.connectWith(flags, several)
		return p.Clients, p.namespace, err
	})
	if err != nil && contexts != "" {
		return nil, exit.With(exit.Usage, err)
	}
	for _, name := range skipped {
		fmt.Fprintln(c.stderr, output.OneLine("Context "+name+" is left out: another one shows the same namespace of the same cluster."))
	}
	return list, err
}

// unanswered returns an error if a site did not answer or has objects that cannot be decoded, after all others were shown. It prints
// what else could not be read.
func (c *cli) unanswered(list []sites.Answer) error {
	notes, silent, rejected := sites.Gaps(list)
	for _, note := range notes {
		fmt.Fprintln(c.stderr, note)
	}
	var undecodable []error
	for _, a := range list {
		for _, u := range a.Undecodable {
			undecodable = append(undecodable, u)
		}
	}
	switch {
	case silent == 0:
		return errors.Join(undecodable...)
	case rejected:
		return exit.Errorf(exit.Forbidden, "%s rejected your credentials: what the gateways there run is not known", output.Count(silent, "site"))
	}
	return exit.Errorf(exit.Retry, "%s did not answer: what the gateways there run is not known", output.Count(silent, "site"))
}
