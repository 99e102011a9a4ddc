package lead

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
)

// story changes a GatewaySync like operators and automation do, and predicts independently what its gateways must run. A
// request is in force until the spec names another ref, or the branch moves off the commit that the request names.
type story struct {
	*paper
	branches sync.Map // name → commit
	alive    bool
	over     string
	log      []string
}

var storyRefs = []string{"main", "release", "v2", "a@b"}

func (s *story) branch(name string) string {
	commit, _ := s.branches.Load(name)
	return commit.(string)
}

// ask answers as git would.
func (s *story) ask(ctx context.Context, gs *v1alpha1.GatewaySync, q question) pollResult {
	_ = s.poll(ctx, gs, q) // takes time
	f := pollResult{question: q}
	want, err := desiredref.Of(gs, "")
	if err == nil && want.ResolveSpec {
		f.specCommit = s.branch(gs.Spec.Git.Ref)
		want, err = desiredref.Of(gs, f.specCommit)
	}
	f.desired, f.err = want.Ref, err
	if err == nil {
		f.name, f.commit = "refs/heads/"+want.Ref, s.branch(want.Ref)
	}
	return f
}

func (s *story) step(r *rand.Rand, n int) {
	at, ref := fmt.Sprintf("t%d", n), storyRefs[r.IntN(len(storyRefs))]
	action := []string{"spec", "spec", "push", "setter", "rollback", "plain", "remove", "hint"}[r.IntN(8)]
	s.log = append(s.log, action+" "+ref)
	if action == "push" {
		s.branches.Store(ref, []string{commitA, commitB}[r.IntN(2)])
	}
	s.change(func(gs *v1alpha1.GatewaySync) {
		a, spec := gs.Annotations, gs.Spec.Git.Ref
		old := a[v1alpha1.AnnotationRequestedRef]
		switch action {
		case "spec":
			if spec != ref {
				gs.Spec.Git.Ref = ref
				gs.Generation++
			}
		case "setter", "rollback":
			a[v1alpha1.AnnotationRequestedRef] = ref
			a[v1alpha1.AnnotationRequestedOver] = desiredref.RequestOver(ref, spec, at)
			a[v1alpha1.AnnotationRequestedAt] = at
			delete(a, v1alpha1.AnnotationRequestedUnless)
			if action == "rollback" {
				a[v1alpha1.AnnotationRequestedUnless] = s.branch(spec)
			}
			s.alive, s.over = true, spec
		case "plain":
			a[v1alpha1.AnnotationRequestedRef] = ref
			if ref != old {
				s.alive, s.over = true, spec
				if rest, ok := strings.CutPrefix(a[v1alpha1.AnnotationRequestedOver], ref+"@"); ok {
					s.over, _, _ = strings.Cut(rest, " ")
				}
			}
		case "remove":
			for _, name := range []string{v1alpha1.AnnotationRequestedRef, v1alpha1.AnnotationRequestedOver, v1alpha1.AnnotationRequestedUnless} {
				delete(a, name)
			}
			s.alive = false
		case "hint":
			a[v1alpha1.AnnotationRequestedAt] = at
		}
		spec = gs.Spec.Git.Ref
		unless := a[v1alpha1.AnnotationRequestedUnless]
		if !strings.HasPrefix(a[v1alpha1.AnnotationRequestedOver], a[v1alpha1.AnnotationRequestedRef]+"@") {
			unless = "" // it belongs to a rollback that a newer request replaced
		}
		if s.over != spec || unless != "" && a[v1alpha1.AnnotationRequestedRef] != spec && unless != s.branch(spec) {
			s.alive = false
		}
	})
}

func (s *story) want() string {
	gs, _ := s.sync()
	if s.alive {
		return gs.Annotations[v1alpha1.AnnotationRequestedRef]
	}
	return gs.Spec.Git.Ref
}

// A rollback may name a commit that the lead has not seen yet. The older commit that the lead knows must not end the rollback.
func TestRollbackOfUnseenCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &story{paper: newPaper(t, 1)}
		s.GatewaySync.Spec.Polling.Interval = "24h"
		s.GatewaySync.Annotations = map[string]string{}
		s.branches.Store("main", commitA)
		s.branches.Store("v2", commitA)
		s.leadWith(s.ask, func() {
			rollback := func(unless string) {
				s.change(func(gs *v1alpha1.GatewaySync) {
					gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedRef: "v2", v1alpha1.AnnotationRequestedUnless: unless,
						v1alpha1.AnnotationRequestedOver: desiredref.RequestOver("v2", "main", "t"+unless)}
				})
				time.Sleep(10 * time.Second)
			}
			rollback(commitA)
			require.Equal(t, "v2", s.target().Ref)
			s.branches.Store("main", commitB)
			rollback(commitB)
			require.Equal(t, "v2", s.target().Ref)
			gs, _ := s.sync()
			require.Empty(t, gs.Status.Request.Lapsed)
		})
	})
}
