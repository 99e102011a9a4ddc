package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/display"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/hooks/sites"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
)

// statusInterval is how often --watch reads the status.
const statusInterval = time.Second

type statusFlags struct {
	watch, behind, all   bool
	contexts, by, format string
}

func newStatusCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "status [NAME]",
		Short: "Show the state of each gateway, or of each fleet",
		Long: `Show the state of each gateway, or of each fleet.

With NAME, the output first says how many gateways are behind for which reason, and what happens next; the table starts with them. As JSON or
YAML, it is the result that wait returns: phase, ref, commit, numbers of gateways, and unfinished gateways. Without NAME, the command lists
all GatewaySyncs and ConfigSyncs.

With --watch, the command shows the table until you stop it with Ctrl-C, or, if its output is not a terminal, prints a line for each
change. Set NO_COLOR for a table without colors.

With --contexts, it asks several clusters at once, each with the rights of its context. A cluster that does not answer within 10 seconds, or
that rejects the credentials, has a row of its own, and the exit code is 7 or 5. With --by commit, the table shows which gateways run which commit.`,
		Example: `  stoker status line
  stoker status line --watch
  stoker status line -o json

  # all gateways of all clusters, by commit
  stoker status -A --contexts all --by commit`,
		Args: cobra.MaximumNArgs(1),
	}
	var f statusFlags
	command.Flags().BoolVarP(&f.watch, "watch", "w", false, "show changes until the command is stopped")
	command.Flags().BoolVar(&f.behind, "behind", false, "leave out gateways that run the commit")
	command.Flags().BoolVarP(&f.all, "all-namespaces", "A", false, "show all namespaces")
	command.Flags().StringVar(&f.by, "by", "", "commit: show which gateways run which commit")
	contexts, format := addContextsFlag(command), output.AddFlag(command.Flags())
	command.RunE = func(command *cobra.Command, args []string) error {
		f.contexts, f.format = *contexts, *format
		one := len(args) == 1 && !f.all && f.contexts == "" && f.by == ""
		switch {
		case f.by != "" && f.by != "commit":
			return exit.Errorf(exit.Usage, "unknown --by %.40q: use commit", f.by)
		case f.behind && (len(args) == 0 || f.by != ""):
			return exit.Errorf(exit.Usage, "--behind leaves out gateways of one GatewaySync: use NAME, and leave out --by")
		case f.watch && !one:
			return exit.Errorf(exit.Usage, "--watch shows one GatewaySync of one context: use NAME, and leave out --contexts, --by and --all-namespaces")
		case f.watch && f.format != output.Table:
			return exit.Errorf(exit.Usage, "--watch shows a table: leave out --output")
		case one:
			return c.statusOf(command.Context(), args[0], f)
		}
		return c.statusOfSites(command, append(args, "")[0], f)
	}
	return command
}

// statusOf shows the state of one GatewaySync.
func (c *cli) statusOf(ctx context.Context, name string, f statusFlags) error {
	p, err := c.connect()
	if err != nil {
		return err
	}
	if f.watch {
		return c.watchStatus(ctx, p, name, f.behind)
	}
	gs, err := p.load(ctx, name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	v, err := request.ReadWithLock(ctx, p.Clients, gs, "")
	if err != nil {
		fmt.Fprintln(c.stderr, output.Clean(err.Error()))
	}
	r := output.Result{Data: v, Names: []string{display.ResourceName(gs)}, Text: func(w io.Writer) { display.Describe(w, gs, v, *c.flags.Context, f.behind) }}
	return r.Print(c.stdout, f.format)
}

// statusOfSites shows the GatewaySyncs of one or several clusters, only those called name unless it is "".
func (c *cli) statusOfSites(command *cobra.Command, name string, f statusFlags) error {
	list, err := c.sites(command, f.contexts, f.all)
	if err != nil {
		return err
	}
	several := len(list) > 1
	answers := sites.Read(command.Context(), list)
	if a := answers[0]; !several && a.Err != nil {
		return target{Clients: a.Clients, namespace: a.Namespace, kind: kube.GatewaySync, role: "stoker-view"}.explain("", a.Err)
	}
	objects := 0
	for i := range answers {
		if name != "" {
			answers[i] = answers[i].Named(name)
		}
		objects += len(answers[i].Fleets) + len(answers[i].ConfigSyncs) + len(answers[i].Undecodable)
	}
	r := display.SitesBy(f.by, name, answers, f.all, f.behind)
	if objects == 0 && name == "" && f.format == output.Table {
		fmt.Fprintln(c.stderr, "No GatewaySync or ConfigSync was found.")
	}
	if objects > 0 || several || f.format != output.Table {
		if err := r.Print(c.stdout, f.format); err != nil {
			return err
		}
	}
	if err := c.unanswered(answers); err != nil || name == "" || objects > 0 {
		return err
	}
	return fmt.Errorf("there is no GatewaySync %s: list all with 'stoker status -A'", name)
}

// watchStatus shows a GatewaySync until ctx is done. It fails only for errors that a retry does not fix, and prints each other
// error when it begins.
func (c *cli) watchStatus(ctx context.Context, p target, name string, behind bool) error {
	viewer := display.NewViewer(c.stdout, c.env, *c.flags.Context, behind)
	failing := false
	for {
		gs, v, err := p.loadVerdict(ctx, name)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the user ended it
		case gs == nil && !unavailable(err) && !errors.Is(err, context.DeadlineExceeded), apierrors.IsNotFound(err):
			return p.explain(name, err)
		case err != nil && !failing:
			fmt.Fprintln(c.stderr, output.Clean(err.Error())+"; trying again")
		}
		failing = err != nil
		if gs != nil {
			viewer.Show(gs, v)
		}
		if !backoff.Wait(ctx, statusInterval) {
			return nil
		}
	}
}

