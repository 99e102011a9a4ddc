package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/internal/status"
	"stoker.io/stoker/receiver/queue"
)

const (
	// readTimeout limits the reads for one answer.
	readTimeout = 5 * time.Second
	// noGatewaysTimeout is how long after a request a fleet may have no gateways, which may be created together with the request.
	noGatewaysTimeout = time.Minute
	maxQuery          = 256 // bytes of a parameter
	// maxWait limits how long an answer may be held back. It must be shorter than the drain time of the server. maxWaiting
	// limits how many are held back at the same time, half of them for one object. It must be lower than the connections of one address.
	maxWait    = 10 * time.Second
	maxWaiting = 64
	// cachePollInterval is how often the cache is checked for a change. readInterval is how often the API server is queried
	// without a change.
	cachePollInterval, readInterval = 100 * time.Millisecond, 2 * time.Second
)

// Status is the answer to GET /status.
type Status struct {
	// Phase is Progressing, Succeeded, Failed or Superseded.
	Phase request.Phase `json:"phase"`
	// Ref is the desired ref, and Commit its commit, or "" while it is unknown.
	Ref      string          `json:"ref"`
	Commit   string          `json:"commit"`
	Gateways request.Count   `json:"gateways"`
	Reason   v1alpha1.Reason `json:"reason,omitempty"`
	Message  string          `json:"message"`
}

// serveStatus serves GET /status/{namespace}/{name}.
func (s *Server) serveStatus(w http.ResponseWriter, r *http.Request) {
	s.Metrics.Status(string(s.answerStatus(w, r)))
}

func (s *Server) answerStatus(w http.ResponseWriter, r *http.Request) Result {
	c, release, rejected := s.admit(w, r, true)
	release()
	if rejected != "" {
		return rejected
	}
	if !c.ownSecret {
		w.Header().Set("WWW-Authenticate", `Bearer realm="stoker"`)
		return writeResult(w, http.StatusUnauthorized, Refused, errOwnSecretNeeded.Error())
	}
	q, err := parseQuery(r.URL.RawQuery)
	if err != nil {
		return writeResult(w, http.StatusBadRequest, Invalid, err.Error())
	}
	status, err := s.waitForStatus(r.Context(), c, q)
	switch {
	case apierrors.IsNotFound(err):
		return writeResult(w, http.StatusNotFound, Unknown, "the "+c.key.Kind.Name+" is gone")
	case err != nil:
		s.Log.Error("the status was not read", "namespace", c.key.Namespace, logKey(c.key.Kind), c.key.Name, "error", err)
		writeBusy(w, "the status could not be read from the API server")
		return Failed
	}
	writeJSON(w, http.StatusOK, status)
	return Result(status.Phase)
}

// query holds the parameters: ref, commit and request id, each "" for any, and how long to wait for a final phase.
type query struct {
	ref, commit, id string
	wait            time.Duration
}

// parseQuery parses ?ref=…&commit=…&id=…&wait=….
func parseQuery(raw string) (q query, err error) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return q, errors.New("the query cannot be read: write ?ref=…&commit=…&id=…&wait=…, percent-encoded")
	}
	wait := ""
	for name, into := range map[string]*string{"ref": &q.ref, "commit": &q.commit, "id": &q.id, "wait": &wait} {
		list := values[name]
		if len(list) > 1 {
			return q, fmt.Errorf("%s is given %d times, not once", name, len(list))
		}
		if len(list) == 0 {
			continue
		}
		if *into = list[0]; *into == "" {
			return q, fmt.Errorf("%s is empty: set a value, or omit the parameter", name)
		}
		if len(*into) > maxQuery {
			return q, fmt.Errorf("%s is longer than %d characters", name, maxQuery)
		}
	}
	if q.commit != "" && !syntax.IsCommit(q.commit) {
		return q, errors.New("commit is not a commit of 40 hexadecimal digits")
	}
	if wait != "" {
		if q.wait, err = time.ParseDuration(wait); err != nil || q.wait < 0 || q.wait > maxWait {
			return q, fmt.Errorf("wait is not a duration from 0s to %s", maxWait)
		}
	}
	return q, nil
}

