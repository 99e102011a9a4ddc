package main

import (
	"fmt"
	"strconv"
	"text/tabwriter"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/propose"
)

const proposalUsage = `agent proposal shows what the agent has proposed of the changes made on a gateway, as it has recorded it.

  agent proposal show --data-dir DIR [-o table|json]

It asks neither the git server nor the forge, and works beside a running agent. To propose again from today's commit, set the
annotation stoker.io/propose of the GatewaySync. "stoker proposals --help" shows the command for it in a cluster.
`

func proposal() inspection {
	return inspection{"proposal", proposalUsage, []verb{{"show", 0, 0}}, showProposal}
}

// printable returns s, quoted if it has characters that a terminal may interpret.
func printable(s string) string {
	if q := strconv.Quote(s); q != `"`+s+`"` {
		return q
	}
	return s
}

func showProposal(d *disk.Dir, in invocation) error {
	r, err := propose.LoadSummary(d)
	if err != nil {
		return err
	}
	if in.format == "json" {
		return in.printJSON(r)
	}
	if r.State == "" {
		fmt.Fprintln(in.stdout, "Nothing has been proposed.")
		return nil
	}
	t := tabwriter.NewWriter(in.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "STATE\t%s\n", r.State)
	for _, line := range [][2]string{{"BRANCH", r.Branch}, {"COMMIT", r.Commit}, {"PULL REQUEST", r.URL}, {"MESSAGE", r.Message}} {
		if line[1] != "" {
			fmt.Fprintf(t, "%s\t%s\n", line[0], printable(line[1]))
		}
	}
	if len(r.Changes) > 0 {
		fmt.Fprint(t, "\nWHAT\tFILE\tIN GIT\n")
	}
	for _, c := range r.Changes {
		fmt.Fprintf(t, "%s\t%s\t%s\n", printable(string(c.Op)), printable(c.Path), printable(string(c.Source)))
	}
	return t.Flush()
}
