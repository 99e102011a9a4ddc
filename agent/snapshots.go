package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/api/v1alpha1"
)

const snapshotsUsage = `agent snapshots lists what syncs replaced or deleted on a gateway and keep for a restore (spec.snapshots).

  agent snapshots list --data-dir DIR [-o table|json]

COMMIT is what the gateway ran before the sync, and SYNCED what the sync brought. BACKUP shows whether a backup of the whole gateway with
the same id is in .stoker/backups. It works beside a running agent. To restore a
snapshot, set spec.rollback.toSnapshot or the annotation stoker.io/restore to its id, or run "stoker snapshots NAME --restore ID".
`

// snapshots runs the subcommand and returns the exit code.
func snapshots(args []string, stdout, stderr io.Writer) int {
	return inspect("snapshots", "list", snapshotsUsage, args, stdout, stderr, listSnapshots)
}

func listSnapshots(dataDir, format string, stdout io.Writer) (err error) {
	d, err := disk.Open(dataDir, disk.Options{ReadOnly: true, AllowUnseeded: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	list, err := d.ListSnapshots()
	if err != nil {
		return err
	}
	if format == "json" {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return e.Encode(append([]disk.Snapshot{}, list...))
	}
	if len(list) == 0 {
		fmt.Fprintln(stdout, "There are no snapshots.")
		return nil
	}
	t := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	backups := slices.ContainsFunc(list, func(s disk.Snapshot) bool { return s.Backup })
	head, end := "SNAPSHOT\tCOMMIT\tSYNCED\tFILES\tSIZE", map[bool]string{}
	if backups {
		head, end = head+"\tBACKUP", map[bool]string{true: "\tyes", false: "\t-"}
	}
	fmt.Fprintln(t, head)
	for _, s := range list {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s%s\n", s.ID, s.Commit.Short(), s.To.Short(), s.Files, v1alpha1.SizeText(s.Bytes), end[s.Backup])
	}
	return t.Flush()
}