// waitForStatus returns the status when it is final or q.wait has passed. While it waits, it checks the cache, and reads the object only if
// its phase in the cache is final, or the cache has not changed for a while. If too many callers wait already, it returns at once.
func (s *Server) waitForStatus(ctx context.Context, c caller, q query) (Status, error) {
	status, err := s.readStatus(ctx, c, q)
	if q.wait == 0 || err != nil || status.Phase != request.Progressing {
		return status, err
	}
	leave, ok := s.waiting.enter(c.key)
	if !ok {
		return status, nil
	}
	defer leave()
	end, version := time.Now().Add(q.wait), ""
	for lastRead := time.Now(); time.Now().Before(end) && backoff.Wait(ctx, min(cachePollInterval, time.Until(end))); {
		cached := s.find.Get(c.key.Kind, c.key.Namespace, c.key.Name)
		if cached == nil || cached.GetResourceVersion() == version && time.Since(lastRead) < readInterval {
			continue
		}
		if cached.GetResourceVersion() != version {
			version = cached.GetResourceVersion()
			if request.Replaced(cached, c.object.GetUID()) == nil && s.statusOf(observation{object: cached}, q).Phase == request.Progressing {
				continue
			}
		}
		lastRead = time.Now()
		if status, err = s.readStatus(ctx, c, q); err != nil || status.Phase != request.Progressing {
			return status, err
		}
	}
	return status, nil
}

// waiters counts the callers that wait for a phase, in all and for each object.
type waiters struct {
	mu  sync.Mutex
	all int
	of  map[queue.Key]int
}

// enter counts a caller until leave is called. It returns false if there are too many. One object gets at most half of all.
func (w *waiters) enter(key queue.Key) (leave func(), ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all >= maxWaiting || w.of[key] >= maxWaiting/2 {
		return nil, false
	}
	w.all, w.of[key] = w.all+1, w.of[key]+1
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.all--; w.of[key] == 1 {
			delete(w.of, key)
			return
		}
		w.of[key]--
	}, true
}

// observe reads the object of a key from the API server, for s.statusReads.
func (s *Server) observe(ctx context.Context, key queue.Key) (seen observation) {
	defer func() { // it runs outside of the handlers, which recover themselves
		if p := recover(); p != nil {
			s.Metrics.Panic()
			s.Log.Error("panic while reading an object; please report it", "namespace", key.Namespace, logKey(key.Kind), key.Name, "panic", p)
			seen = observation{err: errPanic}
		}
	}()
	seen.object, seen.err = request.NewSetter(s.statusClients.Dynamic, nil).Of(key.Kind).Get(ctx, key.Namespace, key.Name)
	gs, ok := seen.object.(*v1alpha1.GatewaySync)
	if seen.err != nil || !ok || request.Read(gs, "", nil, s.statusClients.Clock.Now()).Phase != request.Succeeded {
		return seen
	}
	target, err := request.TargetOf(ctx, s.statusClients, gs)
	if err != nil {
		s.Log.Debug("a failure may be reported late", "namespace", gs.Namespace, "gatewaysync", gs.Name, "error", err)
	}
	seen.target = target
	return seen
}

// readStatus returns the status of the object that the API server has, because the cache may be older than the request in question. If the
// object was replaced, the error is NotFound: the caller authenticated with the secret of the old object.
func (s *Server) readStatus(ctx context.Context, c caller, q query) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	seen := s.statusReads.get(ctx, c.key)
	if seen.err == nil {
		seen.err = request.Replaced(seen.object, c.object.GetUID())
	}
	if bad, ok := errors.AsType[*kube.UndecodableError](seen.err); ok {
		return Status{Phase: request.Failed, Ref: q.ref, Message: bad.Error()}, nil
	}
	if seen.err != nil {
		return Status{}, seen.err
	}
	return s.statusOf(seen, q), nil
}

