package server

import (
	"context"
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/internal/sender"
	"stoker.io/stoker/receiver/queue"
)

// unknown is the source label of an unauthenticated request.
const unknown = "unknown"

// webhook serves POST /webhook/{namespace}/{name}.
func (s *Server) webhook(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	source, result := s.receive(w, r)
	s.Metrics.Received(source, result, time.Since(began))
}

func (s *Server) receive(w http.ResponseWriter, r *http.Request) (source, result string) {
	c, release, refused := s.admit(w, r, false)
	if refused != "" {
		release()
		return unknown, refused
	}
	request, err := sender.Parse(r.Header, c.body)
	c.body = nil
	release()
	source = request.Sender
	if err != nil {
		say(w, http.StatusBadRequest, "invalid", err.Error())
		return source, "invalid"
	}
	if request.Kind == sender.Ping {
		say(w, http.StatusOK, "pong", "the secret is right; pushes will be taken")
		return source, "pong"
	}
	key := c.key
	ctx, cancel := context.WithTimeout(r.Context(), answerWithin)
	defer cancel()
	ask, why, err := decide(c.of, request, c.own)
	if err == nil && why != "" && request.Kind != sender.Nothing { // the cache may be older than the push
		now, problem := s.now(ctx, key, c.of.GetUID())
		if problem != nil {
			return source, s.failed(w, key, problem)
		}
		ask, why, err = decide(now, request, c.own)
	}
	if request.Kind == sender.Move && ask.Ref != "" {
		ask.Decider = decider(c.of, request, c.own)
	}
	switch {
	case errors.Is(err, errHintsOnly):
		w.Header().Set("WWW-Authenticate", `Bearer realm="stoker"`)
		say(w, http.StatusUnauthorized, "refused", err.Error())
		return source, "refused"
	case err != nil:
		say(w, http.StatusBadRequest, "invalid", err.Error())
		return source, "invalid"
	case why != "":
		say(w, http.StatusAccepted, "ignored", why)
		return source, "ignored"
	}
	ask.UID = c.of.GetUID() // the sender knows the secret of this object only
	return source, s.ask(ctx, w, key, ask)
}

// now reads the current object. The queue merges a burst into a few reads.
func (s *Server) now(ctx context.Context, key queue.Key, uid types.UID) (v1alpha1.Requestable, error) {
	got, err := s.looks.Ask(ctx, key, request.Request{UID: uid})
	return got.Object, err
}

// ask queues a request and answers with its outcome. "Accepted" means that the API server has stored it.
func (s *Server) ask(ctx context.Context, w http.ResponseWriter, key queue.Key, ask request.Request) string {
	got, err := s.queue.Ask(ctx, key, ask)
	if err != nil {
		return s.failed(w, key, err)
	}
	a := answer{Ref: got.Ref, RequestedAt: got.At, Message: got.Message}
	code := http.StatusAccepted
	switch got.Outcome {
	case request.Superseded:
		code, a.Result = http.StatusConflict, "superseded"
	case request.Ignored:
		say(w, code, "ignored", got.Message)
		return "ignored"
	case request.Unchanged:
		a.Result = "repeated"
	default:
		a.Result = "accepted"
		switch {
		case a.Message != "":
		case ask.Ref != "":
			a.Message = "the desired ref is " + got.Ref
		default:
			a.Message = "the gateways poll git again for " + got.Ref
			if key.Kind == kube.ConfigSync {
				a.Message = "git is polled again"
			}
		}
	}
	write(w, code, a)
	return a.Result
}

// failed answers a request that was not carried out.
func (s *Server) failed(w http.ResponseWriter, key queue.Key, err error) string {
	_, invalid := errors.AsType[*request.InvalidError](err)
	switch {
	case invalid:
		say(w, http.StatusBadRequest, "invalid", err.Error())
		return "invalid"
	case apierrors.IsNotFound(err):
		say(w, http.StatusNotFound, "unknown", "the "+key.Kind.Name+" is gone")
		return "unknown"
	case errors.Is(err, queue.ErrCrowded):
		w.Header().Set("Retry-After", "5")
		say(w, http.StatusTooManyRequests, "busy", err.Error())
		return "busy"
	case errors.Is(err, queue.ErrFull), errors.Is(err, queue.ErrClosed), errors.Is(err, errUnthought):
		busy(w, err.Error())
		return "busy"
	}
	s.Log.Error("a request was not carried out; the sender is told to send it again", "namespace", key.Namespace, logged(key.Kind), key.Name, "error", err)
	w.Header().Set("Retry-After", "5")
	say(w, http.StatusServiceUnavailable, "failed", "the API server did not take it: see the log of the receiver")
	return "failed"
}
