// Package lead implements the leader among the agents of a GatewaySync. The lead resolves the desired ref to a commit,
// publishes it in the SyncTarget, and summarizes the gateways in the status, conditions and Events of the GatewaySync. The next
// lead finds all that it needs in these objects. What a lead only remembers costs the next one a poll or a wait at most.
//
// Every agent has a Lead. It waits, without any request, until the lock in the SyncTarget is free.
package lead

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"

	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/file"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/internal/status"
)

// Metrics are the metrics of a lead.
type Metrics interface {
	// Iterated records an iteration; result is the class of its outcome.
	Iterated(loop, result string, d time.Duration)
	// Resolved records a poll of git; result is a reason.
	Resolved(result string, d time.Duration)
	// RolledBack counts a rollback; by is "request" or "rollout".
	RolledBack(by string)
	// Elected counts that the agent begins to lead.
	Elected()
	// Set records the state of the fleet. Converged records how long it took until all gateways ran a new target. Clear removes
	// both when the agent stops leading.
	Set(metrics.FleetState)
	Converged(d time.Duration)
	Clear()
}

// Config configures a Lead.
type Config struct {
	Namespace, GatewaySync string
	Pod                    string // the agent's own
	Clients                kube.Clients
	// Connect returns the remote of a GatewaySync. It does not connect yet.
	Connect func(*v1alpha1.GatewaySync) (*repo.Remote, error)
	// Eligible returns why this agent cannot lead a GatewaySync, because it lacks a credential that the spec references. nil
	// means that it can.
	Eligible func(*v1alpha1.GatewaySync) error
	// SecretFiles are files that change with a secret.
	SecretFiles []string
	// Store finds requested commits in the history of allowed refs, and subjects. If it is nil, a requested commit must be the tip of a ref.
	Store   *repo.Store
	Metrics Metrics
	Log     *slog.Logger
	Now     func() time.Time
	Timing  Timing // default: DefaultTiming

	asideLimit time.Duration // how long this agent stands aside for another one; default: reconsider
}

// Lead campaigns for the lock of one GatewaySync, and leads while it holds it.
type Lead struct {
	Config
	identity     string
	lockWatch    *lockWatch
	lock         *lock
	events       *events
	loggedReason string // the last logged reason why this agent does not campaign
	// asideSince is when this agent first found, in its campaign, that another one should lead; zero if it has not.
	asideSince time.Time

	secretChanges atomic.Int64 // changes of SecretFiles while campaigning or leading
	unreadable    atomic.Bool  // the undecodable SyncTarget was logged
}

// New returns a Lead. It sends nothing yet.
func New(c Config) (*Lead, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Eligible == nil {
		c.Eligible = func(*v1alpha1.GatewaySync) error { return nil }
	}
	if c.Timing == (Timing{}) {
		c.Timing = DefaultTiming()
	}
	if c.asideLimit == 0 {
		c.asideLimit = reconsider
	}
	random := make([]byte, 4)
	if _, err := rand.Read(random); err != nil {
		return nil, err
	}
	l := &Lead{Config: c, identity: fmt.Sprintf("%s_%x", c.Pod, random)}
	l.lockWatch = newLockWatch(l.identity, c.Now)
	var err error
	if l.events, err = newEvents(c.Clients, c.Log); err != nil {
		return nil, err
	}
	l.lock = &lock{
		targets: kube.SyncTargets(c.Clients.Dynamic, c.Namespace), syncs: kube.GatewaySyncs(c.Clients.Dynamic, c.Namespace),
		name: c.GatewaySync, identity: l.identity, timing: c.Timing, watch: l.lockWatch, log: c.Log,
	}
	return l, nil
}

// Identity returns the name under which this agent holds the lock.
func (l *Lead) Identity() string { return l.identity }

// Saw receives what the agent's watch shows of the SyncTarget: each version, an error if it cannot be decoded, or nil if there
// is none, initially too. It does not block. Run waits for the first call.
func (l *Lead) Saw(t *v1alpha1.SyncTarget, err error) {
	bad, unreadable := errors.AsType[*kube.UndecodableError](err)
	if unreadable {
		t = bad.Target()
	}
	if l.unreadable.Swap(unreadable) != unreadable && unreadable {
		l.Log.Error("SyncTarget unreadable, to be replaced", "error", err, "after", v1alpha1.MaxLeadDuration.String())
	}
	l.lockWatch.saw(t)
}

