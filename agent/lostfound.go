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
)

const lostUsage = `agent lost-and-found shows what syncs replaced or deleted on a gateway and git does not have.

  agent lost-and-found list    --data-dir DIR [-o table|json]
  agent lost-and-found show    --data-dir DIR ENTRY            writes the file to standard output
  agent lost-and-found restore --data-dir DIR ENTRY [ENTRY …]  puts files back to where they came from

An ENTRY is its number in the list, or its FILE there (numbers move when old entries go).
A restored file counts as changed on the gateway: it is reported as drift, and the next commit that changes it wins
again, so bring it to git, or set conflictPolicy. It works beside a running agent.
`

// lostAndFound runs the subcommand and returns the exit code.
func lostAndFound(args []string, stdout, stderr io.Writer) int {
	f := flag.NewFlagSet("lost-and-found", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() { fmt.Fprint(stderr, lostUsage) }
	dataDir := f.String("data-dir", "", "Ignition's data directory")
	format := f.String("o", "table", "table or json")
	if len(args) == 0 {
		f.Usage()
		return exitUsage
	}
	verb, names := args[0], args[1:]
	// Flags may stand before and after the entries.
	var entries []string
	for {
		if err := f.Parse(names); errors.Is(err, flag.ErrHelp) {
			return exitDone
		} else if err != nil {
			return exitUsage
		}
		if names = f.Args(); len(names) == 0 {
			break
		}
		entries, names = append(entries, names[0]), names[1:]
	}
	wants := map[string]bool{"list": len(entries) == 0, "show": len(entries) == 1, "restore": len(entries) > 0}
	if verb == "-h" || verb == "--help" || verb == "help" {
		f.Usage()
		return exitDone
	}
	if !wants[verb] || *dataDir == "" || *format != "table" && *format != "json" {
		f.Usage()
		return exitUsage
	}
	if err := runLost(verb, *dataDir, *format, entries, stdout); err != nil {
		fmt.Fprintf(stderr, "agent: %v\n", err)
		return exitFailed
	}
	return exitDone
}

func runLost(verb, dataDir, format string, entries []string, stdout io.Writer) (err error) {
	d, err := disk.Open(dataDir, disk.Options{ReadOnly: true, AllowUnseeded: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	list, err := d.LostAndFound()
	if err != nil {
		return err
	}
	if verb == "list" {
		return printLost(list, format, stdout)
	}
	for _, name := range entries {
		l, err := findLost(list, name)
		if err != nil {
			return err
		}
		if verb == "restore" {
			if err := d.Restore(l); errors.Is(err, disk.ErrUnsaved) {
				return fmt.Errorf("%w: keep it (copy it elsewhere, or bring it to git), remove it, and try again", err)
			} else if err != nil {
				return err
			}
			fmt.Fprintf(stdout, "restored %s\n", l.Path)
			continue
		}
		if err := showLost(d, l, stdout); err != nil {
			return err
		}
	}
	return nil
}

func showLost(d *disk.Dir, l disk.Lost, stdout io.Writer) error {
	r, err := d.OpenLost(l)
	if err != nil {
		return err
	}
	_, err = io.Copy(stdout, r)
	return errors.Join(err, r.Close())
}

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

func printLost(list []disk.Lost, format string, stdout io.Writer) error {
	if format == "json" {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(append([]disk.Lost{}, list...))
	}
	if len(list) == 0 {
		fmt.Fprintln(stdout, "lost+found is empty")
		return nil
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "N\tWHEN\tBYTES\tPATH\tWHY")
	for i, l := range list {
		fmt.Fprintf(w, "%d\t%s\t%d\t%q\t%s\n", i+1, l.When.UTC().Format("2006-01-02 15:04:05Z"), l.Size, l.Path, l.Why)
	}
	return w.Flush()
}
