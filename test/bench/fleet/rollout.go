package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	gosync "sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// nextStep is the maximum time from the last report of a step of a rollout to the next step.
const nextStep = 1500 * time.Millisecond

// rollout has what a rollout in steps costs, and what the same fleet costs without stages.
type rollout struct {
	of size // stages, and gateways in each of them
	// staged and plain have the writes of each sync (see window.writes).
	staged, plain []map[string]int
	// gaps are the times from the last report of a step to the SyncTarget that opens the next one.
	gaps []time.Duration
	// unexpectedFields has the fields of a rollout that objects of the fleet without stages have.
	unexpectedFields []string
}

// measureRollout rolls out commits of one file in steps, without a wait or an approval, and in a fleet without steps.
func measureRollout(ctx context.Context, s settings, admin kube.Clients, dir string, log *slog.Logger) (r rollout, err error) {
	r.of = s.stages
	for _, staged := range []bool{false, true} {
		if err := r.measure(ctx, staged, s, admin, filepath.Join(dir, strconv.FormatBool(staged)), log); err != nil {
			return r, err
		}
	}
	return r, nil
}

// setStages sets the stages.
func (r *rollout) setStages(gs *v1alpha1.GatewaySync) {
	d := &v1alpha1.DeploymentSpec{}
	for i := range r.of.sites {
		s := v1alpha1.Stage{Name: fmt.Sprintf("stage-%d", i)}
		for n := range r.of.agents {
			s.Gateways = append(s.Gateways, fmt.Sprintf("gw-%d", i*r.of.agents+n))
		}
		d.Stages = append(d.Stages, s)
	}
	gs.Spec.Deployment = d
}

func (r *rollout) measure(ctx context.Context, staged bool, s settings, admin kube.Clients, dir string, log *slog.Logger) (err error) {
	change := func(*v1alpha1.GatewaySync) {}
	if staged {
		change = r.setStages
	}
	b, err := newTestbed(ctx, admin, dir, size{1, r.of.total()}, log, change)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close(), os.RemoveAll(dir)) }()
	if err := b.start(ctx); err != nil {
		return err
	}
	if err := b.waitVerifiedWithin(ctx, s.within, b.repo.Head(), ""); err != nil {
		return err
	}
	if err := b.settle(ctx, calm); err != nil {
		return err
	}
	seen, err := b.record(ctx)
	if err != nil {
		return err
	}
	defer seen.stop()
	for n := range s.rounds {
		seen.reset()
		w, err := b.round(ctx, n+1, s.within)
		if err != nil {
			return fmt.Errorf("sync %d: %w", n+1, err)
		}
		writes := w.writes(seen.targets())
		if !staged {
			r.plain = append(r.plain, writes)
			continue
		}
		r.staged = append(r.staged, writes)
		gaps, err := seen.gaps(b.repo.Head(), r.of)
		if err != nil {
			return err
		}
		r.gaps = append(r.gaps, gaps...)
	}
	if !staged {
		r.unexpectedFields, err = b.rolloutFields(ctx)
	}
	return err
}

// writes returns the requests that change something. An idle fleet renews its lock, too, so only the given number of
// writes that changed the target count.
func (w window) writes(targets int) map[string]int {
	all := map[string]int{"update synctargets": targets}
	for what, n := range w.sum(allAgents).requests {
		verb, _, _ := strings.Cut(what, " ")
		if !lockRequests[what] && what != confirmRequest && verb != "get" && verb != "list" && verb != watching {
			all[what] = n
		}
	}
	all[confirmRequest] = w.sum(allAgents).requests[confirmRequest]
	return all
}

// rolloutFields returns the fields of a rollout that the objects of a fleet without stages have.
func (b *testbed) rolloutFields(ctx context.Context) (found []string, err error) {
	ns := b.sites[0].namespace
	t, err := kube.SyncTargets(b.admin.Dynamic, ns).Get(ctx, crName)
	if err != nil {
		return nil, err
	}
	gs, err := kube.GatewaySyncs(b.admin.Dynamic, ns).Get(ctx, crName)
	if err != nil {
		return nil, err
	}
	for field, set := range map[string]bool{
		"spec.rollout of the SyncTarget": t.Spec.Rollout != nil, "status.rollout": gs.Status.Rollout != nil, "status.retry": gs.Status.Retry != "",
	} {
		if set {
			found = append(found, field)
		}
	}
	return found, nil
}

// writesOf returns the median of a kind of writes, or of all if what is "".
func writesOf(rounds []map[string]int, what string) int {
	var all []int
	for _, w := range rounds {
		n := 0
		for kind, times := range w {
			if what == "" || what == kind {
				n += times
			}
		}
		all = append(all, n)
	}
	return median(all)
}

// write prints what a rollout costs. It prints nothing if none was measured.
func (r rollout) write(out io.Writer) error {
	if len(r.staged) == 0 {
		return nil
	}
	fmt.Fprintf(out, "\n## A rollout to %d gateways in %d stages\n\n", r.of.total(), r.of.sites)
	t := table(out, "API writes of a sync", "in stages", "without stages")
	names := map[string]bool{}
	for _, w := range slices.Concat(r.staged, r.plain) {
		for what := range w {
			names[what] = true
		}
	}
	for _, what := range append(slices.Sorted(maps.Keys(names)), "") {
		fmt.Fprintf(t, "| %s\t| %d\t| %d\t|\n", cmp.Or(what, "all"), writesOf(r.staged, what), writesOf(r.plain, what))
	}
	return t.Flush()
}

// goals compares the figures with the goals of a rollout.
func (r rollout) goals() (found []goal) {
	if len(r.staged) == 0 {
		return nil
	}
	slowest := time.Duration(0)
	if len(r.gaps) > 0 {
		slowest = slices.Max(r.gaps)
	}
	n, allowed := writesOf(r.staged, ""), r.of.total()+2*r.of.sites+10
	return []goal{
		{fmt.Sprintf("rollout: at most %.1f s from the last report of a step to the next step", nextStep.Seconds()), fmt.Sprintf("%.2f s, at most %.2f", median(r.gaps).Seconds(), slowest.Seconds()), slowest <= nextStep},
		{"rollout: at most as many API writes as gateways, 2 for each stage, and 10", fmt.Sprintf("%d; %d allowed; %d without stages", n, allowed, writesOf(r.plain, "")), n <= allowed},
		{"no stages: no field of a rollout in any object", cmp.Or(strings.Join(r.unexpectedFields, ", "), "none"), len(r.unexpectedFields) == 0},
	}
}

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
