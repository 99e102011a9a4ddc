package main

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"

	"github.com/spf13/cobra"

	"stoker.io/stoker/hooks/browser"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/hooks/sites"
	"stoker.io/stoker/hooks/ui"
	"stoker.io/stoker/internal/serve"
)

type uiFlags struct {
	all, open bool
	port      uint16
	sites     []sites.Site
}

func newUICommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "ui [NAME]",
		Short: "Show the gateways in a browser",
		Long: `Show the gateways in a browser.

The command serves a read-only page on 127.0.0.1 until you press Ctrl-C. With NAME it opens at that GatewaySync. The page has the
rights of your kubeconfig, and the printed address contains a token that opens one browser; then the command prints the address for
another one.

The page needs the right to list and watch GatewaySyncs. For plans, changed files and past syncs, it asks the agents through the API
server and needs the right to get pods and pods/proxy. It never reads a Secret.

With --contexts it shows several clusters, each with the rights of its context, and which of them do not answer.`,
		Example: `  stoker ui --open

  # all namespaces, at an address that stays the same
  stoker ui -A --port 8090

  # all clusters of the kubeconfig
  stoker ui -A --contexts all`,
		Args: cobra.MaximumNArgs(1),
	}
	var f uiFlags
	command.Flags().BoolVarP(&f.all, "all-namespaces", "A", false, "show the GatewaySyncs of all namespaces")
	command.Flags().BoolVar(&f.open, "open", false, "open the page in the browser")
	command.Flags().Uint16Var(&f.port, "port", 0, "port on 127.0.0.1; 0 picks a free one")
	contexts := addContextsFlag(command)
	command.RunE = func(command *cobra.Command, args []string) (err error) {
		name := append(args, "")[0]
		if name != "" && *contexts != "" {
			return exit.Errorf(exit.Usage, "NAME and --contexts cannot be used together: the page shows all GatewaySyncs")
		}
		if f.sites, err = c.sites(command, *contexts, f.all); err != nil {
			return err
		}
		return c.serveUI(command.Context(), name, f)
	}
	return command
}

// serveUI serves the page until ctx is done.
func (c *cli) serveUI(ctx context.Context, name string, f uiFlags) error {
	path := "/"
	if name != "" {
		p, err := c.connect()
		if err != nil {
			return err
		}
		if _, err := p.load(ctx, name); err != nil {
			return err
		}
		path = ui.PathOf(p.namespace, name)
	}
	o := ui.Options{Sites: f.sites, Version: version, Manual: documentationURL}
	opened := make(chan struct{}, 1)
	o.Opened = func() {
		select {
		case opened <- struct{}{}:
		default: // an earlier signal is still pending
		}
	}
	page, err := ui.New(o)
	if err != nil {
		return err
	}
	server, err := serve.Listen(ctx, net.JoinHostPort("127.0.0.1", strconv.Itoa(int(f.port))), page)
	if err != nil {
		return fmt.Errorf("%w; choose another port with --port", err)
	}
	fmt.Fprintln(c.stderr, "Open this address in a browser on this machine. Ctrl-C ends the page.")
	fmt.Fprintln(c.stdout, page.URL(server.Addr(), path))
	removeFile := func() {}
	if f.open {
		if removeFile, err = browser.Open(page.URL(server.Addr(), path)); err != nil {
			fmt.Fprintln(c.stderr, output.Clean(fmt.Sprintf("The browser could not be opened: %v", err)))
		}
	}
	defer removeFile()
	ctx, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { page.Run(ctx) })
	watch.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-opened:
				removeFile()
				fmt.Fprintln(c.stderr, "To open the page in another browser:", page.URL(server.Addr(), path))
			}
		}
	})
	err = server.Run(ctx)
	stop()
	watch.Wait()
	return err
}
