package planner_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/planner"
	"stoker.io/stoker/agent/plan/plantest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// sparse is a disk on which every file of a folder has 511 MiB, most of them holes.
type sparse struct {
	*plantest.Disk
	hashed int
}

func (s *sparse) Stat(path string) (plan.Stat, error) {
	st, err := s.Disk.Stat(path)
	if st.Kind == plan.File {
		st.Size = 511 << 20
	}
	return st, err
}

func (s *sparse) BlobID(path string) (plan.ID, error) {
	s.hashed++
	return s.Disk.BlobID(path)
}

// F29: a plan reads a bounded number of bytes, however many files a program of the gateway makes, and however large they are.
func TestPlanHashesBoundedBytes(t *testing.T) {
	const files = 200
	want, extra := plantest.Files{}, map[string]string{}
	for i := range files {
		want[fmt.Sprintf("projects/p/r/file%03d", i)] = plantest.File{Content: "git"}
		extra[fmt.Sprintf("projects/p/r/extra%03d", i)] = "gateway"
	}
	for name, c := range map[string]struct {
		prune plan.Prune
		disk  func(s *scene)
	}{
		"changed files": {plan.PruneOwned, func(s *scene) {
			for path := range want {
				s.disk.Write(path, "gateway")
			}
		}},
		"files that prune mirror deletes": {plan.PruneMirror, func(s *scene) {
			for path, content := range extra {
				s.disk.Write(path, content)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, nil)
			s.rules.Prune = c.prune
			s.sync(want)
			c.disk(s)
			disk := &sparse{Disk: s.disk}
			_, err := s.plan(want, repair, func(in *planner.Input) { in.State = disk })
			require.Error(t, err)
			assert.True(t, failure.Is(err, v1alpha1.ReasonWriteFailed), "%v", err)
			assert.LessOrEqual(t, disk.hashed, 34, "16 GiB")
		})
	}
}
