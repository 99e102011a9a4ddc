// Package server implements the receiver: an HTTP interface to the same requests that the command line makes. Git hosts, Argo
// CD, Kargo or scripts report changes or request a ref, and may query the progress of the gateways.
package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/limit"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/internal/sender"
	"stoker.io/stoker/internal/serve"
	"stoker.io/stoker/receiver/credential"
	"stoker.io/stoker/receiver/lookup"
	"stoker.io/stoker/receiver/queue"
	"stoker.io/stoker/receiver/secrets"
)

// Config configures a Server.
type Config struct {
	// Clients are the clients of the API server. If Clients.Config is set, requests, status and Secrets use separate
	// connections, so that they do not wait for each other.
	Clients kube.Clients
	// Namespace is the receiver's own.
	Namespace string
	// Watch lists the namespaces to serve; empty means all. Selector, if not nil, selects the objects to serve.
	Watch    []string
	Selector labels.Selector
	// Install returns the values of the secrets of the installation, with which git hosts sign pushes for all objects. It may be nil.
	Install func() []secret.String
	Metrics *metrics.Receiver
	Log     *slog.Logger
}

const (
	// rejectDelay is when an unauthenticated request is answered, counted from its header. It exceeds the time of all checks,
	// so that the duration reveals nothing, and it slows down guessing.
	rejectDelay = 100 * time.Millisecond
	// answerTimeout limits the wait for a request. Git hosts wait for ten seconds.
	answerTimeout = 9 * time.Second
	// largeBodies is how many bodies of 16 KiB or more may be in memory.
	largeBodies = 12
	// firstRetry is the first pause before a retry if the API server does not answer.
	firstRetry = 250 * time.Millisecond
)

// Server handles the requests. It runs once.
type Server struct {
	Config
	find           *lookup.Lookup
	secrets        *secrets.Cache
	checker        *credential.Checker
	bodies         *limit.Bodies
	queue          *queue.Queue
	reads          *queue.Queue // reads objects from the API server if the cache may be stale
	setter         *request.Setter
	requestClients kube.Clients
	statusClients  kube.Clients
	statusReads    *sharedReads
	waiting        waiters // calls to /status whose answers are held back

	mu       sync.Mutex
	rejected int // since the last log message
}

// New returns a Server. It does not contact the API server yet.
func New(c Config) (*Server, error) {
	if c.Install == nil {
		c.Install = func() []secret.String { return nil }
	}
	s := &Server{Config: c, checker: credential.NewChecker(), bodies: limit.NewBodies(largeBodies), requestClients: c.Clients, statusClients: c.Clients,
		waiting: waiters{of: map[queue.Key]int{}}}
	s.statusReads = newSharedReads(s.observe)
	for _, client := range []*kube.Clients{&s.requestClients, &s.statusClients} {
		if c.Clients.Config == nil {
			continue
		}
		var err error
		if *client, err = kube.ConnectTo(c.Clients.Config, c.Clients.Config.UserAgent); err != nil {
			return nil, err
		}
	}
	s.setter = request.NewSetter(s.requestClients.Dynamic, s.requestClients.Clock.Now)
	s.secrets = secrets.New(secrets.Config{Client: c.Clients.Core, Namespace: c.Namespace, Log: c.Log, Refs: s.secretRefs, OnRead: c.Metrics.SecretRead})
	s.queue, s.reads = queue.New(queue.Config{Do: s.recoveredDo(s.writeRequest)}), queue.New(queue.Config{Do: s.recoveredDo(s.read)})
	var err error
	s.find, err = lookup.New(c.Clients.Dynamic, c.Watch, c.Selector, lookup.Callbacks{Changed: s.watchSecret, Unreadable: s.logUnreadable, Failed: kube.LogFailures(c.Log, "watch failed; using the last state")})
	return s, err
}

// secretOf returns the reference to the secret of an object, or false if it has none.
func secretOf(o v1alpha1.Requestable) (secrets.Ref, bool) {
	ref := o.WebhookSpec().SecretRef
	if ref == nil {
		return secrets.Ref{}, false
	}
	return secrets.Ref{Namespace: o.GetNamespace(), Name: ref.Name, Key: ref.Key}, true
}

// watchSecret makes the cache read the secret of an object.
func (s *Server) watchSecret(o v1alpha1.Requestable) {
	if p, ok := secretOf(o); ok {
		s.secrets.Add(p)
	}
}

// secretRefs returns the references to the secrets of all objects, or false until the objects are known.
func (s *Server) secretRefs() (refs []secrets.Ref, ok bool) {
	for _, o := range s.find.List() {
		if p, ok := secretOf(o); ok {
			refs = append(refs, p)
		}
	}
	return refs, s.find.Listed()
}

// logUnreadable logs that requests for an object are rejected because its secret is unknown.
func (s *Server) logUnreadable(err *kube.UndecodableError) {
	s.Log.Error("object cannot be read; rejecting its requests", "namespace", err.Namespace, "kind", err.Kind, "name", err.Name, "error", err.Err)
}

// Run watches until ctx is done.
func (s *Server) Run(ctx context.Context) error {
	var group errgroup.Group
	group.Go(func() error { return s.find.Run(ctx) })
	group.Go(func() error { return s.secrets.Run(ctx) })
	group.Go(func() error { s.logRejected(ctx); return nil })
	return group.Wait()
}

// Close carries out the accepted requests, and rejects new ones. The HTTP server must stop before Close.
func (s *Server) Close() {
	s.statusReads.close()
	s.reads.Close()
	s.queue.Close()
}

// Ready reports whether all objects that may be watched were listed, and the cache has tried to read each of their Secrets.
func (s *Server) Ready() bool { return s.find.Listed() && s.secrets.Complete() }

