package lead

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

const (
	// requestTimeout is the time limit of one request. An overloaded API server carries out most requests, and answers late: a request that is
	// repeated adds to its load. endTimeout is the limit while the agent stops.
	requestTimeout, endTimeout = 20 * time.Second, 4 * time.Second
	// slowAnswer is the time from which an answer about the lock counts as slow.
	slowAnswer = time.Second
)

// Timing has the durations of an election. All agents of a GatewaySync have the same.
type Timing struct {
	// Lock is how long the other agents wait for a lead that does not renew the lock, and SlowLock the same while the API server is slow. It
	// counts as slow for SlowFor after a slow answer.
	Lock, SlowLock, SlowFor time.Duration
	// Renew is the interval of renewals, and Deadline how long a lead tries to renew its lock until its term ends. It may write only for
	// two thirds of the duration in the lock (see checkConfirmed).
	Renew, Deadline time.Duration
}

// DefaultTiming returns the durations of agents outside of tests.
func DefaultTiming() Timing {
	return Timing{Lock: v1alpha1.LeadDuration, SlowLock: v1alpha1.MaxLeadDuration, SlowFor: time.Minute, Renew: 5 * time.Second, Deadline: 50 * time.Second}
}

// fieldManager is the field manager of targets, statusManager that of statuses.
const (
	fieldManager  = "stoker-agent"
	statusManager = "stoker-lead"
)

var (
	// errLost means that this agent does not lead any more.
	errLost = errors.New("the lock is no longer held")
	// errUnconfirmed means that this agent must not write until it has renewed the lock.
	errUnconfirmed = errors.New("the lock was not renewed in time")
)

// lock is the election lock, stored in the SyncTarget itself. While it is held, every write of the target goes through it and
// is based on the last version that it wrote or read, so that any other write in between causes a conflict.
//
// An agent campaigns for the lock, and leads for one term if it gets it. begin starts a campaign; the campaign and its term end
// with end, or as soon as the lock is lost.
type lock struct {
	targets  *kube.Objects[v1alpha1.SyncTarget]
	syncs    *kube.Objects[v1alpha1.GatewaySync]
	name     string
	identity string
	timing   Timing
	watch    *lockWatch   // what the watch of this agent shows of the lock
	log      *slog.Logger // for rejected takeovers

	// held reports that the lock was held at any time in this campaign, stopping that the agent gives it up. Both can be read during a request.
	held, stopping atomic.Bool

	mu        sync.Mutex // held during requests
	c         campaign
	refused   string    // the error of the last rejected takeover, so that it is logged once
	slowUntil time.Time // the API server counts as slow until then
}

// campaign is the state of a campaign for one GatewaySync.
type campaign struct {
	owner          metav1.OwnerReference // the GatewaySync
	onForeignWrite func()                // called if another writer changed what the lead had written

	state role
	// base is the version that the next write is based on, term the number of transitions when this agent took the lock, and confirmedAt
	// when the latest request was sent whose answer confirmed that we hold it.
	base        *v1alpha1.SyncTarget
	term        int32
	confirmedAt time.Time
	lost        chan struct{} // closed when the lock is lost
	lostFor     error         // why; nil if it is not lost
}

// role is what this agent is in a campaign:
//
//	             takes the lock   releases it, or ends   learns that it cannot lead
//	campaigning  → holding        → campaigning          → excluded
//	holding      → holding        → former               → deposed
//	former       → holding        → former               → deposed
//
// An excluded or deposed agent cannot take the lock before the next campaign.
type role string

const (
	campaigning role = "campaigning"
	holding     role = "holding"
	former      role = "former"
	excluded    role = "excluded"
	deposed     role = "deposed"
)

// led reports whether the lock was held at any time in the campaign.
func (r role) led() bool { return r == holding || r == former || r == deposed }

// released returns the state after the lock was released or the campaign has ended.
func (r role) released() role {
	if r == holding {
		return former
	}
	return r
}

// barred returns the state after the agent has learned that it cannot lead.
func (r role) barred() role {
	if r.led() {
		return deposed
	}
	return excluded
}

var _ resourcelock.Interface = (*lock)(nil)

