// Package server is the receiver: HTTP in front of the same requests that the command line makes. A git host, Argo CD, Kargo
// or a script says that something is new or what is to run; whoever asked may ask how far the gateways are.
package server

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/internal/pace"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/internal/serve"
	"stoker.io/stoker/internal/verb"
	"stoker.io/stoker/receiver/credential"
	"stoker.io/stoker/receiver/gate"
	"stoker.io/stoker/receiver/lookup"
	"stoker.io/stoker/receiver/queue"
	"stoker.io/stoker/receiver/sender"
	"stoker.io/stoker/receiver/vault"
)

// Config is what a Server needs.
type Config struct {
	// Clients lead to the API server. Where Config is set, requests, status and Secrets get connections of their own, so
	// that none of them waits for the others.
	Clients kube.Clients
	// Namespace is the receiver's own.
	Namespace string
	// Watch are the namespaces that are served; none stands for all. Selector, where it is not nil, admits GatewaySyncs.
	Watch    []string
	Selector labels.Selector
	// Install returns the values of the install-wide secrets; nil where there are none.
	Install func() []secret.String
	Metrics *metrics.Receiver
	Log     *slog.Logger
}

const (
	// refuseAfter is when a request is refused that nobody vouches for, counted from its header: later than what is
	// done until then takes, so that the time says nothing, and late enough that trying is slow.
	refuseAfter = 100 * time.Millisecond
	// answerWithin bounds the wait for what was asked. Git hosts wait for ten seconds.
	answerWithin = 9 * time.Second
	// largeBodies is how many bodies of more than a few KiB are in memory at a time.
	largeBodies = 12
	// firstRetry is the first pause before the API server is asked again that did not answer.
	firstRetry = 250 * time.Millisecond
)

// Server serves. It runs once.
type Server struct {
	Config
	find    *lookup.Lookup
	vault   *vault.Vault
	checker *credential.Checker
	bodies  *gate.Bodies
	queue   *queue.Queue
	looks   *queue.Queue // reads of what is asked for, for who cannot rely on memory
	setter  *verb.Setter
	asking  kube.Clients
	status  kube.Clients
	waiting chan struct{} // a place for each answer that is held back

	mu      sync.Mutex
	refused int // since it was logged last
}

// New makes a Server. Nothing is asked of the API server yet.
func New(c Config) (*Server, error) {
	if c.Install == nil {
		c.Install = func() []secret.String { return nil }
	}
	s := &Server{Config: c, checker: credential.NewChecker(), bodies: gate.NewBodies(largeBodies), asking: c.Clients, status: c.Clients,
		waiting: make(chan struct{}, maxWaiting)}
	for _, client := range []*kube.Clients{&s.asking, &s.status} {
		if c.Clients.Config == nil {
			continue
		}
		var err error
		if *client, err = kube.ConnectTo(c.Clients.Config, c.Clients.Config.UserAgent); err != nil {
			return nil, err
		}
	}
	s.setter = verb.NewSetter(s.asking.Dynamic, s.asking.Clock.Now)
	s.vault = vault.New(vault.Config{Client: c.Clients.Core, Namespace: c.Namespace, Log: c.Log, Named: s.named, Read: c.Metrics.SecretRead})
	s.queue, s.looks = queue.New(queue.Config{Do: s.safely(s.carryOut)}), queue.New(queue.Config{Do: s.safely(s.read)})
	var err error
	s.find, err = lookup.New(c.Clients.Dynamic, c.Watch, c.Selector, lookup.Told{Changed: s.names, Unreadable: s.unreadable, Failed: kube.LogFailures(c.Log, "GatewaySyncs cannot be watched; what was seen last counts")})
	return s, err
}

// secretOf is where the secret of a GatewaySync is; false where it names none.
func secretOf(gs *v1alpha1.GatewaySync) (vault.Place, bool) {
	ref := gs.Spec.Webhook.SecretRef
	if ref == nil {
		return vault.Place{}, false
	}
	return vault.Place{Namespace: gs.Namespace, Name: ref.Name, Key: ref.Key}, true
}

// names has the secret of a GatewaySync read that has just been seen.
func (s *Server) names(gs *v1alpha1.GatewaySync) {
	if p, ok := secretOf(gs); ok {
		s.vault.Wants(p)
	}
}

// named are the secrets of all GatewaySyncs, once these were seen.
func (s *Server) named() (places []vault.Place, ok bool) {
	for _, gs := range s.find.List() {
		if p, ok := secretOf(gs); ok {
			places = append(places, p)
		}
	}
	return places, s.find.Served()
}

