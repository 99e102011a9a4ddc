package follow

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/record"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/kube"
)

// knownRecord is what the cluster knew about this gateway when the agent started. Until the agent has read it, it follows and reports nothing,
// because its first report replaces the one of the agent before it.
type knownRecord struct {
	known    bool
	force    string // the handled force-sync request of the last report
	failures int
	retry    time.Time
	gaveUp   plan.ID // the reported commit that a new volume cannot get any more
}

// readRecord reads the record, and returns why it is not known yet.
func (f *Follower) readRecord(ctx context.Context) error {
	if f.record.known {
		return nil
	}
	now := f.Now()
	if now.Before(f.record.retry) {
		return errors.New("trying again soon")
	}
	err := f.fetchRecord(ctx)
	if f.record.known = err == nil; err != nil {
		f.record.failures++
		f.record.retry = now.Add(backoff.Retry(f.record.failures, maxReport))
	}
	return err
}

func (f *Follower) fetchRecord(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout(f.record.failures))
	defer cancel()
	var r record.Record
	report, err := f.report.objects.Get(ctx, f.Pod)
	switch _, undecodable := errors.AsType[*kube.UndecodableError](err); {
	case err == nil && report.Status.Gateway == f.Gateway:
		s := &report.Status
		r = newRecord(s.Ref, s.Commit)
		if s.Commit != s.Target { // the ref of the report is that of the target
			r.Ref = ""
		}
		r.Force, f.record.force = s.HandledForceSync, s.HandledForceSync
	case err != nil && !undecodable && !apierrors.IsNotFound(err):
		return err
	}
	if r.Commit.IsZero() || r.Force == "" {
		gs, err := f.spec.objects.Get(ctx, f.GatewaySync)
		switch _, undecodable := errors.AsType[*kube.UndecodableError](err); {
		case err == nil:
			f.completeRecord(&r, gs)
		case !undecodable && !apierrors.IsNotFound(err):
			return err
		}
	}
	return f.Engine.SetRecord(r)
}

// completeRecord adds what the GatewaySync knows. If no report says which force-sync request was handled, the current one counts as handled.
func (f *Follower) completeRecord(r *record.Record, gs *v1alpha1.GatewaySync) {
	if r.Force == "" {
		r.Force = annotation.ForceSync(gs)
	}
	if !r.Commit.IsZero() {
		return
	}
	for i := range gs.Status.DiscoveredGateways {
		if g := &gs.Status.DiscoveredGateways[i]; g.Name == f.Gateway {
			force := r.Force
			*r = newRecord(g.SyncedRef, g.SyncedCommit)
			r.Force = force
		}
	}
}

// newRecord returns a record of what an object says. Any gateway's token can write the object, so a value that is not valid counts as
// missing.
func newRecord(ref, commit string) record.Record {
	id, err := plan.ParseID(commit)
	if err != nil || id.IsZero() {
		return record.Record{}
	}
	if _, err := repo.ParseRef(ref); err != nil {
		ref = ""
	}
	return record.Record{Ref: ref, Commit: id}
}