// begin prepares for a campaign for a GatewaySync. onForeignWrite must not block.
func (l *lock) begin(gs *v1alpha1.GatewaySync, onForeignWrite func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held.Store(false)
	l.stopping.Store(false)
	l.c = campaign{
		owner:          metav1.OwnerReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindGatewaySync, Name: gs.Name, UID: gs.UID},
		onForeignWrite: onForeignWrite, state: campaigning, lost: make(chan struct{}),
	}
}

// lost returns a channel that is closed when the lock is lost in this campaign.
func (l *lock) lost() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.c.lost
}

// lose ends the term because of err, which it returns.
func (l *lock) lose(err error) error {
	if l.c.lostFor == nil {
		l.c.lostFor = err
		close(l.c.lost)
	}
	l.c.state = l.c.state.barred()
	return err
}

// Get implements resourcelock.Interface. A candidate gets what this agent's watch shows, with an empty holder if the holder's lock has
// expired. The holder gets the record from the API server.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.c.lostFor != nil {
		return nil, nil, l.c.lostFor
	}
	if l.c.state == holding {
		if err := l.refresh(ctx); err != nil {
			return nil, nil, err
		}
		return record(l.c.base.Spec.Lead)
	}
	st := l.watch.state()
	if st.target == nil {
		return nil, nil, apierrors.NewNotFound(kube.SyncTarget.Resource().GroupResource(), l.name)
	}
	l.c.base = st.target
	lead := st.target.Spec.Lead
	if st.free {
		lead.Holder = ""
	}
	return record(lead)
}

// refresh reads the target from the API server. It fails if this agent does not hold the lock any more, and calls onForeignWrite if
// another writer changed the target.
func (l *lock) refresh(ctx context.Context) error {
	sent := time.Now()
	defer l.measure(sent)
	ctx, cancel := context.WithTimeout(ctx, l.timeout())
	defer cancel()
	t, err := l.targets.Get(ctx, l.name)
	if err != nil {
		return err // if it was deleted, the election creates it again
	}
	if lead := t.Spec.Lead; lead.Holder != l.identity || lead.Transitions != l.c.term {
		return l.lose(fmt.Errorf("%w: %s leads", errLost, cmp.Or(lead.Holder, "no agent")))
	}
	is := t.Spec.DeepCopy()
	if is.Lead = l.c.base.Spec.Lead; !equality.Semantic.DeepEqual(*is, l.c.base.Spec) {
		l.c.onForeignWrite()
	}
	l.c.base, l.c.confirmedAt = t, sent
	return nil
}

// Create implements resourcelock.Interface. It creates the SyncTarget if its GatewaySync still exists.
func (l *lock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.c.lostFor != nil {
		return l.c.lostFor
	}
	sent := time.Now()
	ctx, cancel := context.WithTimeout(ctx, 2*l.timeout())
	defer cancel()
	gs, err := l.syncs.Get(ctx, l.name)
	if bad, ok := errors.AsType[*kube.UndecodableError](err); ok {
		gs, err = metadataAndStatus(bad.Object), nil
	}
	switch {
	case apierrors.IsNotFound(err), err == nil && (gs.UID != l.c.owner.UID || gs.DeletionTimestamp != nil):
		return l.lose(fmt.Errorf("%w: GatewaySync %s is gone", errLost, l.name))
	case err != nil:
		return err
	}
	t := &v1alpha1.SyncTarget{Spec: v1alpha1.SyncTargetSpec{Format: v1alpha1.TargetFormat}}
	if l.c.state == holding { // a user deleted the target while we hold the lock
		t.Spec = l.c.base.Spec
	}
	t.Name, t.Namespace, t.OwnerReferences = l.name, gs.Namespace, []metav1.OwnerReference{l.c.owner}
	t.Spec.Lead = l.leadRecord(r)
	made, err := l.targets.Create(ctx, t, metav1.CreateOptions{FieldManager: fieldManager})
	l.measure(sent)
	if err != nil {
		return l.logRefusal(err)
	}
	l.recordWrite(made, sent)
	return nil
}

// look reads the target for an agent that does not hold the lock, and returns how long the answer took.
func (l *lock) look(ctx context.Context) (*v1alpha1.SyncTarget, time.Duration, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sent := time.Now()
	defer l.measure(sent)
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	t, err := l.targets.Get(ctx, l.name)
	return t, time.Since(sent), err
}

