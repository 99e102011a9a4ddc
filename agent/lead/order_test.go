//go:build !race

// The tests of this file enumerate cases and are not concurrent. `make test` runs them without the race detector, which would
// only slow them down.

package lead

import (
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
)

// Every lead reaches the same result: all state is in the objects, because leads may change at any time.
func TestSuccessiveLeadsAgree(t *testing.T) {
	if testing.Short() {
		t.Skip("enumerates")
	}
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 5))
			s := &story{paper: newPaper(t, 1)}
			s.GatewaySync.Spec.Polling.Interval = "1s"
			s.GatewaySync.Annotations = map[string]string{}
			for _, ref := range storyRefs {
				s.branches.Store(ref, commitA)
			}
			for n := 0; n < 24; {
				s.leadWith(s.ask, func() {
					for range 1 + r.IntN(4) {
						if n++; n > 1 {
							s.step(r, n)
						}
						time.Sleep(10 * time.Second)
						target := s.target()
						require.Equal(t, s.want(), target.Ref, "seed %d: %s", seed, strings.Join(s.log, ", "))
						require.Equal(t, s.branch(s.want()), target.Commit, "seed %d: %s", seed, strings.Join(s.log, ", "))
						gs, _ := s.sync()
						require.Equal(t, gs.Generation, target.Generation)
						require.Equal(t, gs.Annotations[v1alpha1.AnnotationRequestedAt], target.RequestedAt)
						require.Equal(t, s.want(), gs.Status.Target.Ref)
					}
				})
			}
		})
	}
}
