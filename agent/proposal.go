package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/propose"
)

const proposalUsage = `agent proposal shows what the agent has proposed of the changes made on a gateway, as it has recorded it.

  agent proposal show --data-dir DIR [-o table|json]

It asks neither the git server nor the forge, and works beside a running agent. To propose again from today's commit, set the
annotation stoker.io/propose, or run "stoker proposals NAME --renew GATEWAY".
`

// proposal runs the subcommand and returns the exit code.
func proposal(args []string, stdout, stderr io.Writer) int {
	return inspect("proposal", "show", proposalUsage, args, stdout, stderr, showProposal)
}

// inspect runs a subcommand with one verb that reads a data directory and prints it in a format. It returns the exit code.
func inspect(name, only, usage string, args []string, stdout, stderr io.Writer, show func(dataDir, format string, w io.Writer) error) int {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() { fmt.Fprint(stderr, usage) }
	dataDir := f.String("data-dir", "", "Ignition's data directory")
	format := f.String("o", "table", "table or json")
	verb := ""
	if len(args) > 0 {
		verb, args = args[0], args[1:]
	}
	if verb == "-h" || verb == "--help" || verb == "help" {
		f.Usage()
		return exitDone
	}
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return exitDone
	} else if err != nil {
		return exitUsage
	}
	if verb != only || f.NArg() > 0 || *dataDir == "" || *format != "table" && *format != "json" {
		f.Usage()
		return exitUsage
	}
	if err := show(*dataDir, *format, stdout); err != nil {
		fmt.Fprintf(stderr, "agent: %v\n", err)
		return exitFailed
	}
	return exitDone
}

// plain returns text as it is if a terminal can show it, and quoted if not.
func plain(s string) string {
	if q := strconv.Quote(s); q != `"`+s+`"` {
		return q
	}
	return s
}

func showProposal(dataDir, format string, stdout io.Writer) (err error) {
	d, err := disk.Open(dataDir, disk.Options{ReadOnly: true, AllowUnseeded: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	r, err := propose.Recorded(d)
	if err != nil {
		return err
	}
	if format == "json" {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	if r.State == "" {
		fmt.Fprintln(stdout, "Nothing has been proposed.")
		return nil
	}
	t := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "STATE\t%s\n", r.State)
	for _, line := range [][2]string{{"BRANCH", r.Branch}, {"COMMIT", r.Commit}, {"PULL REQUEST", r.URL}, {"MESSAGE", r.Message}} {
		if line[1] != "" {
			fmt.Fprintf(t, "%s\t%s\n", line[0], plain(line[1]))
		}
	}
	if len(r.Changes) > 0 {
		fmt.Fprint(t, "\nWHAT\tFILE\tIN GIT\n")
	}
	for _, c := range r.Changes {
		fmt.Fprintf(t, "%s\t%s\t%s\n", plain(string(c.Op)), plain(c.Path), plain(string(c.Source)))
	}
	return t.Flush()
}
