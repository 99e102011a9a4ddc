package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/internal/daemon"
)

// inspection is a subcommand that reads what the agent keeps in a data directory. It works beside a running agent.
type inspection struct {
	name, usage string
	verbs       []verb
	run         func(d *disk.Dir, in invocation) error
}

// verb is a verb of an inspection, with the number of arguments that it takes.
type verb struct {
	name             string
	minArgs, maxArgs int
}

// invocation is the command line of an inspection.
type invocation struct {
	verb   string
	args   []string // of the verb
	format string   // table or json
	stdout io.Writer
}

// execute parses a command line, runs it and returns the exit code. Flags may come before and after the verb and its arguments.
func (i inspection) execute(args []string, stdout, stderr io.Writer) int {
	f := flag.NewFlagSet(i.name, flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() { fmt.Fprint(stderr, i.usage) }
	dataDir := f.String("data-dir", "", "Ignition's data directory")
	in := invocation{stdout: stdout}
	f.StringVar(&in.format, "o", "table", "table or json")
	for {
		if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
			return daemon.ExitDone
		} else if err != nil {
			return daemon.ExitUsage
		}
		if f.NArg() == 0 {
			break
		}
		in.args, args = append(in.args, f.Arg(0)), f.Args()[1:] // Parse stops at each argument
	}
	if len(in.args) > 0 {
		in.verb, in.args = in.args[0], in.args[1:]
	}
	if in.verb == "help" {
		f.Usage()
		return daemon.ExitDone
	}
	if problem := i.problem(in, *dataDir); problem != "" {
		fmt.Fprintf(stderr, "agent: %s\n\n", problem)
		f.Usage()
		return daemon.ExitUsage
	}
	d, err := disk.Open(*dataDir, disk.Options{ReadOnly: true, AllowUnseeded: true})
	if err == nil {
		err = errors.Join(i.run(d, in), d.Close())
	}
	if err != nil {
		fmt.Fprintf(stderr, "agent: %v\n", err)
		return daemon.ExitFailed
	}
	return daemon.ExitDone
}

// problem returns what is wrong with a command line, or "".
func (i inspection) problem(in invocation, dataDir string) string {
	at := slices.IndexFunc(i.verbs, func(v verb) bool { return v.name == in.verb })
	switch {
	case at < 0:
		return fmt.Sprintf("%s has no verb %q", i.name, in.verb)
	case len(in.args) < i.verbs[at].minArgs || len(in.args) > i.verbs[at].maxArgs:
		return fmt.Sprintf("%s %s does not take %d arguments", i.name, in.verb, len(in.args))
	case dataDir == "":
		return "--data-dir is required"
	case in.format != "table" && in.format != "json":
		return "-o must be table or json"
	}
	return ""
}

// printJSON writes v to standard output.
func (in invocation) printJSON(v any) error {
	e := json.NewEncoder(in.stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
