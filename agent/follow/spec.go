package follow

import (
	"context"
	"errors"
	"net"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/storage"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

// spec is the last read GatewaySync. It is read once for each generation, and again if the same generation may mean another
// spec.
type spec struct {
	gs    *v1alpha1.GatewaySync
	owner types.UID // that the target named when it was read
	epoch int       // as suspect was then
	// ref, commit, force, confirmed, propose, restore and again (retry) are what it was found to ask for. If the target says something else, it is read again.
	ref, force, confirmed, propose, restore, again string
	commit                                         plan.ID
	rollback                                       bool // it asked for a rollback
	request                                        sync.Request

	of          *v1alpha1.GatewaySync // that the connections were made for
	connections sync.Connections
	failures    int
	asked       asked     // what the last failed attempt was for
	err         error     // why it failed
	retry       time.Time // when to retry; zero for only with another target
	due         time.Time // when the next attempt is due; zero if none is needed
	unread      time.Time // when it began to be unreadable or not to confirm the target; zero if all is well
}

// asked is the part of an instruction that the result depends on.
type asked struct {
	generation                                     int64
	ref, force, confirmed, propose, restore, again string
	commit                                         plan.ID
	owner                                          types.UID
	problem                                        problem
}

var errGone = errors.New("the GatewaySync is gone")

const (
	getTimeout = 10 * time.Second
	// maxGet is the longest pause between two attempts to read the GatewaySync.
	maxGet = time.Minute
	// moment is how long an unreadable GatewaySync is not reported while an order is in force.
	moment = 30 * time.Second
)

// fetch returns the GatewaySync at the target's generation. Otherwise the error is errGone, a failure of class working if a
// retry may help, or one of class stalled if the GatewaySync is invalid.
func (f *Follower) fetch(ctx context.Context, in instruction, changed bool) (*v1alpha1.GatewaySync, error) {
	s, epoch := &f.spec, f.suspect()
	if s.gs != nil && s.gs.Generation == in.Generation && s.owner == in.owner && s.epoch == epoch && s.vouches(&in) {
		s.unread = time.Time{}
		s.believe(&in)
		return s.gs, nil
	}
	if in.Generation == 0 { // the target will say when there is something to read
		return nil, failure.New(v1alpha1.ReasonWaitingForLead, "the lead of GatewaySync %s has not resolved its ref yet", f.GatewaySync)
	}
	this := asked{in.Generation, in.Ref, in.ForceID, in.ConfirmDeletion, in.Propose, in.Restore, in.Retry, in.Commit, in.owner, in.problem}
	if s.err != nil && s.asked == this && !changed && (s.retry.IsZero() || f.Now().Before(s.retry)) {
		s.due = s.retry
		return nil, s.err
	}
	unread := false
	ahead := false // the target will follow, and it is watched
	get, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	gs, err := kube.GatewaySyncs(f.API, f.Namespace).Get(get, f.GatewaySync)
	switch undecodable := (*kube.UndecodableError)(nil); {
	case apierrors.IsNotFound(err):
		err = errGone
	case errors.As(err, &undecodable):
		err = failure.New(v1alpha1.ReasonProfilesInvalid, "%w", err)
	case err != nil:
		unread = true
		err = failure.New(v1alpha1.ReasonProgressing, "GatewaySync %s cannot be read, it is tried again: %w", f.GatewaySync, err)
	case in.owner != "" && gs.UID != in.owner:
		err = failure.New(v1alpha1.ReasonWaitingForLead, "the SyncTarget belongs to another GatewaySync that had the name %s: waiting for its own", f.GatewaySync)
	case gs.Generation != in.Generation:
		ahead = gs.Generation > in.Generation
		err = failure.New(v1alpha1.ReasonWaitingForLead, "GatewaySync %s has generation %d and its target %d: waiting until they agree", f.GatewaySync, gs.Generation, in.Generation)
		if p, ok := in.unresolved(gs.Generation); ok {
			err = failure.New(p.Reason, "%s", p.Message)
		}
		if eff, bad := f.effective(gs); bad == nil {
			f.startup.policy(eff.Startup, gs)
		}
	default:
		err = f.vouched(gs, &in)
		unread = err != nil
	}
	s.asked, s.err, s.retry = this, err, time.Time{}
	switch {
	case !unread:
		s.unread = time.Time{}
	case s.unread.IsZero():
		s.unread = f.Now()
		f.Log.Warn("SyncTarget not followed", "error", err, "generation", in.Generation)
	}
	if err != nil && !ahead {
		s.failures++
		s.retry = f.Now().Add(backoff.Retry(s.failures, maxGet))
		s.due = s.retry
	}
	if err != nil {
		return nil, err
	}
	s.failures, s.rollback = 0, gs.RequestedUnless() != ""
	s.request = sync.Request{By: gs.RequestedBy(), For: gs.Annotations[v1alpha1.AnnotationRequestedFor], At: gs.Annotations[v1alpha1.AnnotationRequestedAt]}
	// Requests in annotations come through the target; this copy becomes stale.
	delete(gs.Annotations, v1alpha1.AnnotationPaused)
	if was := s.gs; was != nil && was.UID == gs.UID && was.Generation == gs.Generation && equality.Semantic.DeepEqual(&was.Spec, &gs.Spec) {
		gs = was // unchanged: keep its connections
	}
	s.gs, s.owner, s.epoch = gs, in.owner, epoch
	s.believe(&in)
	return gs, nil
}

// believe records what the GatewaySync is known to ask for.
func (s *spec) believe(in *instruction) {
	s.ref, s.commit, s.force, s.confirmed = in.Ref, in.Commit, in.ForceID, in.ConfirmDeletion
	s.propose, s.restore, s.again = in.Propose, in.Restore, in.Retry
}

// vouches reports whether the GatewaySync is known to ask for what a target says. Commits of spec.git.ref are many, and git
// tells which are its own.
func (s *spec) vouches(in *instruction) bool {
	return (in.Ref == "" || in.Ref == s.gs.Spec.Git.Ref || in.Ref == s.ref && in.Commit == s.commit) && (in.ForceID == "" || in.ForceID == s.force) &&
		(in.ConfirmDeletion == "" || in.ConfirmDeletion == s.confirmed) && (in.Propose == "" || in.Propose == s.propose) &&
		(in.Restore == "" || in.Restore == s.restore) && (in.Retry == "" || in.Retry == s.again)
}

// lasts reports whether the GatewaySync has been unreadable for longer than moment.
func (s *spec) lasts(now time.Time) bool { return !s.unread.IsZero() && now.Sub(s.unread) >= moment }

// connect creates the connections of a sync if the GatewaySync changed.
func (s *spec) connect(f *Follower, gs *v1alpha1.GatewaySync) error {
	if s.of == gs {
		return nil
	}
	made, err := connect.New(&gs.Spec, gatewayURL(&gs.Spec.Gateway, f.Port, f.TLS), f.Secrets, f.Remote, f.Log)
	if err != nil {
		return err
	}
	if made.Storage, err = storage.New(&gs.Spec, f.Secrets); err != nil {
		return errors.Join(err, made.Remote.Close())
	}
	if s.of != nil {
		_ = s.connections.Remote.Close() // only closes connections
	}
	s.of, s.connections = gs, made
	return nil
}

// gatewayURL returns the address of the gateway's web server, which is in the same pod. port and tls apply if the spec sets no
// port.
func gatewayURL(g *v1alpha1.GatewaySpec, port int32, tls bool) string {
	tls = g.TLS || g.Port == nil && tls
	if g.Port != nil || port == 0 {
		port = g.EffectivePort()
	}
	scheme := "http"
	if tls {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port)))
}
