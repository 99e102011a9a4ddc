package lead

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/status"
)

// fakeFleet is a fleet without an API server. It stores what a term writes, and when.
type fakeFleet struct {
	status.Seen
	t       *testing.T
	mu      sync.Mutex
	held    v1alpha1.SyncTargetSpec // the stored target
	version int
	wake    chan struct{}

	polls        []time.Time
	answer       func(n int) pollResult // of the nth poll
	targets      []time.Time
	statuses     []time.Time
	sent         []status.Event
	refuse       error                    // returned by every write of the status
	refuseTarget error                    // and of the target
	loseAnswer   func()                   // if set, called after the next write of the target, whose answer is lost
	outdated     *v1alpha1.SyncTargetSpec // the target that the lead still sees then
	stuck        *v1alpha1.GatewaySync    // if set, the watch shows nothing newer
	secrets      atomic.Int64
	delay        time.Duration // that a write of the status takes
	prunes       bool          // the CRD lacks status.target.subject
}

func newFakeFleet(t *testing.T, n int) *fakeFleet {
	p := &fakeFleet{t: t, Seen: newFleet(n), wake: make(chan struct{}, 1), held: v1alpha1.SyncTargetSpec{Format: v1alpha1.TargetFormat}}
	p.GatewaySync.Spec.Polling.Interval = "60s"
	p.answer = func(int) pollResult { return pollResult{desired: "main", name: "refs/heads/main", commit: commitA} }
	return p
}

func (p *fakeFleet) sync() (*v1alpha1.GatewaySync, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stuck != nil {
		return p.stuck.DeepCopy(), nil
	}
	return p.GatewaySync.DeepCopy(), nil
}
func (p *fakeFleet) reports() ([]*v1alpha1.SyncReport, map[string]error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []*v1alpha1.SyncReport // copies, because objects of an informer are never modified
	for _, r := range p.Reports {
		out = append(out, r.DeepCopy())
	}
	return out, nil
}
func (p *fakeFleet) pods() []status.Pod        { return p.Pods }
func (p *fakeFleet) sole(context.Context) bool { return false }
func (p *fakeFleet) changed() <-chan struct{}  { return p.wake }
func (p *fakeFleet) target() v1alpha1.SyncTargetSpec {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.outdated != nil {
		return *p.outdated.DeepCopy()
	}
	return *p.held.DeepCopy()
}

func (p *fakeFleet) readTarget(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuseTarget != nil {
		return p.refuseTarget
	}
	p.outdated = nil
	return nil
}

func (p *fakeFleet) writeTarget(_ context.Context, change func(*v1alpha1.SyncTargetSpec)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuseTarget != nil {
		return p.refuseTarget
	}
	p.outdated = nil // a write of an old version conflicts, and is made again
	was := *p.held.DeepCopy()
	change(&p.held)
	if lost := p.loseAnswer; lost != nil {
		p.loseAnswer, p.outdated = nil, &was
		lost()
		return errors.New("no answer")
	}
	if len(p.targets) == 0 { // the agents have reported on this target
		for _, r := range p.Reports {
			r.Status.Revision = p.held.Revision
		}
	}
	p.targets = append(p.targets, time.Now())
	return nil
}

func (p *fakeFleet) writeStatus(_ context.Context, gs *v1alpha1.GatewaySync, change map[string]any) (*v1alpha1.GatewaySync, error) {
	p.mu.Lock()
	delay := p.delay
	p.mu.Unlock()
	time.Sleep(delay)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.statuses = append(p.statuses, time.Now())
	if p.refuse != nil {
		return nil, p.refuse
	}
	if gs.ResourceVersion != p.GatewaySync.ResourceVersion {
		return nil, apierrors.NewConflict(kube.GatewaySync.Resource().GroupResource(), "site", errors.New("changed"))
	}
	was := map[string]any{}
	data, err := json.Marshal(&gs.Status)
	if err := errors.Join(err, json.Unmarshal(data, &was)); err != nil {
		return nil, err
	}
	merge(was, change)
	if target, ok := was["target"].(map[string]any); ok && p.prunes {
		delete(target, "subject")
	}
	data, err = json.Marshal(was)
	if err != nil {
		return nil, err
	}
	is := gs.DeepCopy()
	is.Status = v1alpha1.GatewaySyncStatus{}
	if err := json.Unmarshal(data, &is.Status); err != nil {
		return nil, err
	}
	p.version++
	is.ResourceVersion = fmt.Sprint("v", p.version)
	p.GatewaySync = is
	signal(p.wake)
	return is.DeepCopy(), nil
}

// merge applies a merge patch.
func merge(m, change map[string]any) {
	for k, v := range change {
		inner, ok := v.(map[string]any)
		old, was := m[k].(map[string]any)
		switch {
		case v == nil:
			delete(m, k)
		case ok && was:
			merge(old, inner)
		default:
			m[k] = v
		}
	}
}

func (p *fakeFleet) sendEvents(_ *v1alpha1.GatewaySync, e []status.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = append(p.sent, e...)
}

// change changes the GatewaySync as another client would.
func (p *fakeFleet) change(f func(*v1alpha1.GatewaySync)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	gs := p.GatewaySync.DeepCopy()
	f(gs)
	p.version++
	gs.ResourceVersion = fmt.Sprint("v", p.version)
	p.GatewaySync = gs
	signal(p.wake)
}

