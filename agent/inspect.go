package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/internal/daemon"
)

// inspection is a subcommand that reads what the agent keeps in a data directory. It works beside a running agent, and in its container without
// flags for directories.
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
	// dataDir is the data directory, and repoDir the cache of git objects.
	dataDir, repoDir string
}

// execute parses a command line, runs it and returns the exit code. Flags may come before and after the verb and its arguments, and none after
// --. In a pod, the directories are those of the environment.
func (i inspection) execute(args, env []string, stdout, stderr io.Writer) int {
	var pod environment
	if isSidecar(env) {
		_ = pod.read(env) // only the agent needs all variables
		pod.RepoPath = filepath.Join(pod.RepoPath, "objects")
	}
	f := flag.NewFlagSet(i.name, flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() { fmt.Fprint(stderr, i.usage) }
	in := invocation{stdout: stdout}
	f.StringVar(&in.dataDir, "data-dir", pod.DataPath, "Ignition's data directory")
	f.StringVar(&in.repoDir, "repo-dir", pod.RepoPath, "the agent's cache of git objects")
	f.StringVar(&in.format, "o", "table", "table or json")
	for {
		if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
			return daemon.ExitDone
		} else if err != nil {
			return daemon.ExitUsage
		}
		if parsed := len(args) - f.NArg(); parsed > 0 && args[parsed-1] == "--" {
			in.args = append(in.args, f.Args()...)
			break
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
	if problem := i.problem(in); problem != "" {
		fmt.Fprintf(stderr, "agent: %s\n\n", problem)
		f.Usage()
		return daemon.ExitUsage
	}
	d, err := disk.Open(in.dataDir, disk.Options{ReadOnly: true, AllowUnseeded: true})
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
func (i inspection) problem(in invocation) string {
	at := slices.IndexFunc(i.verbs, func(v verb) bool { return v.name == in.verb })
	switch {
	case at < 0:
		return fmt.Sprintf("%s has no verb %q", i.name, in.verb)
	case len(in.args) < i.verbs[at].minArgs || len(in.args) > i.verbs[at].maxArgs:
		return fmt.Sprintf("%s %s does not take %d arguments", i.name, in.verb, len(in.args))
	case in.dataDir == "":
		return "--data-dir is required"
	case in.format != "table" && in.format != "json":
		return "-o must be table or json"
	}
	return ""
}

func (in invocation) printJSON(v any) error {
	e := json.NewEncoder(in.stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
