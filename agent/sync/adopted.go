package sync

import (
	"context"
	"errors"
	"io/fs"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
)

// adopted puts what lies there already, and is to be ours from now on, through the check of source: a commit that one
// gateway cannot be given is no good at another, where its files came by some other way before.
func (s *run) adopted(ctx context.Context, changes *plan.Changes) error {
	defer s.step("validate")()
	for _, c := range changes.List {
		if c.Op != plan.Adopt || c.Owned {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		check := resource.NewChecker(c.Path)
		err := s.dir.CopyTo(ctx, &bounded{w: check, left: s.MaxBlob, path: c.Path, limit: s.MaxBlob}, c.Path)
		if errors.Is(err, fs.ErrNotExist) { // since the plan: drift, which the next look finds
			continue
		}
		if err == nil {
			err = check.Close()
		}
		if err != nil {
			return err
		}
	}
	return nil
}
