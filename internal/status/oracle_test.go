package status

import (
	"fmt"
	"math/rand/v2"
	"sort"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/verb"
)

func TestOracle(t *testing.T) {
	seen := map[string]int{}
	example := map[string]string{}
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 9))
		life := newLife(t)
		pick := func(list ...string) string { return list[r.IntN(len(list))] }
		gs := func() map[string]string {
			life.GatewaySync = life.GatewaySync.DeepCopy()
			if life.GatewaySync.Annotations == nil {
				life.GatewaySync.Annotations = map[string]string{}
			}
			return life.GatewaySync.Annotations
		}
		history := []string{}
		for range 40 {
			op := r.IntN(24)
			switch {
			case op == 16:
				a := gs()
				a[v1alpha1.AnnotationRequestedAt] = pick("t1", "t2", "t3", "")
			case op == 17:
				a := gs()
				ref := pick("v2", "main", commitA, commitB, "bad ref", "")
				a[v1alpha1.AnnotationRequestedRef] = ref
				a[v1alpha1.AnnotationRequestedOver] = pick(ref+"@main", "", ref+"@other")
				a[v1alpha1.AnnotationRequestedUnless] = pick("", commitA, commitB)
				a[v1alpha1.AnnotationRequestedCommit] = pick("", "", commitA, commitB)
				a[v1alpha1.AnnotationRequestedAt] = pick("t1", "t2", "t3", "")
			case op == 18:
				a := gs()
				a[v1alpha1.AnnotationPaused] = pick("", "true")
			case op >= 19:
				history = append(history, "poll")
			default:
				if op == 4 || op == 14 || op == 2 || op == 3 || op == 5 || op == 6 {
					op = 10
				}
				life.step([4]byte{byte(op), byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())})
			}
			history = append(history, fmt.Sprint(op))
			want, err := v1alpha1.DesiredRef(life.GatewaySync, "")
			switch {
			case err != nil:
				life.Ref = Ref{Err: err, Looked: true, Answered: life.Ref.Answered}
			default:
				if life.Ref.Desired.Ref != want.Ref || life.Ref.Desired.RequestedAt != want.RequestedAt {
					life.Ref.Looked, life.Ref.Err = false, nil
				}
				life.Ref.Desired = want
				if op >= 19 || r.IntN(2) == 0 {
					life.Ref.Looked, life.Ref.Answered = true, want.RequestedAt
					if r.IntN(4) > 0 {
						life.Ref.Err = nil
						life.tells(func(s *v1alpha1.SyncTargetSpec) {
							s.Generation, s.Ref, s.RequestedAt, s.Commit = life.GatewaySync.Generation, want.Ref, want.RequestedAt, pick(commitA, commitB)
							if want.Commit != "" {
								s.Commit = want.Commit
							}
							if v1alpha1.IsCommit(want.Ref) {
								s.Commit = want.Ref
							}
						})
					} else {
						life.Ref.Err = failure.New(v1alpha1.Reason(pick(string(v1alpha1.ReasonGitUnreachable), string(v1alpha1.ReasonRefNotFound), string(v1alpha1.ReasonAuthFailed))), "poll")
					}
				}
			}
			sum := Summarise(life.Seen)
			mode := "lead"
			if r.IntN(3) == 0 {
				mode = "none"
				l := Leaderless{GatewaySync: life.GatewaySync, Now: life.Now}
				for _, p := range life.Pods {
					if p.Ending || !p.Ended {
						l.Pods = append(l.Pods, p)
					}
				}
				if r.IntN(2) == 0 {
					l.Pods = nil
				}
				sum.Status = *Without(l)
			}
			life.GatewaySync = life.GatewaySync.DeepCopy()
			life.GatewaySync.Status = stored(t, sum.Status)
			st := &life.GatewaySync.Status
			judged := life.GatewaySync.DeepCopy()
			judged.Status.ConfirmedAt = &metav1.Time{Time: life.Now}
			e := verb.Evidence{Now: life.Now, Reports: map[string]*v1alpha1.SyncReport{}}
			for _, rep := range life.Reports {
				e.Reports[rep.Name] = rep
			}
			v := verb.Judge(judged, "", e)
			o := st.Outcome
			is := string(v.Phase)
			switch {
			case v.Phase == verb.Held:
				is = "Paused"
			case v.Phase == verb.Progressing && v.Waits:
				is = "Waits"
			}
			got := string(o.Phase)
			if is == "Waits" && (got == "Held" || got == "Paused" || got == "Progressing") {
				got = "Waits"
			}
			key := "same " + mode
			if is != got {
				key = mode + fmt.Sprintf(" PHASE judge %s/%s outcome %s/%s ready %s", is, v.Reason, o.Phase, o.Reason, condition(st, "Ready"))
			} else if v.Commit != o.Commit || int32(v.Gateways.Synced) != o.Synced && is != "Progressing" {
				key = mode + fmt.Sprintf(" COMMIT %s %.7s/%d outcome %.7s/%d %s/%s", is, v.Commit, v.Gateways.Synced, o.Commit, o.Synced, o.Phase, o.Reason)
			} else if is == "Failed" && v.Reason != o.Reason {
				key = mode + fmt.Sprintf(" REASON %s %s outcome %s", is, v.Reason, o.Reason)
			}
			seen[key]++
			if example[key] == "" {
				example[key] = fmt.Sprintf("seed %d: judge %q outcome %q", seed, v.Message, o.Message)
			}
		}
	}
	var keys []string
	for k := range seen {
		keys = append(keys, k)
	}
	sort.Slice(keys, func(i, j int) bool { return seen[keys[i]] > seen[keys[j]] })
	for _, k := range keys {
		fmt.Println(seen[k], k, "|", example[k])
	}
}
