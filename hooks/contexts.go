package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/hooks/sites"
	"stoker.io/stoker/internal/kube"
)

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