// unreadable says that nobody can be let in for a GatewaySync, as its secret is not known.
func (s *Server) unreadable(err *kube.UndecodableError) {
	s.Log.Error("this GatewaySync cannot be read, so that requests are refused: mend the field", "namespace", err.Namespace, "gatewaysync", err.Name, "error", err.Err)
}

// Run watches until ctx ends, and then carries out what was accepted. The HTTP server in front of it has to end before it.
func (s *Server) Run(ctx context.Context) error {
	var group errgroup.Group
	group.Go(func() error { return s.find.Run(ctx) })
	group.Go(func() error { return s.vault.Run(ctx) })
	group.Go(func() error { s.sayRefused(ctx); return nil })
	err := group.Wait()
	return err
}

// Close carries out what was accepted, and takes no more.
func (s *Server) Close() {
	s.looks.Close()
	s.queue.Close()
}

// Ready reports whether everything that there is was seen once, but for namespaces that may not be watched, and the Secrets read.
func (s *Server) Ready() bool { return s.find.Served() && s.vault.Complete() }

// Routes serves /webhook and /status.
func (s *Server) Routes() *serve.Mux {
	return serve.NewMux(map[string]http.HandlerFunc{
		"POST /webhook/{namespace}/{name}": s.net(s.webhook),
		"GET /status/{namespace}/{name}":   s.net(s.tell),
	})
}

// errUnthought is the answer to a request that is a defect of this program.
var errUnthought = errors.New("the receiver could not handle this request: see its log")

// net keeps a request that nobody has thought of from ending the program. Its metric stays 0.
func (s *Server) net(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil {
				s.Metrics.Panic()
				s.Log.Error("a request could not be handled; please report it", "path", r.URL.Path, "panic", p)
				busy(w, errUnthought.Error())
			}
		}()
		serve(w, r)
	}
}

// safely is the same for what is carried out for requests, beside them.
func (s *Server) safely(do func(context.Context, queue.Key, verb.Request) (verb.Answer, error)) func(context.Context, queue.Key, verb.Request) (verb.Answer, error) {
	return func(ctx context.Context, key queue.Key, r verb.Request) (answer verb.Answer, err error) {
		defer func() {
			if p := recover(); p != nil {
				s.Metrics.Panic()
				s.Log.Error("a request could not be carried out; please report it", "namespace", key.Namespace, "gatewaysync", key.Name, "panic", p)
				err = errUnthought
			}
		}()
		return do(ctx, key, r)
	}
}

// carryOut writes a request.
func (s *Server) carryOut(ctx context.Context, key queue.Key, r verb.Request) (verb.Answer, error) {
	answer, err := persist(ctx, func() (verb.Answer, error) { return s.setter.Ask(ctx, key.Namespace, key.Name, r) })
	if err == nil && answer.Outcome == verb.Set {
		s.Log.Info("request", "did", "written", "namespace", key.Namespace, "gatewaysync", key.Name, "ref", answer.Ref, "by", r.By, "id", r.ID)
	}
	return answer, err
}

// read reads what a request is about to be made of.
func (s *Server) read(ctx context.Context, key queue.Key, r verb.Request) (verb.Answer, error) {
	return persist(ctx, func() (verb.Answer, error) {
		gs, err := kube.GatewaySyncs(s.asking.Dynamic, key.Namespace).Get(ctx, key.Name)
		if err == nil {
			err = verb.Replaced(gs, r.UID)
		}
		return verb.Answer{GatewaySync: gs}, err
	})
}

// persist asks an API server that does not answer again, for as long as there is time.
func persist(ctx context.Context, do func() (verb.Answer, error)) (verb.Answer, error) {
	for pause := firstRetry; ; pause *= 2 {
		answer, err := do()
		if err == nil || !passing(err) {
			return answer, err
		}
		if !pace.Wait(ctx, pause) {
			return answer, err
		}
	}
}

// passing reports whether an error may be gone in a moment: the API server did not answer, or could not.
func passing(err error) bool {
	if _, ok := errors.AsType[*verb.InvalidError](err); ok {
		return false
	}
	if _, ok := errors.AsType[*sender.InvalidError](err); ok || errors.Is(err, errHintsOnly) {
		return false
	}
	return kube.Passing(err) || apierrors.IsConflict(err)
}

// sayRefused logs, now and then, how many requests were refused: a sender with a wrong secret is looked for here.
func (s *Server) sayRefused(ctx context.Context) {
	ticker := time.NewTicker(10 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		s.mu.Lock()
		n := s.refused
		s.refused = 0
		s.mu.Unlock()
		if n > 0 {
			s.Log.Warn("requests were refused: no secret that the GatewaySync or this receiver knows", "number", n)
		}
	}
}
