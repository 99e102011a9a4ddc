package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/propose"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/textdiff"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/daemon"
)

// inspection is a subcommand that shows, or puts back, what the agent keeps in a data directory. It works beside a running agent. In the
// agent's container it needs no flags for directories.
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

// execute parses a command line, runs it and returns the exit code. Flags may come before and after the verb and its arguments, but not after
// --. In a pod, the environment has the directories.
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

const lostUsage = `agent lost-and-found shows what syncs replaced or deleted on a gateway and git does not have.

  agent lost-and-found list    --data-dir DIR [-o table|json]
  agent lost-and-found show    --data-dir DIR ENTRY            writes the file to standard output
  agent lost-and-found restore --data-dir DIR ENTRY [ENTRY …]  puts files back to where they came from

An ENTRY is its number in the list, or its FILE there (numbers move when old entries go).
A restored file counts as changed on the gateway: it is reported as drift, and the next commit that changes it wins
again, so bring it to git, or set conflictPolicy. It works beside a running agent.
`

func lostAndFound() inspection {
	return inspection{"lost-and-found", lostUsage, []verb{{"list", 0, 0}, {"show", 1, 1}, {"restore", 1, math.MaxInt}}, runLost}
}

func runLost(d *disk.Dir, in invocation) error {
	list, err := d.LostAndFound()
	if err != nil {
		return err
	}
	if in.verb == "list" {
		return printLost(list, in)
	}
	for _, name := range in.args {
		l, err := findLost(list, name)
		if err != nil {
			return err
		}
		do := showLost
		if in.verb == "restore" {
			do = restoreLost
		}
		if err := do(d, l, in.stdout); err != nil {
			return err
		}
	}
	return nil
}

func restoreLost(d *disk.Dir, l disk.Lost, stdout io.Writer) error {
	err := d.RestoreLost(l)
	switch {
	case errors.Is(err, disk.ErrUnsaved):
		return fmt.Errorf("%w: keep it (copy it elsewhere, or bring it to git), remove it, and try again", err)
	case err == nil:
		fmt.Fprintf(stdout, "restored %s\n", l.Path)
	}
	return err
}

func showLost(d *disk.Dir, l disk.Lost, stdout io.Writer) error {
	r, err := d.OpenLost(l)
	if err != nil {
		return err
	}
	_, err = io.Copy(stdout, r)
	return errors.Join(err, r.Close())
}

// findLost returns the entry with this number in the list, or with this file name.
func findLost(list []disk.Lost, name string) (disk.Lost, error) {
	if n, err := strconv.Atoi(name); err == nil {
		if n < 1 || n > len(list) {
			return disk.Lost{}, fmt.Errorf("lost+found has no entry %d: it has %d", n, len(list))
		}
		return list[n-1], nil
	}
	for _, l := range list {
		if l.File == name {
			return l, nil
		}
	}
	return disk.Lost{}, fmt.Errorf("lost+found has no entry %q: see agent lost-and-found list", name)
}

func printLost(list []disk.Lost, in invocation) error {
	if in.format == "json" {
		return in.printJSON(append([]disk.Lost{}, list...)) // [] and not null for an empty list
	}
	if len(list) == 0 {
		fmt.Fprintln(in.stdout, "lost+found is empty")
		return nil
	}
	w := tabwriter.NewWriter(in.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "N\tWHEN\tBYTES\tPATH\tWHY")
	for i, l := range list {
		fmt.Fprintf(w, "%d\t%s\t%d\t%q\t%s\n", i+1, l.When.UTC().Format("2006-01-02 15:04:05Z"), l.Size, l.Path, l.Reason)
	}
	return w.Flush()
}

const snapshotsUsage = `agent snapshots shows what syncs replaced or deleted on a gateway and keep for a restore (spec.snapshots).

  agent snapshots list   --data-dir DIR [-o table|json]
  agent snapshots export --data-dir DIR SNAPSHOT         writes the files as they were before its sync to standard output, as a .tar.gz

COMMIT is what the gateway ran before the sync, and SYNCED what the sync brought. BACKUP shows whether a backup of the whole gateway with
the same id is in .stoker/backups. It works beside a running agent.

An export has the files that the agent owned, and those that syncs have replaced since: use it to take single files or projects out of a
snapshot. To restore a whole snapshot, set spec.rollback.toSnapshot or the annotation stoker.io/restore of the GatewaySync to its id.
"stoker snapshots --help" shows the command for it in a cluster.
`

