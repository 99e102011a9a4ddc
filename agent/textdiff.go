package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/textdiff"
)

const textDiffUsage = `agent text-diff prints the text of changed files as a unified diff. It works beside a running agent, and reads only.

  agent text-diff drift --data-dir DIR [--repo-dir DIR] PATH [PATH …]     what was changed on the gateway: git's content and the file now
  agent text-diff sync  --data-dir DIR [--repo-dir DIR] ID   [PATH …]     what a sync changed; ID is the field diff of its audit record

--repo-dir is the agent's cache of git objects. In the agent's container, both directories are known. Write -- before a PATH that begins with -.

A file that is binary, has secrets or more than 512 KiB or 10,000 lines, or whose content the cache does not have, has one line with the
reason instead, and the exit code is 0. At most 100 files and 1 MiB are printed.
`

const (
	textDiffTime = 4 * time.Second // less than a page of "stoker ui" waits
	// textDiffDelta bounds the deltas that are read, because the container's memory is for the agent.
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
