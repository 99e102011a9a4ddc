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

	"stoker.io/stoker/agent/peers"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/pace"
)

// spec is the GatewaySync as it was read last. It is read once for each generation, and again where that may be another of the
// same number.
type spec struct {
	gs    *v1alpha1.GatewaySync
	owner types.UID // that the target named when it was read
	epoch int       // as suspect was then
	// ref, commit and force are what it was found to ask for: another word of the target has it read again.
	ref, force string
	commit     plan.ID

	of       *v1alpha1.GatewaySync // that peers were made for
	peers    sync.Peers
	failures int
	asked    asked     // what the last try that failed was for
	err      error     // why it did
	retry    time.Time // when it is worth another; zero where only another target is
	due      time.Time // when the next try is; zero where none is needed
	unread   time.Time // since when it cannot be read, or does not bear out the target; zero where it does
}

// asked is all of an instruction that an answer depends on.
type asked struct {
	generation int64
	ref, force string
	commit     plan.ID
	owner      types.UID
	problem    problem
}

var errGone = errors.New("the GatewaySync is gone")

const (
	getTimeout = 10 * time.Second
	// maxGet bounds the pause between two tries to read the GatewaySync.
	maxGet = time.Minute
	// moment is for how long nothing is said of a GatewaySync that cannot be read, where what it said before is followed.
	moment = 30 * time.Second
)

// fetch returns the GatewaySync at the generation that the target follows from, or why there is none now: errGone, a
// failure of class working where it will come by itself, or one of class stalled where it cannot be read.
func (f *Follower) fetch(ctx context.Context, in instruction, poked bool) (*v1alpha1.GatewaySync, error) {
	s, epoch := &f.spec, f.suspect()
	if s.gs != nil && s.gs.Generation == in.generation && s.owner == in.owner && s.epoch == epoch && s.vouches(&in) {
		s.unread, s.ref, s.commit, s.force = time.Time{}, in.ref, in.commit, in.force
		return s.gs, nil
	}
	if in.generation == 0 { // the target says when there is more to read: asking again would be asking for nothing
		return nil, failure.New(v1alpha1.ReasonWaitingForLead, "the lead of GatewaySync %s has not resolved its ref yet", f.GatewaySync)
	}
	this := asked{in.generation, in.ref, in.force, in.commit, in.owner, in.problem}
	if s.err != nil && s.asked == this && !poked && (s.retry.IsZero() || f.Now().Before(s.retry)) {
		s.due = s.retry
		return nil, s.err
	}
	unread := false
	ahead := false // the target has to follow, and it is watched
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
	case gs.Generation != in.generation:
		ahead = gs.Generation > in.generation
		err = failure.New(v1alpha1.ReasonWaitingForLead, "GatewaySync %s has generation %d and its target %d: waiting until they agree", f.GatewaySync, gs.Generation, in.generation)
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
		f.Log.Warn("SyncTarget not followed", "error", err, "generation", in.generation)
	}
	if err != nil && !ahead {
		s.failures++
		s.retry = f.Now().Add(pace.Retry(s.failures, maxGet))
		s.due = s.retry
	}
	if err != nil {
		return nil, err
	}
	s.failures = 0
	// What annotations ask for comes by the target: this copy gets old.
	delete(gs.Annotations, v1alpha1.AnnotationPaused)
	if was := s.gs; was != nil && was.UID == gs.UID && was.Generation == gs.Generation && equality.Semantic.DeepEqual(&was.Spec, &gs.Spec) {
		gs = was // it is the same one, with its connections
	}
	s.gs, s.owner, s.epoch, s.ref, s.commit, s.force = gs, in.owner, epoch, in.ref, in.commit, in.force
	return gs, nil
}

// vouches reports whether the GatewaySync is known to ask for what a target says. Commits of spec.git.ref are many, and git
// tells which are its own.
func (s *spec) vouches(in *instruction) bool {
	return (in.ref == "" || in.ref == s.gs.Spec.Git.Ref || in.ref == s.ref && in.commit == s.commit) && (in.force == "" || in.force == s.force)
}

// lasts reports whether the GatewaySync could not be read for so long that it is no moment any more.
func (s *spec) lasts(now time.Time) bool { return !s.unread.IsZero() && now.Sub(s.unread) >= moment }

// connect makes the two ends of a sync anew where the GatewaySync is another.
func (s *spec) connect(f *Follower, gs *v1alpha1.GatewaySync) error {
	if s.of == gs {
		return nil
	}
	ends, err := peers.Connect(&gs.Spec, gatewayURL(&gs.Spec.Gateway, f.Port, f.TLS), f.Secrets, f.Remote, f.Log)
	if err != nil {
		return err
	}
	if s.of != nil {
		_ = s.peers.Remote.Close() // it only lets go of connections
	}
	s.of, s.peers = gs, ends
	return nil
}

// gatewayURL is where the gateway's web server listens: in the same pod. Port and tls count where the spec names no port.
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
