package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"text/tabwriter"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

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
