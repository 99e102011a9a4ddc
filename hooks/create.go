package main

import (
	"github.com/spf13/cobra"

	create "stoker.io/stoker/hooks/create/command"
)

// newCreateCommand returns the command that creates a GatewaySync and its Secrets.
func newCreateCommand(c *cli) *cobra.Command {
	root := create.New(&create.Env{
		Stdin: c.stdin, Stdout: c.stdout, Stderr: c.stderr, Interactive: c.interactive,
		Namespace: func() string { return *c.flags.Namespace },
		Connect: func() (create.Cluster, error) {
			p, err := c.connect()
			return create.Cluster{Clients: p.Clients, Namespace: p.namespace, Explain: p.explainWrite}, err
		},
	})
	for _, sub := range root.Commands() {
		explainCreate(sub, "GatewaySync")
		for _, secret := range sub.Commands() {
			explainCreate(secret, "Secret")
		}
	}
	return root
}

// explainCreate makes the errors of a command name the arguments and reasons. kind is the kind of the object that the first argument names.
func explainCreate(command *cobra.Command, kind string) {
	command.Args = explainArgs(command.Args, kind)
	run := command.RunE
	command.RunE = func(command *cobra.Command, args []string) error { return withReason(run(command, args)) }
}
