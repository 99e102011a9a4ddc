package admission

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"mime"
	"net/http"
	"runtime/debug"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/injector/lookup"
	"stoker.io/stoker/internal/limit"
	"stoker.io/stoker/internal/serve"
)

const (
	// MaxBody bounds an AdmissionReview, a "review" for short, in bytes. It is twice what the API server stores, because a review may also
	// contain the old object.
	MaxBody = 3 << 20
	// maxConcurrent bounds the reviews that are processed at the same time; others wait.
	maxConcurrent = 64
	// maxBodies bounds the bytes of all bodies in memory.
	maxBodies = 64 << 20
	// bodyTimeout is how long a body may take to arrive. The API server sends it at once.
	bodyTimeout = 3 * time.Second
	// Path is the path of the webhook.
	Path = "/mutate"
	// ConfigurationName is the name of the MutatingWebhookConfiguration, which the chart installs.
	ConfigurationName = "stoker-injector"
)

// Finder returns the GatewaySyncs from which inject.Choose chooses that of a pod. name is from the pod's annotation, or "".
type Finder interface {
	For(ctx context.Context, namespace, name string) (inject.Candidates, error)
}

// Metrics counts the reviews of new pods, except dry runs. result is injected, unchanged, skipped, refused or failed. reason says why the pod
// gets no agent. It is empty for injected and failed.
type Metrics interface {
	Injection(result string, reason v1alpha1.Reason)
}

// Config configures a Handler.
type Config struct {
	Find     Finder
	Scope    lookup.Scope
	Defaults inject.Defaults
	Metrics  Metrics
	Log      *slog.Logger
}

// Handler answers reviews.
type Handler struct {
	Config
	bodies *limit.Budget
	slots  chan struct{}
}

// New returns a Handler that answers a bounded number of reviews at a time.
func New(c Config) *Handler {
	return &Handler{Config: c, bodies: limit.NewBudget(maxBodies), slots: make(chan struct{}, maxConcurrent)}
}

// Routes serves reviews at Path.
func (h *Handler) Routes() *serve.Mux {
	return serve.NewMux(map[string]http.HandlerFunc{"POST " + Path: h.ServeHTTP})
}

// ServeHTTP answers one review. It answers other requests with an error status, which the API server treats like a missing answer:
// the webhook's failurePolicy applies.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if p := recover(); p != nil { // a safety net; no panic is known
			h.Log.Error("review panicked", "panic", p, "stack", string(debug.Stack()))
			http.Error(w, "the review failed; see the injector's log", http.StatusInternalServerError)
		}
	}()
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		http.Error(w, "send application/json", http.StatusUnsupportedMediaType)
		return
	}
	body, release, ok := h.read(w, r)
	defer release()
	if !ok {
		return
	}
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	case <-r.Context().Done():
		return // the client is gone
	}
	req, err := parse(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Response: h.review(r.Context(), req),
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(out) // an error means that the client is gone
}

// read reads the body, before the request takes a slot: a client that sends nothing delays only itself. If it fails, it writes the answer. The
// caller must call release when it no longer uses the body.
func (h *Handler) read(w http.ResponseWriter, r *http.Request) (body []byte, release func(), ok bool) {
	deadline := http.NewResponseController(w).SetReadDeadline // its error is ignored: the recorder of a test has no deadline
	_ = deadline(time.Now().Add(bodyTimeout))
	body, release, err := h.bodies.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody), r.RemoteAddr)
	if err == nil {
		_ = deadline(time.Time{}) // or it would end the wait for a slot; after an error, it bounds reading the rest of the body
	}
	_, large := errors.AsType[*http.MaxBytesError](err)
	switch {
	case large:
		http.Error(w, "the review is larger than 3 MiB", http.StatusRequestEntityTooLarge)
	case errors.Is(err, limit.ErrBusy):
		w.Header().Set("Retry-After", "1") // API servers retry only with it, within the timeout of the webhook
		http.Error(w, "too many reviews arrive at once", http.StatusServiceUnavailable)
	case err != nil:
		http.Error(w, "the body could not be read", http.StatusBadRequest)
	}
	return body, release, err == nil
}
