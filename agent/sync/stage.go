package sync

import (
	"context"
	"errors"
	"io"
	"io/fs"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/failure"
)

// stager writes the files of a tree, and checks that the gateway can use them.
type stager struct {
	in       *scope
	desired  *desired.Tree
	embedded resource.EmbeddedSecrets
}

// source returns a disk.Source that writes git's files.
func (s *stager) source(changes *plan.Changes) disk.Source {
	counts := changes.Counts()
	total, n := counts.Added+counts.Modified, 0
	return func(w io.Writer, c plan.Change) error {
		check := resource.NewChecker(c.Path)
		if _, err := s.desired.WriteBlob(boundFile(io.MultiWriter(w, check), c.Path, s.in.MaxBlob), c.ID); err != nil {
			return err
		}
		n++
		s.in.Progress("stage", n, total)
		return s.embedded.Check(check)
	}
}

// boundFile returns a writer that fails at the size limit of a file, before the file fills the disk. A limit of 0 means no limit.
func boundFile(w io.Writer, path string, most int64) io.Writer {
	if most <= 0 {
		return w
	}
	return bound.NewWriter(w, most, func() error {
		return failure.New(v1alpha1.ReasonLimitExceeded, "%s is larger than --max-blob, %d bytes", path, most)
	})
}

// validateAdopted checks the files on the disk that the sync adopts: it writes only their records in the manifest, because they
// already equal git's, or mean the same. They must pass the same check as written files. Otherwise a commit that other gateways
// refuse would count as good on a gateway that already had its files.
func (s *stager) validateAdopted(ctx context.Context, changes *plan.Changes) error {
	defer s.in.step("validate")()
	for _, c := range changes.List {
		if c.Op != plan.Adopt || c.Owned && !c.Foreign {
			continue // an owned file with the bytes or the meaning that the last sync left was checked then
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		check := resource.NewChecker(c.Path)
		err := s.in.dir.Within(ctx).CopyFile(boundFile(check, c.Path, s.in.MaxBlob), c.Path)
		if errors.Is(err, fs.ErrNotExist) { // removed since the plan: the next comparison reports it as drift
			continue
		}
		if err == nil {
			err = s.embedded.Check(check)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// dryRun validates what would be written, and writes nothing.
func (s *stager) dryRun(ctx context.Context, changes *plan.Changes) error {
	defer s.in.step("validate")()
	src := s.source(changes)
	for _, c := range changes.List {
		if err := ctx.Err(); err != nil {
			return err
		}
		if c.Op != plan.Create && c.Op != plan.Update {
			continue
		}
		if err := src(io.Discard, c); err != nil {
			return err
		}
	}
	if err := s.validateAdopted(ctx, changes); err != nil {
		return err
	}
	r := s.in.report
	r.Phase, r.Reason, r.DryRun = v1alpha1.GatewayPending, v1alpha1.ReasonDryRun, true
	r.Message = "dry run, nothing was written: " + changes.Summary()
	if err := s.in.dir.CheckSeeded(); err != nil && !s.in.Disk.AllowUnseeded {
		s.in.note("a sync would wait: %v", err)
	}
	if changes.Held != nil {
		return failure.New(changes.Held.Reason, "%s", changes.Held.Message)
	}
	return nil
}