// Watch watches the SyncTarget and calls Saw until ctx is done, for callers without a watch of their own.
func (l *Lead) Watch(ctx context.Context) error {
	var in *kube.Informer[v1alpha1.SyncTarget]
	in, err := l.lock.targets.Informer(named(l.GatewaySync), func(namespace, name string) {
		t, err := in.Get(namespace, name)
		if errors.Is(err, kube.ErrNotSeen) {
			t, err = nil, nil
		}
		l.Saw(t, err)
	})
	if err != nil {
		return err
	}
	go func() {
		if waitUntil(ctx, in.HasSynced) {
			if _, err := in.Get(l.Namespace, l.GatewaySync); errors.Is(err, kube.ErrNotSeen) {
				l.Saw(nil, nil)
			}
		}
	}()
	in.Run(ctx)
	return nil
}

func named(name string) func(*metav1.ListOptions) {
	return func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
	}
}

// waitUntil waits until ready returns true. It returns false if ctx is done first.
func waitUntil(ctx context.Context, ready func() bool) bool {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ready() {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

const (
	// settling is how long the watch usually takes to show the last write.
	settling = 500 * time.Millisecond
	// reconsider is how often an agent that cannot lead checks again while there is no lead. After that time it leads anyway,
	// because some agent must report what is missing.
	reconsider = time.Minute
	// stepDown is how long a term may take to stop before the lock is released.
	stepDown = time.Second
)

// Run campaigns and leads until ctx is done, then releases the lock. The error is always nil.
func (l *Lead) Run(ctx context.Context) error {
	events, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	l.events.start(events)
	for ctx.Err() == nil {
		st := l.lockWatch.state()
		if !st.free {
			l.wait(ctx, st.expiresIn+time.Millisecond)
			continue
		}
		if backoff.Wait(ctx, startDelay(mathrand.Float64())) && l.lockWatch.state().free && l.expired(ctx) {
			l.campaign(ctx)
		}
	}
	l.events.flush(events)
	return nil
}

// expired reads the lock of a lead that has not renewed it in time, as far as the watch shows, and reports whether it is free. If the API server
// is slow or out of reach, a lead that lives cannot renew its lock either, and gets more time.
func (l *Lead) expired(ctx context.Context) bool {
	st := l.lockWatch.state()
	if st.target == nil || st.target.Spec.Lead.Holder == "" || st.target.Spec.Lead.Holder == l.identity {
		return st.free
	}
	t, took, err := l.lock.look(ctx)
	if took >= slowAnswer || err != nil && kube.Transient(err) {
		l.lockWatch.extend(l.Timing.SlowLock)
	}
	if err == nil && !equality.Semantic.DeepEqual(t.Spec.Lead, st.target.Spec.Lead) {
		l.lockWatch.saw(t)
	}
	return l.lockWatch.state().free
}

// wait returns when the lock changed, ctx ended, or after d.
func (l *Lead) wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-l.lockWatch.changed:
	case <-timer.C:
	}
}

