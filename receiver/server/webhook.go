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
	s.Metrics.Received(source, string(result), time.Since(began))
}

// receive authenticates and parses a webhook call, decides what it requests of the object, and queues that. It writes the answer and returns the
// labels for the metric.
func (s *Server) receive(w http.ResponseWriter, r *http.Request) (source string, result Result) {
	c, release, rejected := s.admit(w, r, false)
	defer release() // also if a parser panics
	if rejected != "" {
		return unknownSource, rejected
	}
	if c.cut { // the body is long, and only its beginning was kept
		c.body = sender.CutObject(c.body)
	}
	sent, err := sender.Parse(r.Header, c.body)
	c.body = nil
	release()
	source = sent.Sender
	if err != nil {
		return source, writeResult(w, http.StatusBadRequest, Invalid, err.Error())
	}
	if c.cut && sent.Kind == sender.KindRequest { // it may have lost its commit
		return source, writeResult(w, http.StatusRequestEntityTooLarge, TooLarge, "the body of a request is larger than 1 MiB")
	}
	if sent.Kind == sender.KindPing {
		return source, writeResult(w, http.StatusOK, Pong, "the secret is valid; pushes will be accepted")
	}
	key := c.key
	ctx, cancel := context.WithTimeout(r.Context(), answerTimeout)
	defer cancel()
	object := c.object
	req, skipped, err := decide(object, sent, c.ownSecret)
	if err == nil && skipped != "" && sent.Kind != sender.KindNothing { // the cache may be older than the push
		now, problem := s.readObject(ctx, key, c.object.GetUID())
		if problem != nil {
			return source, s.writeFailure(w, key, problem)
		}
		object = now
		req, skipped, err = decide(object, sent, c.ownSecret)
	}
	if sent.Kind == sender.KindPush && req.Ref != "" {
		// The queue asks the Decider again for the object that it writes: another push may have requested a newer tag meanwhile.
		req.Decider = newDelivery(object, sent, c.ownSecret)
	}
	switch {
	case errors.Is(err, errOwnSecretNeeded):
		w.Header().Set("WWW-Authenticate", `Bearer realm="stoker"`)
		return source, writeResult(w, http.StatusUnauthorized, Refused, err.Error())
	case err != nil:
		return source, writeResult(w, http.StatusBadRequest, Invalid, err.Error())
	case skipped != "":
		return source, writeResult(w, http.StatusAccepted, Ignored, skipped)
	}
	req.UID = c.object.GetUID() // the sender may not ask anything of an object that replaces this one
	return source, s.queueRequest(ctx, w, key, req)
}

// serveWithdraw serves DELETE /webhook/{namespace}/{name}?id=….
func (s *Server) serveWithdraw(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	source, result := s.withdraw(w, r)
	s.Metrics.Received(source, string(result), time.Since(began))
}

// withdraw ends the request with an id. The sender must know the object's own secret.
func (s *Server) withdraw(w http.ResponseWriter, r *http.Request) (source string, result Result) {
	c, release, rejected := s.admit(w, r, true)
	defer release()
	if rejected != "" {
		return unknownSource, rejected
	}
	id := r.URL.Query().Get("id")
	switch {
	case !c.ownSecret:
		w.Header().Set("WWW-Authenticate", `Bearer realm="stoker"`)
		return unknownSource, writeResult(w, http.StatusUnauthorized, Refused, errOwnSecretNeeded.Error())
	case id == "":
		return sender.Generic, writeResult(w, http.StatusBadRequest, Invalid, "the query has no id: name the request to withdraw, as in ?id=…")
	}
	ctx, cancel := context.WithTimeout(r.Context(), answerTimeout)
	defer cancel()
	got, err := s.queue.Ask(ctx, c.key, request.Request{Withdraw: true, ID: id, UID: c.object.GetUID()})
	if err != nil {
		return sender.Generic, s.writeFailure(w, c.key, err)
	}
	switch got.Outcome {
	case request.Set:
		writeJSON(w, http.StatusOK, answer{Result: string(Withdrawn), Ref: got.Ref, RequestedAt: got.At, Message: got.Message})
		return sender.Generic, Withdrawn
	case request.Unchanged:
		return sender.Generic, writeResult(w, http.StatusOK, Kept, got.Message)
	}
	return sender.Generic, writeResult(w, http.StatusOK, Ignored, got.Message)
}

// readObject reads the current object. The queue merges a burst of calls into a few reads.
func (s *Server) readObject(ctx context.Context, key queue.Key, uid types.UID) (v1alpha1.Requestable, error) {
	got, err := s.reads.Ask(ctx, key, request.Request{UID: uid})
	return got.Object, err
}

// queueRequest queues a request, waits for it and writes its outcome. "Accepted" means that the API server has stored it.
func (s *Server) queueRequest(ctx context.Context, w http.ResponseWriter, key queue.Key, req request.Request) Result {
	got, err := s.queue.Ask(ctx, key, req)
	if err != nil {
		return s.writeFailure(w, key, err)
	}
	a := answer{Ref: got.Ref, RequestedAt: got.At, Message: got.Message}
	code, result := http.StatusAccepted, Accepted
	switch got.Outcome {
	case request.Superseded:
		code, result = http.StatusConflict, Superseded
	case request.Ignored:
		return writeResult(w, code, Ignored, got.Message)
	case request.Unchanged:
		result = Repeated
	default:
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
	a.Result = string(result)
	writeJSON(w, code, a)
	return result
}

// writeFailure writes the answer to a request whose outcome is an error or not known, and returns its result.
func (s *Server) writeFailure(w http.ResponseWriter, key queue.Key, err error) Result {
	_, invalid := errors.AsType[*request.InvalidError](err)
	switch {
	case invalid:
		return writeResult(w, http.StatusBadRequest, Invalid, err.Error())
	case apierrors.IsNotFound(err):
		return writeResult(w, http.StatusNotFound, Unknown, "the "+key.Kind.Name+" is gone")
	case errors.Is(err, queue.ErrCrowded):
		w.Header().Set("Retry-After", "5")
		return writeResult(w, http.StatusTooManyRequests, Busy, err.Error())
	case errors.Is(err, queue.ErrFull), errors.Is(err, queue.ErrLate), errors.Is(err, queue.ErrClosed), errors.Is(err, errPanic):
		return writeBusy(w, err.Error())
	}
	s.Log.Error("request not carried out; asking for redelivery", "namespace", key.Namespace, logKey(key.Kind), key.Name, "error", err)
	w.Header().Set("Retry-After", "5")
	return writeResult(w, http.StatusServiceUnavailable, Failed, "the API server did not accept the request: see the log of the receiver")
}
