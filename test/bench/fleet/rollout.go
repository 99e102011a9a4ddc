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

// nextStep is how long a rollout may take from the last report of a step to the next step.
const nextStep = 1500 * time.Millisecond

// rollout has what a rollout in steps costs, and what the same fleet costs without stages.
type rollout struct {
	of size // stages, and gateways in each of them
	// staged and plain have the requests of each sync that change something, by verb and resource. Renewals of the lead's lock do not
	// count: of the writes of the SyncTarget, only those do that changed the target.
	staged, plain []map[string]int
	// gaps are the times from the last report of a step to the SyncTarget that opens the next one.
	gaps []time.Duration
	// traces has the fields of a rollout that objects of the fleet without stages have.
	traces []string
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

// stages sets the stages.
func (r *rollout) stages(gs *v1alpha1.GatewaySync) {
	d := &v1alpha1.DeploymentSpec{Strategy: v1alpha1.StrategyCanary}
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
		change = r.stages
	}
	y, err := newYard(ctx, admin, dir, size{1, r.of.total()}, log, change)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, y.close(), os.RemoveAll(dir)) }()
	if err := y.start(ctx); err != nil {
		return err
	}
	if err := y.bounded(ctx, s.within, y.repo.Head(), ""); err != nil {
		return err
	}
	if err := y.settle(ctx, calm); err != nil {
		return err
	}
	seen, err := y.record(ctx)
	if err != nil {
		return err
	}
	defer seen.stop()
	for n := range s.rounds {
		seen.forget()
		w, err := y.round(ctx, n+1, s.within)
		if err != nil {
			return fmt.Errorf("sync %d: %w", n+1, err)
		}
		writes := w.writes(seen.targets())
		if !staged {
			r.plain = append(r.plain, writes)
			continue
		}
		r.staged = append(r.staged, writes)
		gaps, err := seen.gaps(y.repo.Head(), r.of)
		if err != nil {
			return err
		}
		r.gaps = append(r.gaps, gaps...)
	}
	if !staged {
		r.traces, err = y.traces(ctx)
	}
	return err
}

// writes returns the requests that change something. Renewals of the lock are those of an idle fleet, so of its writes only those count that
// changed the target.
func (w window) writes(targets int) map[string]int {
	all := map[string]int{"update synctargets": targets}
	for what, n := range w.sum(everybody).requests {
		verb, _, _ := strings.Cut(what, " ")
		if !locking[what] && what != confirming && verb != "get" && verb != "list" && verb != watching {
			all[what] = n
		}
	}
	all[confirming] = w.sum(everybody).requests[confirming]
	return all
}

// traces returns the fields of a rollout that the objects of a fleet without stages have.
func (y *yard) traces(ctx context.Context) (found []string, err error) {
	ns := y.sites[0].namespace
	t, err := kube.SyncTargets(y.admin.Dynamic, ns).Get(ctx, crName)
	if err != nil {
		return nil, err
	}
	gs, err := kube.GatewaySyncs(y.admin.Dynamic, ns).Get(ctx, crName)
	if err != nil {
		return nil, err
	}
	for what, is := range map[string]bool{
		"spec.minFormat of the SyncTarget": t.Spec.MinFormat != 1, "spec.rollout of the SyncTarget": t.Spec.Rollout != nil,
		"status.rollout": gs.Status.Rollout != nil, "status.retry": gs.Status.Retry != "",
	} {
		if is {
			found = append(found, what)
		}
	}
	return found, nil
}

// recording has when reports and targets changed, as a watch of the bench saw it.
type recording struct {
	stop    context.CancelFunc
	mu      gosync.Mutex
	reports []seenReport
	opened  []seenTarget
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

func (y *yard) record(ctx context.Context) (*recording, error) {
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
			is := seenTarget{time.Now(), t.Spec.Commit, 0}
			if t.Spec.Rollout != nil {
				is.open = t.Spec.Rollout.Open
			}
			if n := len(rec.opened); n == 0 || rec.opened[n-1].commit != is.commit || rec.opened[n-1].open != is.open {
				rec.opened = append(rec.opened, is)
			}
			return err
		},
	}
	for kind, saw := range watches {
		w, err := y.admin.Dynamic.Resource(kind.Resource()).Namespace(y.sites[0].namespace).Watch(ctx, metav1.ListOptions{})
		if err != nil {
			stop()
			return nil, err
		}
		go func() {
			defer w.Stop()
			for e := range w.ResultChan() {
				u, ok := e.Object.(interface{ UnstructuredContent() map[string]any })
				if !ok || e.Type == watch.Error {
					continue // the figures of this round are missing, and gaps says so
				}
				rec.mu.Lock()
				_ = saw(u.UnstructuredContent())
				rec.mu.Unlock()
			}
		}()
	}
	return rec, nil
}

// forget drops all but the last target, which the next one is compared with.
func (rec *recording) forget() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.reports, rec.opened = nil, rec.opened[max(0, len(rec.opened)-1):]
}

// targets returns how often the target changed.
func (rec *recording) targets() int {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return max(0, len(rec.opened)-1)
}

// gaps returns, for each step but the last, the time from its last report to the target that opens the next one.
func (rec *recording) gaps(commit string, of size) (gaps []time.Duration, err error) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	for step := 1; step < of.sites; step++ {
		var last, next time.Time
		first := map[string]bool{} // a gateway may say more of the commit later
		for _, r := range rec.reports {
			var n int
			if _, err := fmt.Sscanf(r.gateway, "gw-%d", &n); err == nil && r.commit == commit && n/of.agents+1 == step && !first[r.gateway] {
				first[r.gateway], last = true, r.at
			}
		}
		for _, t := range rec.opened {
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

// middle returns the median.
func middle[T cmp.Ordered](list []T) (m T) {
	if len(list) == 0 {
		return m
	}
	return slices.Sorted(slices.Values(list))[len(list)/2]
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
	return middle(all)
}

// write prints what a rollout costs.
func (r rollout) write(out io.Writer) error {
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
	n, most := writesOf(r.staged, ""), r.of.total()+2*r.of.sites+10
	return []goal{
		{"rollout: at most 1.5 s from the last report of a step to the next step", fmt.Sprintf("%.2f s, at most %.2f", middle(r.gaps).Seconds(), slowest.Seconds()), slowest <= nextStep},
		{"rollout: at most as many API writes as gateways, 2 for each stage, and 10", fmt.Sprintf("%d; %d allowed; %d without stages", n, most, writesOf(r.plain, "")), n <= most},
		{"no stages: no field of a rollout in any object", cmp.Or(strings.Join(r.traces, ", "), "none"), len(r.traces) == 0},
	}
}
