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

// unknownSource is the source label of an unauthenticated request.
const unknownSource = "unknown"

// serveWebhook serves POST /webhook/{namespace}/{name}.
func (s *Server) serveWebhook(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	source, result := s.receive(w, r)
	s.Metrics.Received(source, result, time.Since(began))
}

func (s *Server) receive(w http.ResponseWriter, r *http.Request) (source, result string) {
	c, release, rejected := s.admit(w, r, false)
	if rejected != "" {
		release()
		return unknownSource, rejected
	}
	request, err := sender.Parse(r.Header, c.body)
	c.body = nil
	release()
	source = request.Sender
	if err != nil {
		writeResult(w, http.StatusBadRequest, "invalid", err.Error())
		return source, "invalid"
	}
	if request.Kind == sender.KindPing {
		writeResult(w, http.StatusOK, "pong", "the secret is valid; pushes will be accepted")
		return source, "pong"
	}
	key := c.key
	ctx, cancel := context.WithTimeout(r.Context(), answerTimeout)
	defer cancel()
	req, skipped, err := decide(c.object, request, c.ownSecret)
	if err == nil && skipped != "" && request.Kind != sender.KindNothing { // the cache may be older than the push
		now, problem := s.readObject(ctx, key, c.object.GetUID())
		if problem != nil {
			return source, s.writeFailure(w, key, problem)
		}
		req, skipped, err = decide(now, request, c.ownSecret)
	}
	if request.Kind == sender.KindPush && req.Ref != "" {
		req.Decider = newDelivery(c.object, request, c.ownSecret)
	}
	switch {
	case errors.Is(err, errOwnSecretNeeded):
		w.Header().Set("WWW-Authenticate", `Bearer realm="stoker"`)
		writeResult(w, http.StatusUnauthorized, "refused", err.Error())
		return source, "refused"
	case err != nil:
		writeResult(w, http.StatusBadRequest, "invalid", err.Error())
		return source, "invalid"
	case skipped != "":
		writeResult(w, http.StatusAccepted, "ignored", skipped)
		return source, "ignored"
	}
	req.UID = c.object.GetUID() // the sender knows the secret of this object only
	return source, s.queueRequest(ctx, w, key, req)
}

// readObject reads the current object. The queue merges a burst of calls into a few reads.
func (s *Server) readObject(ctx context.Context, key queue.Key, uid types.UID) (v1alpha1.Requestable, error) {
	got, err := s.reads.Ask(ctx, key, request.Request{UID: uid})
	return got.Object, err
}

// queueRequest queues a request, waits for it and writes its outcome. "Accepted" means that the API server has stored it.
func (s *Server) queueRequest(ctx context.Context, w http.ResponseWriter, key queue.Key, req request.Request) string {
	got, err := s.queue.Ask(ctx, key, req)
	if err != nil {
		return s.writeFailure(w, key, err)
	}
	a := answer{Ref: got.Ref, RequestedAt: got.At, Message: got.Message}
	code := http.StatusAccepted
	switch got.Outcome {
	case request.Superseded:
		code, a.Result = http.StatusConflict, "superseded"
	case request.Ignored:
		writeResult(w, code, "ignored", got.Message)
		return "ignored"
	case request.Unchanged:
		a.Result = "repeated"
	default:
		a.Result = "accepted"
		switch {
		case a.Message != "":
		case req.Ref != "":
			a.Message = "the desired ref is " + got.Ref
		default:
			a.Message = "the gateways poll git again for " + got.Ref
			if key.Kind == kube.ConfigSync {
				a.Message = "git is polled again"
			}
		}
	}
	writeJSON(w, code, a)
	return a.Result
}

// writeFailure writes the answer to a request that was not carried out, and returns its result.
func (s *Server) writeFailure(w http.ResponseWriter, key queue.Key, err error) string {
	_, invalid := errors.AsType[*request.InvalidError](err)
	switch {
	case invalid:
		writeResult(w, http.StatusBadRequest, "invalid", err.Error())
		return "invalid"
	case apierrors.IsNotFound(err):
		writeResult(w, http.StatusNotFound, "unknown", "the "+key.Kind.Name+" is gone")
		return "unknown"
	case errors.Is(err, queue.ErrCrowded):
		w.Header().Set("Retry-After", "5")
		writeResult(w, http.StatusTooManyRequests, "busy", err.Error())
		return "busy"
	case errors.Is(err, queue.ErrFull), errors.Is(err, queue.ErrClosed), errors.Is(err, errPanic):
		writeBusy(w, err.Error())
		return "busy"
	}
	s.Log.Error("request not carried out; asking for redelivery", "namespace", key.Namespace, logKey(key.Kind), key.Name, "error", err)
	w.Header().Set("Retry-After", "5")
	writeResult(w, http.StatusServiceUnavailable, "failed", "the API server did not accept the request: see the log of the receiver")
	return "failed"
}
