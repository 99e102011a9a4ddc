package planner

import (
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// maxHashed bounds the files that one plan reads to hash them, in bytes. It is several times what a gateway has, and takes less than a minute.
const maxHashed = 16 << 30

// boundedState is a plan.State that refuses to hash more files when those that it has hashed are together larger than maxHashed. A program
// of the gateway can make thousands of huge sparse files, and the agent does nothing else while it reads them.
type boundedState struct {
	plan.State
	left int64
}

func (s *boundedState) BlobID(path string) (plan.ID, error) {
	if s.left < 0 {
		return plan.ID{}, failure.New(v1alpha1.ReasonWriteFailed,
			"the files that differ from the last sync have more than %d GiB, and are not read: remove what does not belong there", maxHashed>>30)
	}
	st, err := s.Stat(path)
	if err != nil {
		return plan.ID{}, err
	}
	id, err := s.State.BlobID(path)
	if !id.IsZero() { // otherwise it was too large to be read
		s.left -= st.Size
	}
	return id, err
}
