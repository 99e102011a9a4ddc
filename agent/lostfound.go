package main

import (
	"errors"
	"fmt"
	"io"
	"math"
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

// findLost returns the entry with a number in the list, or with a name of a file.
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
