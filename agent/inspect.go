package main

import (
	"errors"
	"flag"
	"fmt"
	"io"

	"stoker.io/stoker/agent/disk"
)

// inspection is a subcommand that reads what the agent keeps in a data directory. It works beside a running agent.
type inspection struct {
	name, usage string
	verbs       []verb
	run         func(d *disk.Dir, in inspected) error
}

// verb is a verb of an inspection, with the least and the most number of its arguments.
type verb struct {
	name        string
	least, most int
}

// inspected is the command line of an inspection.
type inspected struct {
	verb   string
	args   []string
	format string // table or json
	stdout io.Writer
}

// main parses a command line, runs it and returns the exit code. Flags may stand before and after the arguments of the verb.
func (i inspection) main(args []string, stdout, stderr io.Writer) int {
	f := flag.NewFlagSet(i.name, flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() { fmt.Fprint(stderr, i.usage) }
	dataDir := f.String("data-dir", "", "Ignition's data directory")
	in := inspected{stdout: stdout}
	f.StringVar(&in.format, "o", "table", "table or json")
	if len(args) > 0 {
		in.verb, args = args[0], args[1:]
	}
	if in.verb == "-h" || in.verb == "--help" || in.verb == "help" {
		f.Usage()
		return exitDone
	}
	for {
		if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
			return exitDone
		} else if err != nil {
			return exitUsage
		}
		if args = f.Args(); len(args) == 0 {
			break
		}
		in.args, args = append(in.args, args[0]), args[1:]
	}
	if !i.takes(in) || *dataDir == "" || in.format != "table" && in.format != "json" {
		f.Usage()
		return exitUsage
	}
	d, err := disk.Open(*dataDir, disk.Options{ReadOnly: true, AllowUnseeded: true})
	if err == nil {
		err = errors.Join(i.run(d, in), d.Close())
	}
	if err != nil {
		fmt.Fprintf(stderr, "agent: %v\n", err)
		return exitFailed
	}
	return exitDone
}

// takes reports whether the verb exists and takes so many arguments.
func (i inspection) takes(in inspected) bool {
	for _, v := range i.verbs {
		if v.name == in.verb {
			return len(in.args) >= v.least && len(in.args) <= v.most
		}
	}
	return false
}