// campaign runs while the lock looks free. It waits until the GatewaySync exists and this agent can lead it, takes the lock,
// and leads. It watches the GatewaySync only during this time.
func (l *Lead) campaign(ctx context.Context) {
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, logr.FromSlogHandler(l.Log.Handler())))
	defer cancel()
	changed := make(chan struct{}, 1)
	syncs, err := l.lock.syncs.Informer(named(l.GatewaySync), func(string, string) { signal(changed) })
	if err != nil {
		l.Log.Error("the GatewaySync cannot be watched", "error", err)
		backoff.Wait(ctx, reconsider)
		return
	}
	go syncs.Run(ctx)
	go func() {
		if waitUntil(ctx, syncs.HasSynced) {
			signal(changed)
		}
	}()
	secrets := file.Watch(l.Log, l.SecretFiles...)
	defer secrets.Close()
	go l.rotate(ctx, secrets, changed)
	failed := 0
	l.asideSince = time.Time{}
	for ctx.Err() == nil && l.lockWatch.state().free {
		gs, err := l.candidate(ctx, syncs)
		if gs != nil {
			l.elect(ctx, gs, syncs, changed)
			backoff.Wait(ctx, mathrand.N(settling))
			return
		}
		pause := backoff.Jitter(l.asideLimit) + l.asideLimit/5
		if err != nil { // the other agents probably failed at the same time, and must not all try again in the same moment
			failed++
			pause = backoff.Retry(failed, l.Timing.Lock) + startDelay(mathrand.Float64())
		}
		again := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-changed:
		case <-l.lockWatch.changed:
		case <-again.C:
		}
		again.Stop()
	}
}

// rotate counts changes of secrets and signals them.
func (l *Lead) rotate(ctx context.Context, secrets *file.Watcher, changed chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-secrets.Changed():
			l.secretChanges.Add(1)
			signal(changed)
		}
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// candidate returns the GatewaySync if this agent can lead it now. An agent that lacks a credential, or knows of a newer agent,
// leads as a last resort: when it has stood aside for asideLimit. If this agent cannot lead, candidate returns nil. An error
// means that the API server did not say whether it can.
func (l *Lead) candidate(ctx context.Context, syncs *kube.Informer[v1alpha1.GatewaySync]) (*v1alpha1.GatewaySync, error) {
	if !syncs.HasSynced() {
		return nil, nil
	}
	gs, err := syncs.Get(l.Namespace, l.GatewaySync)
	bad, undecodable := errors.AsType[*kube.UndecodableError](err)
	if undecodable {
		gs = metadataAndStatus(bad.Object)
	}
	if gs == nil || gs.DeletionTimestamp != nil {
		return nil, nil
	}
	if undecodable {
		return gs, nil // so that the lead reports it
	}
	lastResort := !l.asideSince.IsZero() && l.Now().Sub(l.asideSince) >= l.asideLimit
	if err := l.Eligible(gs); err != nil && !lastResort {
		l.standAside("this agent cannot lead", err)
		return nil, nil
	}
	switch err := l.newer(ctx); {
	case errors.Is(err, errNewer) && !lastResort:
		l.standAside("this agent does not campaign", err)
		return nil, nil
	case err != nil && !errors.Is(err, errNewer):
		l.logReason("cannot check whether this agent may lead; retrying", err)
		return nil, err
	}
	l.loggedReason = ""
	return gs, nil
}

// standAside lets another agent lead. The time is counted from the first call: how long the GatewaySync took to be seen says
// nothing about other agents.
func (l *Lead) standAside(what string, err error) {
	if l.asideSince.IsZero() {
		l.asideSince = l.Now()
	}
	l.logReason(what, err)
}

func (l *Lead) logReason(what string, err error) {
	if l.loggedReason != err.Error() {
		l.Log.Info(what, "reason", err)
	}
	l.loggedReason = err.Error()
}

// errNewer means that newer agents exist. One of them should write the objects that they read.
var errNewer = errors.New("this agent is too old")

