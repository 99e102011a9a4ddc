package fleet

import (
	"context"
	"fmt"
	gosync "sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// recording has the times at which a watch of the bench saw changes of reports and targets.
type recording struct {
	stop         context.CancelFunc
	mu           gosync.Mutex
	reports      []seenReport
	targetStates []seenTarget
}

type seenReport struct {
	at              time.Time
	gateway, commit string
}

type seenTarget struct {
	at     time.Time
	commit string
	open   int32
}

// record starts to record. The caller must call stop.
func (b *testbed) record(ctx context.Context) (*recording, error) {
	ctx, stop := context.WithCancel(ctx)
	rec := &recording{stop: stop}
	watches := map[kube.Kind]func(map[string]any) error{
		kube.SyncReport: func(object map[string]any) error {
			var r v1alpha1.SyncReport
			err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, &r)
			if err == nil && r.Status.Phase == v1alpha1.GatewaySynced {
				rec.reports = append(rec.reports, seenReport{time.Now(), r.Status.Gateway, r.Status.Commit})
			}
			return err
		},
		kube.SyncTarget: func(object map[string]any) error {
			var t v1alpha1.SyncTarget
			err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, &t)
			state := seenTarget{time.Now(), t.Spec.Commit, 0}
			if t.Spec.Rollout != nil {
				state.open = t.Spec.Rollout.Open
			}
			if n := len(rec.targetStates); n == 0 || rec.targetStates[n-1].commit != state.commit || rec.targetStates[n-1].open != state.open {
				rec.targetStates = append(rec.targetStates, state)
			}
			return err
		},
	}
	for kind, record := range watches {
		w, err := b.admin.Dynamic.Resource(kind.Resource()).Namespace(b.sites[0].namespace).Watch(ctx, metav1.ListOptions{})
		if err != nil {
			stop()
			return nil, err
		}
		go func() {
			defer w.Stop()
			for e := range w.ResultChan() {
				u, ok := e.Object.(interface{ UnstructuredContent() map[string]any })
				if !ok || e.Type == watch.Error {
					continue // gaps returns an error if the round lacks figures
				}
				rec.mu.Lock()
				_ = record(u.UnstructuredContent())
				rec.mu.Unlock()
			}
		}()
	}
	return rec, nil
}

// reset drops all but the last target, which the next one is compared with.
func (rec *recording) reset() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.reports, rec.targetStates = nil, rec.targetStates[max(0, len(rec.targetStates)-1):]
}

// targets returns how often the target changed.
func (rec *recording) targets() int {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return max(0, len(rec.targetStates)-1)
}

// gaps returns, for each step but the last, the time from its last report to the target that opens the next one.
func (rec *recording) gaps(commit string, of size) (gaps []time.Duration, err error) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	for step := 1; step < of.sites; step++ {
		var last, next time.Time
		first := map[string]bool{} // a gateway may report the commit again later
		for _, r := range rec.reports {
			var n int
			if _, err := fmt.Sscanf(r.gateway, "gw-%d", &n); err == nil && r.commit == commit && n/of.agents+1 == step && !first[r.gateway] {
				first[r.gateway], last = true, r.at
			}
		}
		for _, t := range rec.targetStates {
			if t.commit == commit && int(t.open) > step && next.IsZero() {
				next = t.at
			}
		}
		if last.IsZero() || next.IsZero() {
			return nil, fmt.Errorf("step %d of the rollout was not seen", step)
		}
		gaps = append(gaps, next.Sub(last))
	}
	return gaps, nil
}