// statusOf returns the answer for an object.
func (s *Server) statusOf(seen observation, q query) Status {
	now := s.statusClients.Clock.Now()
	switch o := seen.object.(type) {
	case *v1alpha1.GatewaySync:
		return withDeadline(o, request.At(o, request.Read(o, q.ref, seen.target, now), q.commit), q.id, now)
	case *v1alpha1.ConfigSync:
		return summarize(o, request.At(o, request.ReadConfig(o, q.ref), q.commit), q.id)
	}
	return Status{Phase: request.Failed, Ref: q.ref, Message: "this kind has no status"} // it never happens: the routes name the two kinds
}

// maxClockSkew is how far a recorded time may be in the future, because the API server's clock is only known to within a few seconds.
const maxClockSkew = 5 * time.Second

// requestTime returns when the desired ref was requested, or when the object was created if there is no request. It uses the API server's
// record of the write, because the clocks of senders may be wrong, and otherwise the time in the annotation. It ignores times in the
// future: a user who may patch metadata.managedFields could otherwise keep a request in progress for years.
func requestTime(gs *v1alpha1.GatewaySync, now time.Time) time.Time {
	since := gs.CreationTimestamp.Time
	if gs.Annotations[v1alpha1.AnnotationRequestedAt] == "" {
		return since
	}
	recorded := false
	for _, m := range gs.ManagedFields {
		if m.Time == nil || m.FieldsV1 == nil || !strings.Contains(m.FieldsV1.GetRawString(), `"f:`+v1alpha1.AnnotationRequestedAt+`"`) || m.Time.After(now.Add(maxClockSkew)) {
			continue
		}
		recorded = true
		if m.Time.After(since) {
			since = m.Time.Time
		}
	}
	at, err := time.Parse(time.RFC3339Nano, gs.Annotations[v1alpha1.AnnotationRequestedAt])
	if !recorded && err == nil && at.After(since) && !at.After(now) {
		since = at
	}
	return since
}

// summarize returns the part of a Status that all kinds have in common. A request that the receiver never accepted has failed.
func summarize(o v1alpha1.Requestable, v request.Verdict, id string) Status {
	st := Status{Phase: v.Phase, Ref: v.Ref, Commit: v.Commit, Gateways: v.Gateways, Reason: v.Reason, Message: v.Message}
	if st.Phase == request.Held || st.Phase == request.Paused {
		st.Phase = request.Progressing
	}
	if st.Phase != request.Overtaken && request.NotTaken(o, id) {
		st.Phase, st.Reason = request.Failed, ""
		st.Message = fmt.Sprintf("request %.100s was never accepted: POST it to /webhook first, and check the answer", id)
	}
	return st
}

// withDeadline converts a verdict to an answer. A request that makes no progress fails after a deadline, because a polling caller may
// have no deadline of its own. withDeadline is pure.
func withDeadline(gs *v1alpha1.GatewaySync, v request.Verdict, id string, now time.Time) Status {
	st := summarize(gs, v, id)
	if st.Phase != request.Progressing {
		return st
	}
	if v.Reason.Cause() == v1alpha1.CausePlan { // the spec asks for this wait: the caller's own timeout ends it
		return st
	}
	since := requestTime(gs, now)
	if v.Reason == v1alpha1.ReasonNoGateways {
		if now.Sub(since) >= noGatewaysTimeout {
			st.Phase = request.Failed
			st.Message = "nothing runs " + st.Ref + ": " + status.NoGateways(gs.Name)
		}
		return st
	}
	// A new commit, a step of a rollout, the end of a planned wait, or a gateway that fell back may restart the progress after the
	// request. The condition Ready is not used, because it changes whenever agents start or stop.
	if v.Since.After(since) { // agents were present until then
		since = v.Since
	}
	if c := meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionReconciling); c != nil && c.LastTransitionTime.After(since) && !c.LastTransitionTime.After(now) {
		since = c.LastTransitionTime.Time
	}
	if deadline := effective.ProgressDeadline(&gs.Spec); now.Sub(since) >= deadline {
		st.Phase, st.Reason = request.Failed, v1alpha1.ReasonProgressDeadlineExceeded
		st.Message = fmt.Sprintf("not done within spec.progressDeadline (%s): %s", deadline, v.Message)
	}
	return st
}