// logRefusal logs once why the API server rejects a takeover, unless another agent was faster.
func (l *lock) logRefusal(err error) error {
	if l.c.state != holding && !errors.Is(err, context.Canceled) && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && l.refused != err.Error() {
		l.log.Warn("takeover refused", "synctarget", l.name, "error", err)
		l.refused = err.Error()
	}
	return err
}

// Update implements resourcelock.Interface. It takes, renews or releases the lock.
func (l *lock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.c.lostFor != nil {
		return l.c.lostFor
	}
	if l.c.base == nil {
		return errors.New("the target has not been seen yet")
	}
	t := l.c.base.DeepCopy()
	if l.c.state != holding {
		l.takeOver(t)
	}
	t.Spec.Lead = l.leadRecord(r)
	made, sent, err := l.update(ctx, t)
	if err != nil {
		return l.logRefusal(err)
	}
	l.recordWrite(made, sent)
	return nil
}

// takeOver adapts the content of a target before this agent takes the lock: it gets the format of this version. takeOver discards the content of
// a target that does not belong to this GatewaySync, but for example to a deleted one of the same name. If this version cannot follow the target,
// takeOver keeps only the revision.
func (l *lock) takeOver(t *v1alpha1.SyncTarget) {
	for _, o := range t.OwnerReferences {
		if o.UID != l.c.owner.UID {
			continue
		}
		if t.Spec.Format > v1alpha1.TargetFormat {
			t.Spec = v1alpha1.SyncTargetSpec{Revision: t.Spec.Revision}
		}
		t.Spec.Format = v1alpha1.TargetFormat
		return
	}
	t.Spec = v1alpha1.SyncTargetSpec{Format: v1alpha1.TargetFormat}
}

// update writes a target, with the GatewaySync of this term as its only owner: agents follow no target of another one.
func (l *lock) update(ctx context.Context, t *v1alpha1.SyncTarget) (*v1alpha1.SyncTarget, time.Time, error) {
	sent := time.Now()
	defer l.measure(sent)
	ctx, cancel := context.WithTimeout(ctx, l.timeout())
	defer cancel()
	t.OwnerReferences = []metav1.OwnerReference{l.c.owner}
	made, err := l.targets.Update(ctx, t, metav1.UpdateOptions{FieldManager: fieldManager})
	return made, sent, err
}

func (l *lock) recordWrite(t *v1alpha1.SyncTarget, sent time.Time) {
	l.c.base, l.c.confirmedAt, l.c.term = t, sent, t.Spec.Lead.Transitions
	if l.c.state = l.c.state.released(); t.Spec.Lead.Holder == l.identity {
		l.c.state, l.refused = holding, ""
		l.held.Store(true)
	}
}

// measure records that the API server is slow if the request that was sent at sent took at least slowAnswer. A failed request counts, too: the API
// server may be out of reach.
func (l *lock) measure(sent time.Time) {
	if now := time.Now(); now.Sub(sent) >= slowAnswer {
		l.slowUntil = now.Add(l.timing.SlowFor)
	}
}

// duration returns how long the lock is valid after the next renewal. If the API server is slow, a renewal may take longer than usual.
// Another lead would not be faster, and its start costs the API server more requests.
func (l *lock) duration() time.Duration {
	if time.Now().Before(l.slowUntil) {
		return l.timing.SlowLock
	}
	return l.timing.Lock
}

func (l *lock) timeout() time.Duration {
	if l.stopping.Load() {
		return endTimeout
	}
	return requestTimeout
}

// end ends a campaign, whether the lock was held or not.
func (l *lock) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.c.state = l.c.state.released()
}

func (l *lock) leading() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.c.state == holding && l.checkConfirmed() == nil
}

// spec returns the target as last written or read; zero before the first.
func (l *lock) spec() v1alpha1.SyncTargetSpec {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.c.base == nil {
		return v1alpha1.SyncTargetSpec{}
	}
	return *l.c.base.Spec.DeepCopy()
}

