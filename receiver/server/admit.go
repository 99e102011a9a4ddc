package server

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/limit"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/receiver/credential"
	"stoker.io/stoker/receiver/queue"
)

// caller is the result of authentication.
type caller struct {
	key       queue.Key
	object    v1alpha1.Requestable // nil if no served object has this name
	body      []byte
	cut       bool // body is only the beginning
	ownSecret bool // the secret is that of the object, not an install-wide one
}

// keyOf returns the object that the path of a request names.
func keyOf(r *http.Request) queue.Key {
	key := queue.Key{Kind: kube.GatewaySync, Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
	if strings.Contains(r.Pattern, "/configsync/") {
		key.Kind = kube.ConfigSync
	}
	return key
}

// admit reads and authenticates a request. If it rejects the request, it writes the answer and returns its result in rejected. For an
// unauthenticated sender, duration and answer do not depend on whether the GatewaySync or its secret exists. The caller must call
// release when it no longer uses the body.
func (s *Server) admit(w http.ResponseWriter, r *http.Request, noBody bool) (c caller, release func(), rejected Result) {
	began := time.Now()
	release = func() {}
	if r.ContentLength > limit.MaxStream {
		return c, release, tooLarge(w)
	}
	proof, ok := credential.Read(r.Header, s.statusClients.Clock.Now())
	if noBody && proof.Signed() { // the signature of an empty body would be valid forever
		ok = false
	}
	if !ok {
		return c, release, s.reject(w, r, began)
	}
	c.key = keyOf(r)
	of := s.find.Get(c.key.Kind, c.key.Namespace, c.key.Name)
	all := s.Install()
	var values []secret.String
	if of != nil {
		if p, ok := secretOf(of); ok {
			values = s.secrets.Values(p)
		}
	}
	own, others := s.checker.Begin(proof, values, credential.MaxValues), s.checker.Begin(proof, all, len(all))
	if !noBody {
		var err error
		c.body, release, err = s.bodies.Read(w, r)
		checks := io.MultiWriter(own, others)
		_, _ = checks.Write(c.body) // it never fails
		if c.cut = errors.Is(err, limit.ErrCut); c.cut {
			err = s.bodies.Rest(w, r, checks)
		}
		switch {
		case errors.Is(err, limit.ErrTooLarge):
			return c, release, tooLarge(w)
		case errors.Is(err, limit.ErrBusy):
			return c, release, writeBusy(w, err.Error())
		case err != nil: // the body was incomplete
			w.Header().Set("Connection", "close")
			return c, release, writeResult(w, http.StatusBadRequest, Invalid, "the body is incomplete")
		}
	}
	known, install := own.Known(), others.Known()
	switch {
	case !known && !install:
		return c, release, s.reject(w, r, began)
	case of == nil:
		return c, release, writeResult(w, http.StatusNotFound, Unknown,
			"there is no such "+c.key.Kind.Name+", or it has spec.webhook.enabled: false, or this receiver does not serve it")
	}
	c.object, c.ownSecret = of, known
	return c, release, ""
}

func tooLarge(w http.ResponseWriter) Result {
	w.Header().Set("Connection", "close")
	return writeResult(w, http.StatusRequestEntityTooLarge, TooLarge, limit.ErrTooLarge.Error())
}

// reject rejects a request, with a fixed delay. While the cache is unsure or the namespace is not synced, a secret may exist that the
// receiver does not know yet, so reject asks the sender to retry.
func (s *Server) reject(w http.ResponseWriter, r *http.Request, began time.Time) Result {
	backoff.Wait(r.Context(), time.Until(began.Add(rejectDelay)))
	if s.secrets.Unsure() || s.find.NotSynced(keyOf(r).Kind, r.PathValue("namespace")) {
		w.Header().Set("Connection", "close")
		return writeBusy(w, "not all secrets have been read yet")
	}
	s.mu.Lock()
	s.rejected++
	s.mu.Unlock()
	return writeUnauthorized(w)
}
