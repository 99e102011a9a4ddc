package server

import (
	"errors"
	"net/http"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/pace"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/receiver/credential"
	"stoker.io/stoker/receiver/gate"
)

// caller is what is known of whoever sends a request.
type caller struct {
	gs   *v1alpha1.GatewaySync // nil where there is none that is served
	body []byte
	own  bool // it knows the secret of the GatewaySync itself, and not only one of the installation
}

// admit reads a request and finds out who sends it. It answers those that it does not let in, and returns the result that
// it answered with. What it does takes as long, and reads the same from outside, whether there is such a GatewaySync, such
// a secret, or neither. release has to be called when the body is no longer needed.
func (s *Server) admit(w http.ResponseWriter, r *http.Request, bodyless bool) (c caller, release func(), refused string) {
	began := time.Now()
	release = func() {}
	if r.ContentLength > gate.MaxBody {
		return c, release, tooLarge(w)
	}
	proof, ok := credential.Read(r.Header)
	if bodyless && proof.Signed() { // a signature of nothing would be good for ever
		ok = false
	}
	if !ok {
		return c, release, s.turnAway(w, r, began)
	}
	if !bodyless {
		var err error
		c.body, release, err = s.bodies.Read(w, r)
		switch {
		case errors.Is(err, gate.ErrTooLarge):
			return c, release, tooLarge(w)
		case errors.Is(err, gate.ErrBusy):
			busy(w, err.Error())
			return c, release, "busy"
		case err != nil: // it never came in whole
			w.Header().Set("Connection", "close")
			say(w, http.StatusBadRequest, "invalid", "the body did not come in whole")
			return c, release, "invalid"
		}
	}
	gs := s.find.Get(r.PathValue("namespace"), r.PathValue("name"))
	all := s.Install()
	var values []secret.String
	if gs != nil {
		if p, ok := secretOf(gs); ok {
			values = s.vault.Values(p)
		}
	}
	known := s.checker.Knows(proof, c.body, values, credential.MaxValues)
	install := s.checker.Knows(proof, c.body, all, len(all))
	switch {
	case !known && !install:
		return c, release, s.turnAway(w, r, began)
	case gs == nil:
		say(w, http.StatusNotFound, "unknown", "there is no such GatewaySync, or it says spec.webhook.enabled: false, or this receiver does not serve it")
		return c, release, "unknown"
	}
	c.gs, c.own = gs, known
	return c, release, ""
}

func tooLarge(w http.ResponseWriter) string {
	w.Header().Set("Connection", "close")
	say(w, http.StatusRequestEntityTooLarge, "toolarge", gate.ErrTooLarge.Error())
	return "toolarge"
}

// turnAway refuses, not before its time. While the API server does not answer, or a Secret was not read yet that has just been
// named, nobody can be told from anybody: then all are asked to come again, whatever they ask of; and where it does not say what there
// is in a namespace, all who ask of that.
func (s *Server) turnAway(w http.ResponseWriter, r *http.Request, began time.Time) string {
	pace.Wait(r.Context(), time.Until(began.Add(refuseAfter)))
	if s.vault.Unsure() || s.find.Unseen(r.PathValue("namespace")) {
		w.Header().Set("Connection", "close")
		busy(w, "not all secrets have been read yet")
		return "busy"
	}
	s.mu.Lock()
	s.refused++
	s.mu.Unlock()
	refuse(w)
	return "refused"
}