// write changes the target except for its lock.
func (l *lock) write(ctx context.Context, change func(*v1alpha1.SyncTargetSpec)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for try := 0; ; try++ {
		if err := l.checkConfirmed(); err != nil {
			return err
		}
		t := l.c.base.DeepCopy()
		change(&t.Spec)
		t.Spec.Lead = l.c.base.Spec.Lead
		t.Spec.Format = v1alpha1.TargetFormat
		if equality.Semantic.DeepEqual(t.Spec, l.c.base.Spec) {
			return nil
		}
		made, sent, err := l.update(ctx, t)
		if err == nil {
			l.recordWrite(made, sent)
			return nil
		}
		if !apierrors.IsConflict(err) || try == 1 {
			return err
		}
		// The SyncTarget changed in between: a user set a label, for example, or another agent took the lock. Retry
		// once if we still hold the lock.
		if err := l.refresh(ctx); err != nil {
			return err
		}
	}
}

// read is refresh for callers that do not hold the mutex. It fails without a request if the lock was not confirmed in
// time.
func (l *lock) read(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.checkConfirmed(); err != nil {
		return err
	}
	return l.refresh(ctx)
}

// checkConfirmed fails if this agent may not write: the lock is lost, or was not confirmed in time, for example because the process was
// suspended. The next renewal shows whether it is still held.
func (l *lock) checkConfirmed() error {
	switch {
	case l.c.lostFor != nil:
		return l.c.lostFor
	case l.c.state != holding:
		return errLost
	case !time.Now().Before(l.confirmedUntil()):
		return fmt.Errorf("%w: %s ago", errUnconfirmed, time.Since(l.c.confirmedAt).Round(time.Second))
	}
	return nil
}

// confirmedUntil returns when the latest confirmation is too old for a write: long before another agent may take the lock.
func (l *lock) confirmedUntil() time.Time {
	return l.c.confirmedAt.Add(l.c.base.Spec.Lead.ValidFor() * 2 / 3)
}

// confirm verifies at the API server that this agent still holds the lock. Call it right before writing another object, which
// is not protected by the target's resourceVersion. The returned context ends when the confirmation is too old.
func (l *lock) confirm(ctx context.Context) (context.Context, context.CancelFunc, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.checkConfirmed(); err != nil {
		return nil, nil, err
	}
	if err := l.refresh(ctx); err != nil {
		return nil, nil, err
	}
	if err := l.checkConfirmed(); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithDeadline(ctx, l.confirmedUntil())
	return ctx, cancel, nil
}

// RecordEvent implements resourcelock.Interface. It does nothing, because the new lead sends the Event itself.
func (l *lock) RecordEvent(string) {}

// Identity implements resourcelock.Interface.
func (l *lock) Identity() string { return l.identity }

// Describe implements resourcelock.Interface.
func (l *lock) Describe() string { return "SyncTarget " + l.name }

// leadRecord converts an election record, for a lock of this duration. The number of transitions wraps to 0 after 31 bits, because terms are
// only compared for equality.
func (l *lock) leadRecord(r resourcelock.LeaderElectionRecord) v1alpha1.LeadRecord {
	lead := v1alpha1.LeadRecord{Holder: r.HolderIdentity, DurationSeconds: int32(r.LeaseDurationSeconds), Transitions: int32(r.LeaderTransitions & math.MaxInt32)}
	if r.HolderIdentity != "" {
		lead.DurationSeconds = int32(l.duration().Seconds())
	}
	if !r.AcquireTime.IsZero() {
		lead.Acquired = &metav1.MicroTime{Time: r.AcquireTime.Time}
	}
	if !r.RenewTime.IsZero() {
		lead.Renewed = &metav1.MicroTime{Time: r.RenewTime.Time}
	}
	return lead
}

func record(lead v1alpha1.LeadRecord) (*resourcelock.LeaderElectionRecord, []byte, error) {
	r := &resourcelock.LeaderElectionRecord{HolderIdentity: lead.Holder, LeaseDurationSeconds: int(lead.DurationSeconds), LeaderTransitions: int(lead.Transitions)}
	if lead.Acquired != nil {
		r.AcquireTime = metav1.Time{Time: lead.Acquired.Time}
	}
	if lead.Renewed != nil {
		r.RenewTime = metav1.Time{Time: lead.Renewed.Time}
	}
	raw, err := json.Marshal(r)
	return r, raw, err
}
