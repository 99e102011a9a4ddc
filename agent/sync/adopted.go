package sync

import (
	"context"
	"errors"
	"io/fs"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
)

// adopted checks the files that the sync is about to adopt unchanged. They must pass the same check as written files: a
// commit that some gateways cannot receive must not count as good on another that got the files in some other way.
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
		if errors.Is(err, fs.ErrNotExist) { // removed since the plan: the next comparison reports it as drift
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