// newer returns errNewer if the SyncTarget or the report of a live pod has a newer format than this agent knows. It returns another
// error if the API server does not answer. A newer format is only a hint. Usually a newer agent takes the lock within a minute, but the version may
// have been rolled back, or the report may be forged with a gateway's token. So the caller waits at most a minute.
func (l *Lead) newer(ctx context.Context) error {
	if t := l.lockWatch.state().target; t != nil && t.Spec.Format > v1alpha1.TargetFormat {
		return fmt.Errorf("%w: the SyncTarget has format %d, this agent knows %d; waiting for a newer agent to lead", errNewer, t.Spec.Format, v1alpha1.TargetFormat)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	reports, _, err := kube.SyncReports(l.Clients.Dynamic, l.Namespace).List(ctx, metav1.ListOptions{LabelSelector: reportSelector(l.GatewaySync), ResourceVersion: "0"})
	if err != nil {
		return err
	}
	for _, r := range reports {
		if r.Status.Format <= v1alpha1.ReportFormat {
			continue
		}
		lives, err := l.podRuns(ctx, r)
		if err != nil {
			return err
		}
		if lives {
			return fmt.Errorf("%w: the agent of %s reports in format %d, this one knows %d", errNewer, r.Status.Gateway, r.Status.Format, v1alpha1.ReportFormat)
		}
	}
	return nil
}

// podRuns reports whether the pod of a report runs. A pod that was evicted, or whose Job is finished, keeps its report until it
// is deleted.
func (l *Lead) podRuns(ctx context.Context, r *v1alpha1.SyncReport) (bool, error) {
	pod, err := l.Clients.Core.CoreV1().Pods(l.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	p := podOf(pod)
	return !p.Ended && status.Owns(p, r), nil
}

func reportSelector(name string) string { return v1alpha1.LabelCRName + "=" + name }

// elect takes the lock, leads while it is held, and releases it.
func (l *Lead) elect(ctx context.Context, gs *v1alpha1.GatewaySync, syncs *kube.Informer[v1alpha1.GatewaySync], changed chan struct{}) {
	l.lock.begin(gs, func() { signal(changed) })
	termBegan, termEnded := make(chan struct{}), make(chan struct{})
	leading, resign := context.WithCancel(ctx)
	defer resign()
	// holding outlives ctx, because the lock is released only after the term has ended.
	holding, release := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), logr.Discard()))
	defer release()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: l.lock, Name: l.GatewaySync, LeaseDuration: l.Timing.SlowLock, RenewDeadline: l.Timing.Deadline, RetryPeriod: l.Timing.Renew, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {
				close(termBegan)
				defer close(termEnded)
				l.lead(leading, gs, syncs, changed)
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		l.Log.Error("the election cannot be run", "error", err)
		return
	}
	electionEnded, lost := make(chan struct{}), l.lock.lost()
	go func() {
		defer close(electionEnded)
		elector.Run(holding)
	}()
	l.awaitEnd(ctx, syncs, termBegan, termEnded, electionEnded, lost)
	resign()
	l.lock.stopping.Store(true)
	if !l.lock.held.Load() {
		release()
	}
	select {
	case <-termEnded:
	case <-time.After(stepDown): // safe, because every write checks the lock
	case <-electionEnded: // the term never began, or is awaited below
	}
	release()
	<-electionEnded
	if l.lock.held.Load() {
		<-termEnded
	}
	l.lock.end()
}

// Leading reports whether this agent leads now.
func (l *Lead) Leading() bool { return l.lock.leading() }

// awaitEnd returns when the election or its term is over, or, before the term, if another agent holds the lock or the GatewaySync is gone.
func (l *Lead) awaitEnd(ctx context.Context, syncs *kube.Informer[v1alpha1.GatewaySync], termBegan, termEnded, electionEnded, lost <-chan struct{}) {
	for {
		if !isClosed(termBegan) {
			if _, err := syncs.Get(l.Namespace, l.GatewaySync); l.lockWatch.state().heldByOther || errors.Is(err, kube.ErrNotSeen) {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-electionEnded:
			return
		case <-termEnded:
			return
		case <-lost:
			return
		case <-l.lockWatch.changed:
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (l *Lead) lead(ctx context.Context, gs *v1alpha1.GatewaySync, syncs *kube.Informer[v1alpha1.GatewaySync], changed chan struct{}) {
	if ctx.Err() != nil {
		return
	}
	term := l.lock.spec().Lead.Transitions
	log := l.Log.With("term", term)
	log.Info("leading", "gatewaysync", l.GatewaySync)
	l.Metrics.Elected()
	l.events.send(gs, status.Event{Reason: v1alpha1.EventLeadElected, Note: fmt.Sprintf("the agent of pod %s leads", l.Pod)})
	err := l.serve(ctx, gs, syncs, changed, log)
	switch {
	case ctx.Err() != nil, err == nil:
		log.Info("not leading any more")
	default:
		log.Info("not leading any more", "reason", err)
	}
}