// loadVerdict reads a GatewaySync once, and the verdict on it. If only its SyncTarget cannot be read, it returns both with an
// error.
func (p target) loadVerdict(ctx context.Context, name string) (*v1alpha1.GatewaySync, request.Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	gs, err := p.get(ctx, name)
	if err != nil {
		return gs, request.Verdict{}, err
	}
	v, err := request.ReadWithLock(ctx, p.Clients, gs, "")
	return gs, v, err
}

func newGetCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "get [NAME]",
		Short: "List GatewaySyncs with their refs and gateways",
		Example: `  stoker get
  stoker get -A
  stoker get line -o yaml`,
		Args: cobra.MaximumNArgs(1),
	}
	all := command.Flags().BoolP("all-namespaces", "A", false, "list the GatewaySyncs of all namespaces")
	format := output.AddFlag(command.Flags())
	command.RunE = func(command *cobra.Command, args []string) error {
		if *all && len(args) > 0 {
			return exit.Errorf(exit.Usage, "NAME and --all-namespaces cannot be used together")
		}
		p, err := c.connect()
		if err != nil {
			return err
		}
		if len(args) > 0 {
			gs, err := p.load(command.Context(), args[0])
			if err != nil {
				return err
			}
			return c.printList(command.Context(), p, []*v1alpha1.GatewaySync{gs}, display.BareObject(gs), *format)
		}
		if *all {
			p.namespace = ""
		}
		list, undecodable, err := list(command.Context(), p)
		if err != nil {
			return err
		}
		if len(list) == 0 && *format == output.Table {
			if undecodable != nil {
				return undecodable
			}
			where := "namespace " + p.namespace
			if *all {
				where = "any namespace"
			}
			fmt.Fprintf(c.stderr, "No GatewaySync in %s.\n", where)
			return nil
		}
		items := make([]any, len(list))
		for i, gs := range list {
			items[i] = display.BareObject(gs)
		}
		return errors.Join(c.printList(command.Context(), p, list, display.ListObject(items), *format), undecodable)
	}
	return command
}

// list returns all GatewaySyncs of a namespace. undecodable joins the errors of those that cannot be decoded.
func list(ctx context.Context, p target) (list []*v1alpha1.GatewaySync, undecodable, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	list, bad, err := kube.GatewaySyncs(p.Dynamic, p.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, p.explain("", err)
	}
	for _, u := range bad {
		undecodable = errors.Join(undecodable, u)
	}
	return list, undecodable, nil
}

// printList prints GatewaySyncs as a table, or data in another format.
func (c *cli) printList(ctx context.Context, p target, list []*v1alpha1.GatewaySync, data any, format string) error {
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	l := sites.ReadLeads(ctx, p.Dynamic, p.namespace)
	if l.Err != nil {
		fmt.Fprintln(c.stderr, output.Clean(sites.LeadsUnread()+": "+l.Err.Error()))
	}
	return display.List(list, l, p.Now(), p.namespace == "", data).Print(c.stdout, format)
}