// snapshots returns the subcommand. Canceling ctx ends an export.
func snapshots(ctx context.Context) inspection {
	return inspection{"snapshots", snapshotsUsage, []verb{{"list", 0, 0}, {"export", 1, 1}}, func(d *disk.Dir, in invocation) error {
		if in.verb == "export" {
			return exportSnapshot(ctx, d, in)
		}
		return listSnapshots(d, in)
	}}
}

func exportSnapshot(ctx context.Context, d *disk.Dir, in invocation) error {
	c, err := d.Contents(in.args[0], nil)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no snapshot %q: see agent snapshots list", in.args[0])
	}
	if err != nil {
		return err
	}
	err = archive.Write(ctx, in.stdout, c)
	if errors.Is(err, disk.ErrChanged) {
		err = fmt.Errorf("%w: the export is not complete, try again", err)
	}
	return errors.Join(err, c.Close())
}

func listSnapshots(d *disk.Dir, in invocation) error {
	list, err := d.ListSnapshots()
	if err != nil {
		return err
	}
	if in.format == "json" {
		return in.printJSON(append([]disk.Snapshot{}, list...)) // [] and not null for an empty list
	}
	if len(list) == 0 {
		fmt.Fprintln(in.stdout, "There are no snapshots.")
		return nil
	}
	t := tabwriter.NewWriter(in.stdout, 0, 0, 2, ' ', 0)
	head, backup := "SNAPSHOT\tCOMMIT\tSYNCED\tFILES\tSIZE", map[bool]string{}
	if slices.ContainsFunc(list, func(s disk.Snapshot) bool { return s.Backup }) {
		head, backup = head+"\tBACKUP", map[bool]string{true: "\tyes", false: "\t-"}
	}
	fmt.Fprintln(t, head)
	for _, s := range list {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s%s\n", s.ID, s.Commit.Short(), s.To.Short(), s.Files, syntax.SizeText(s.Bytes), backup[s.Backup])
	}
	return t.Flush()
}

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
	fmt.Fprintf(t, "STATE\t%s\n", printable(string(r.State)))
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

const textDiffUsage = `agent text-diff prints the text of changed files as a unified diff. It works beside a running agent, and reads only.

  agent text-diff drift --data-dir DIR [--repo-dir DIR] PATH [PATH …]     what was changed on the gateway: git's content and the file now
  agent text-diff sync  --data-dir DIR [--repo-dir DIR] ID   [PATH …]     what a sync changed; ID is the field diff of its audit record

--repo-dir is the agent's cache of git objects. In the agent's container, both directories are known. Write -- before a PATH that begins with -.

A file that is binary, has secrets or more than 512 KiB or 10,000 lines, or whose content the cache does not have, has one line with the
reason instead, and the exit code is 0. At most 100 files and 1 MiB are printed.
`

const (
	textDiffTime = 4 * time.Second // ends before a page of "stoker ui" stops waiting
	// textDiffDelta is the size in bytes of the largest delta that is read, because the container's memory is for the agent.
	textDiffDelta = 8 << 20
)

// textDiff returns the subcommand. It ends early when ctx is canceled.
func textDiff(ctx context.Context) inspection {
	return inspection{"text-diff", textDiffUsage, []verb{{"drift", 1, math.MaxInt}, {"sync", 1, math.MaxInt}}, func(d *disk.Dir, in invocation) error {
		ctx, cancel := context.WithTimeout(ctx, textDiffTime)
		defer cancel()
		s := settings{DataDir: in.dataDir, RepoDir: in.repoDir}
		dir, err := s.repoDir()
		if err != nil {
			return err
		}
		objects, err := repo.OpenReadOnly(ctx, dir, repo.Limits{DeltaBytes: textDiffDelta})
		if err != nil {
			return fmt.Errorf("the cache of git objects: %w", err)
		}
		defer objects.Close()
		if in.verb == "drift" {
			return textdiff.Drift(ctx, in.stdout, d, objects, in.args)
		}
		report, err := readReport(in.dataDir, in.args[0])
		if err != nil {
			return err
		}
		return textdiff.Sync(ctx, in.stdout, report, objects, in.args[1:])
	}}
}

// readReport returns the report of what a sync changed.
func readReport(dataDir, id string) (report audit.Diff, err error) {
	raw, err := disk.ReadDiff(dataDir, id)
	switch {
	case err != nil:
		return report, err
	case raw == nil:
		return report, fmt.Errorf("there is no report %.300q: the last ten are kept", id)
	}
	if err := json.Unmarshal(raw, &report); err != nil || report.Schema < 1 {
		return report, errors.Join(fmt.Errorf("the report %.300q is not one of the agent", id), err)
	}
	return report, nil
}