func (p *fakeFleet) poll(_ context.Context, _ *v1alpha1.GatewaySync, q question) pollResult {
	p.mu.Lock()
	n := len(p.polls)
	p.polls = append(p.polls, time.Now())
	p.mu.Unlock()
	time.Sleep(200 * time.Millisecond)
	f := p.answer(n)
	f.question = q
	return f
}

// duringTerm runs a test in virtual time, during a term on a fakeFleet that setup may change before.
func duringTerm(t *testing.T, gateways int, setup func(*fakeFleet), during func(*testing.T, *fakeFleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := newFakeFleet(t, gateways)
		if setup != nil {
			setup(p)
		}
		p.lead(func() { during(t, p) })
	})
}

// lead runs a term in virtual time while f runs.
func (p *fakeFleet) lead(f func()) { p.leadWith(p.poll, f) }

func (p *fakeFleet) leadWith(poll func(context.Context, *v1alpha1.GatewaySync, question) pollResult, f func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		term := newTerm(p, poll, unmeasured{}, slog.New(slog.DiscardHandler), time.Now)
		term.rotated, term.subject = p.secrets.Load, func(plan.ID) string { return p.Subject }
		done <- term.run(ctx)
	}()
	f()
	cancel()
	assert.NoError(p.t, <-done)
}

func (p *fakeFleet) sentEvents() []status.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.sent)
}

// times returns a copy of recorded times.
func (p *fakeFleet) times(of *[]time.Time) []time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(*of)
}

func gaps(times []time.Time) []time.Duration {
	var out []time.Duration
	for i := 1; i < len(times); i++ {
		out = append(out, times[i].Sub(times[i-1]))
	}
	return out
}

const (
	commitA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	commitB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// newFleet returns a GatewaySync with ref main at commitA, and n gateways that run it.
func newFleet(n int) status.Seen {
	gs := &v1alpha1.GatewaySync{}
	gs.Namespace, gs.Name, gs.UID, gs.Generation, gs.ResourceVersion = "plant", "site", "uid-site", 1, "1"
	gs.Spec.Git.Repo, gs.Spec.Git.Ref = "https://git.example.com/site.git", "main"
	gs.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{"default": {Mappings: []v1alpha1.Mapping{{Source: "projects", Destination: "projects"}}}}
	s := status.Seen{GatewaySync: gs, Now: noon, Ref: status.Ref{Polled: true, Desired: desiredref.Desired{Ref: "main"}},
		Target: v1alpha1.SyncTargetSpec{Format: 1, Revision: 1, Generation: 1, Ref: "main", RefName: "refs/heads/main", Commit: commitA, Requests: annotation.Hash(gs)}}
	for i := range n {
		addGateway(&s, fmt.Sprintf("gw-%d", i))
	}
	return s
}

// addGateway adds a pod whose agent reports Synced.
func addGateway(s *status.Seen, name string) *v1alpha1.SyncReport {
	uid := types.UID("uid-" + name)
	s.Pods = append(s.Pods, status.Pod{Namespace: "plant", Name: name + "-0", UID: uid, Agent: true,
		Labels: map[string]string{v1alpha1.LabelCRName: "site"}, Annotations: map[string]string{v1alpha1.AnnotationInject: "true", v1alpha1.AnnotationGatewayName: name}})
	started := metav1.NewTime(noon.Add(-time.Minute))
	r := &v1alpha1.SyncReport{ObjectMeta: metav1.ObjectMeta{Name: name + "-0", Namespace: "plant", OwnerReferences: []metav1.OwnerReference{{Kind: "Pod", Name: name + "-0", UID: uid}}}}
	r.Status = v1alpha1.SyncReportStatus{Format: 1, Gateway: name, Profile: "default", Phase: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced,
		Ref: "main", Commit: commitA, Target: commitA, Revision: 1, Generation: 1, Started: &started, Duration: "1.2s", GatewayDetails: v1alpha1.GatewayDetails{AgentVersion: "v1"}}
	s.Reports = append(s.Reports, r)
	return r
}

func statusOf(s status.Seen) *v1alpha1.GatewaySyncStatus {
	sum := status.Summarize(s)
	return &sum.Status
}

// condition formats a condition as "True/Synced". It returns "" if the condition does not exist.
func condition(st *v1alpha1.GatewaySyncStatus, name string) string {
	if c := meta.FindStatusCondition(st.Conditions, name); c != nil {
		return string(c.Status) + "/" + c.Reason
	}
	return ""
}

func messageOf(st *v1alpha1.GatewaySyncStatus, name string) string {
	if c := meta.FindStatusCondition(st.Conditions, name); c != nil {
		return c.Message
	}
	return ""
}

// unreachable makes the agent of a gateway report that it cannot be reached.
func (p *fakeFleet) unreachable(i int) {
	r := &p.Reports[i].Status
	r.Phase, r.Reason, r.Message, r.Commit = v1alpha1.GatewayError, v1alpha1.ReasonGatewayUnreachable, "refused", ""
	r.Target, r.Revision, r.Generation = commitA, p.Target.Revision, p.Target.Generation
}