// Routes serves /webhook and /status.
func (s *Server) Routes() *serve.Mux {
	return serve.NewMux(map[string]http.HandlerFunc{
		"POST /webhook/{namespace}/{name}":              s.recovered(s.serveWebhook),
		"POST /webhook/{namespace}/configsync/{name}":   s.recovered(s.serveWebhook),
		"DELETE /webhook/{namespace}/{name}":            s.recovered(s.serveWithdraw),
		"DELETE /webhook/{namespace}/configsync/{name}": s.recovered(s.serveWithdraw),
		"GET /status/{namespace}/{name}":                s.recovered(s.serveStatus),
		"GET /status/{namespace}/configsync/{name}":     s.recovered(s.serveStatus),
	})
}

// errPanic is the error of a request that caused a panic.
var errPanic = errors.New("the receiver could not handle this request: see its log")

// recovered returns a handler that recovers from a panic of serve and counts it.
func (s *Server) recovered(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil {
				s.Metrics.Panic()
				s.Log.Error("panic while handling a request; please report it", "path", r.URL.Path, "panic", p)
				writeBusy(w, errPanic.Error())
			}
		}()
		serve(w, r)
	}
}

// logKey returns the name of the log attribute of an object.
func logKey(kind kube.Kind) string { return strings.ToLower(kind.Name) }

// recoveredDo returns a function that recovers from a panic of do and counts it.
func (s *Server) recoveredDo(do func(context.Context, queue.Key, request.Request) (request.Answer, error)) func(context.Context, queue.Key, request.Request) (request.Answer, error) {
	return func(ctx context.Context, key queue.Key, r request.Request) (answer request.Answer, err error) {
		defer func() {
			if p := recover(); p != nil {
				s.Metrics.Panic()
				s.Log.Error("panic while applying a request; please report it", "namespace", key.Namespace, logKey(key.Kind), key.Name, "panic", p)
				err = errPanic
			}
		}()
		return do(ctx, key, r)
	}
}

// writeRequest writes a request to its object.
func (s *Server) writeRequest(ctx context.Context, key queue.Key, r request.Request) (request.Answer, error) {
	answer, err := retryTransient(ctx, func() (request.Answer, error) { return s.setter.Of(key.Kind).Ask(ctx, key.Namespace, key.Name, r) })
	if err == nil && answer.Outcome == request.Set {
		s.Log.Info("request", "did", "written", "namespace", key.Namespace, logKey(key.Kind), key.Name, "ref", answer.Ref, "by", r.By, "id", r.ID,
			"requestedAt", answer.At)
	}
	return answer, err
}

// read reads the object of a request.
func (s *Server) read(ctx context.Context, key queue.Key, r request.Request) (request.Answer, error) {
	return retryTransient(ctx, func() (request.Answer, error) {
		o, err := s.setter.Of(key.Kind).Get(ctx, key.Namespace, key.Name)
		if err == nil {
			err = request.Replaced(o, r.UID)
		}
		return request.Answer{Object: o}, err
	})
}

// retryTransient retries do while isTransient says that this may help, until ctx is done.
func retryTransient(ctx context.Context, do func() (request.Answer, error)) (request.Answer, error) {
	for pause := firstRetry; ; pause *= 2 {
		answer, err := do()
		if err == nil || !isTransient(err) {
			return answer, err
		}
		if !backoff.Wait(ctx, pause) {
			return answer, err
		}
	}
}

// isTransient reports whether a retry may help, because the API server could not answer or another client changed the object.
func isTransient(err error) bool {
	if _, ok := errors.AsType[*request.InvalidError](err); ok {
		return false
	}
	if _, ok := errors.AsType[*sender.InvalidError](err); ok || errors.Is(err, errOwnSecretNeeded) {
		return false
	}
	return kube.Transient(err) || apierrors.IsConflict(err)
}

// logRejected logs periodically how many requests were rejected, which helps to find a sender with a wrong secret.
func (s *Server) logRejected(ctx context.Context) {
	ticker := time.NewTicker(10 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		s.mu.Lock()
		n := s.rejected
		s.rejected = 0
		s.mu.Unlock()
		if n > 0 {
			s.Log.Warn("requests with an unknown secret were rejected", "count", n)
		}
	}
}

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

// admit reads and authenticates a request; with bodiless, it reads no body and accepts no signature. If it rejects the request, it writes the
// answer and returns its result in rejected. For an unauthenticated sender, duration and answer do not depend on whether the GatewaySync or
// its secret exists. The caller must call release when it no longer uses the body.
func (s *Server) admit(w http.ResponseWriter, r *http.Request, bodiless bool) (c caller, release func(), rejected Result) {
	began := time.Now()
	release = func() {}
	if r.ContentLength > limit.MaxStream {
		return c, release, tooLarge(w)
	}
	proof, ok := credential.Read(r.Header, s.statusClients.Clock.Now())
	if bodiless && proof.Signed() { // the signature of an empty body would be valid forever
		ok = false
	}
	if !ok {
		return c, release, s.reject(w, r, began)
	}
	c.key = keyOf(r)
	object := s.find.Get(c.key.Kind, c.key.Namespace, c.key.Name)
	installWide := s.Install()
	var values []secret.String
	if object != nil {
		if p, ok := secretOf(object); ok {
			values = s.secrets.Values(p)
		}
	}
	own, others := s.checker.Begin(proof, values, credential.MaxValues), s.checker.Begin(proof, installWide, len(installWide))
	if !bodiless {
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
	case object == nil:
		return c, release, writeResult(w, http.StatusNotFound, Unknown,
			"there is no such "+c.key.Kind.Name+", or it has spec.webhook.enabled: false, or this receiver does not serve it")
	}
	c.object, c.ownSecret = object, known
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
