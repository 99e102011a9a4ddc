// Package reconcile keeps ConfigSyncs at git: it makes runs of package configsync after changes and at intervals. It is the program
// `stoker config run`, of which one replica works at a time.
//
// Each run acts as the ServiceAccount that the ConfigSync names, in its own namespace and in no other. The rights of the program itself
// serve for the status, the finalizer and Events only.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/configsync"
	"stoker.io/stoker/hooks/configsync/source"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
)

const (
	// atOnce bounds runs at the same time, and ofNamespace those of one namespace: slow git servers of one do not stop the others.
	atOnce, ofNamespace = 8, 2
	// busy is the pause of a ConfigSync whose namespace has that many runs.
	busy = time.Second
	// maxRun bounds one run, and patience how long it waits for healthy objects: a fix in git must not wait for what it fixes.
	maxRun, patience = 10 * time.Minute, 5 * time.Second
	// firstRetry is the pause after a failure, which doubles up to maxRetry. A ConfigSync that waits for healthy objects, for a dependency or
	// for its deletion runs again within maxWait.
	firstRetry, maxRetry, maxWait = 5 * time.Second, 5 * time.Minute, 30 * time.Second
)

// Config configures a Reconciler.
type Config struct {
	// Own are the clients of the program.
	Own kube.Clients
	// Account returns clients that act as a ServiceAccount.
	Account func(namespace, name string) (kube.Clients, error)
	// Seen returns what was last seen of a ConfigSync, as kube.WatchedObjects does, and List all of them.
	Seen func(namespace, name string) (*v1alpha1.ConfigSync, error)
	List func() []*v1alpha1.ConfigSync
	// GatewaySync returns what was last seen of a GatewaySync.
	GatewaySync func(namespace, name string) (*v1alpha1.GatewaySync, error)
	// Ran is called with the class of the outcome of each run, and how long it took.
	Ran func(class v1alpha1.Class, d time.Duration)
	// Pruned is called after each run with the numbers of objects that it deleted and could not delete.
	Pruned func(deleted, failed int)
	// Remote configures the access to git.
	Remote repo.RemoteOptions
	// Cache keeps git objects between runs.
	Cache *source.Cache
	Log   *slog.Logger
}

// Reconciler keeps ConfigSyncs at git.
type Reconciler struct {
	Config

	mu     sync.Mutex
	queue  workqueue.TypedDelayingInterface[cache.ObjectName] // nil unless this replica works
	states map[cache.ObjectName]*state
	woken  map[cache.ObjectName]bool
	runs   map[string]int // by namespace
}

// state is what the program remembers of a ConfigSync. Only the run of that ConfigSync uses it. A restart forgets it, and nothing else
// depends on it.
type state struct {
	uid      types.UID
	trigger  string    // what the last run was about
	ran, due time.Time // the end of the last run, and the time of the next one
	failures int
	commit   string
	waiting  configsync.Waiting
	said     string // what the log says
}

// New returns a Reconciler.
func New(c Config) *Reconciler { return &Reconciler{Config: c} }

// Changed notes that a ConfigSync may have changed.
func (r *Reconciler) Changed(namespace, name string) {
	if cs, err := r.Seen(namespace, name); err == nil && request.ReadConfig(cs, "").Phase == request.Succeeded {
		r.wake(namespace, func(other *v1alpha1.ConfigSync) bool { return waitsFor(other, v1alpha1.DependsOnConfigSync, name) })
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queue != nil {
		r.queue.Add(cache.NewObjectName(namespace, name))
	}
}

// GatewaySyncChanged notes that a GatewaySync may have changed. ConfigSyncs that follow it, or wait for it, run soon.
func (r *Reconciler) GatewaySyncChanged(namespace, name string) {
	gs, err := r.GatewaySync(namespace, name)
	if err != nil {
		return
	}
	ready := request.Read(gs, "", nil, time.Now()).Phase == request.Succeeded
	r.wake(namespace, func(cs *v1alpha1.ConfigSync) bool {
		if f := cs.Spec.Source.GatewaySync; f != nil && f.Name == name && gs.Status.Target != nil && gs.Status.Target.Commit != cs.Status.SourceRevision {
			return true
		}
		return ready && waitsFor(cs, v1alpha1.DependsOnGatewaySync, name)
	})
}

// waitsFor reports whether a ConfigSync waits for a dependency, as far as its status says.
func waitsFor(cs *v1alpha1.ConfigSync, kind v1alpha1.ConfigDependencyKind, name string) bool {
	ready := meta.FindStatusCondition(cs.Status.Conditions, v1alpha1.ConditionReady)
	return ready != nil && ready.Reason == string(v1alpha1.ReasonDependencyNotReady) &&
		slices.ContainsFunc(cs.Spec.DependsOn, func(d v1alpha1.ConfigDependency) bool { return d.EffectiveKind() == kind && d.Name == name })
}

// wake lets the ConfigSyncs of a namespace that match run before they are due.
func (r *Reconciler) wake(namespace string, match func(*v1alpha1.ConfigSync) bool) {
	for _, cs := range r.List() {
		if cs.Namespace != namespace || !match(cs) {
			continue
		}
		r.mu.Lock()
		if r.queue != nil {
			r.woken[cache.MetaObjectToName(cs)] = true
			r.queue.Add(cache.MetaObjectToName(cs))
		}
		r.mu.Unlock()
	}
}

// Run makes runs until ctx is done. When it returns, none is under way.
func (r *Reconciler) Run(ctx context.Context) {
	queue := workqueue.NewTypedDelayingQueue[cache.ObjectName]()
	r.mu.Lock()
	r.queue, r.states, r.woken, r.runs = queue, map[cache.ObjectName]*state{}, map[cache.ObjectName]bool{}, map[string]int{}
	r.mu.Unlock()
	for _, cs := range r.List() {
		queue.Add(cache.MetaObjectToName(cs))
	}
	var workers sync.WaitGroup
	for range atOnce {
		workers.Go(func() {
			for r.next(ctx, queue) {
			}
		})
	}
	<-ctx.Done()
	queue.ShutDown()
	workers.Wait()
	r.mu.Lock()
	r.queue = nil
	r.mu.Unlock()
}

// next takes a ConfigSync from the queue. It returns false when the queue is shut down.
func (r *Reconciler) next(ctx context.Context, queue workqueue.TypedDelayingInterface[cache.ObjectName]) bool {
	key, quit := queue.Get()
	if quit {
		return false
	}
	defer queue.Done(key)
	if again := r.process(ctx, key); again > 0 && ctx.Err() == nil {
		queue.AddAfter(key, again)
	}
	return true
}

// process makes a run if one is due, and returns the pause until the next one; 0 means none.
func (r *Reconciler) process(ctx context.Context, key cache.ObjectName) time.Duration {
	seen, err := r.Seen(key.Namespace, key.Name)
	switch {
	case ctx.Err() != nil:
		return 0
	case errors.Is(err, kube.ErrNotSeen):
		r.forget(key)
		return 0
	case err != nil:
		r.Log.Warn("ConfigSync cannot be read", "namespace", key.Namespace, "configsync", key.Name, "error", err)
		return backoff.Jitter(maxRetry)
	}
	s, woken := r.state(key, seen.UID)
	if soon := s.ran.Add(firstRetry); woken && soon.Before(s.due) {
		s.due = soon
	}
	if left := time.Until(s.due); trigger(seen) == s.trigger && left > 0 {
		return left // its status was written
	}
	if !r.enter(key.Namespace) {
		return backoff.Jitter(busy)
	}
	defer r.leave(key.Namespace)
	pause := r.run(ctx, key, s)
	s.ran = time.Now()
	s.due = s.ran.Add(pause)
	return pause
}

// state returns the state of a ConfigSync, and whether it was woken.
func (r *Reconciler) state(key cache.ObjectName, uid types.UID) (*state, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.states[key]
	if s == nil || s.uid != uid {
		r.empty(s)
		s = &state{uid: uid}
		r.states[key] = s
	}
	woken := r.woken[key]
	delete(r.woken, key)
	return s, woken
}

func (r *Reconciler) forget(key cache.ObjectName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.empty(r.states[key])
	delete(r.states, key)
	delete(r.woken, key)
}

// empty removes the git objects of a ConfigSync that is gone.
func (r *Reconciler) empty(s *state) {
	if s == nil {
		return
	}
	if err := r.Cache.Forget(string(s.uid)); err != nil {
		r.Log.Warn("git objects cannot be removed", "error", err)
	}
}

func (r *Reconciler) enter(namespace string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runs[namespace] >= ofNamespace {
		return false
	}
	r.runs[namespace]++
	return true
}

func (r *Reconciler) leave(namespace string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runs[namespace]--; r.runs[namespace] == 0 {
		delete(r.runs, namespace)
	}
}

// trigger identifies what a user wants of a ConfigSync: a change of it is a reason to run at once. Statuses are not part of it.
func trigger(cs *v1alpha1.ConfigSync) string {
	var b strings.Builder
	fmt.Fprintln(&b, cs.UID, cs.Generation, cs.DeletionTimestamp)
	for _, name := range slices.Sorted(maps.Keys(cs.Annotations)) {
		if strings.HasPrefix(name, "stoker.io/") {
			fmt.Fprintf(&b, "%s=%q\n", name, cs.Annotations[name])
		}
	}
	return b.String()
}

// run makes a run, and returns the pause until the next one.
func (r *Reconciler) run(ctx context.Context, key cache.ObjectName, s *state) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, maxRun)
	defer cancel()
	cs, err := kube.ConfigSyncs(r.Own.Dynamic, key.Namespace).Get(ctx, key.Name)
	if apierrors.IsNotFound(err) {
		return 0
	}
	if err != nil {
		return r.retry(key, s, err)
	}
	if now := trigger(cs); now != s.trigger {
		s.trigger, s.failures, s.waiting = now, 0, configsync.Waiting{}
	}
	if cs.DeletionTimestamp != nil {
		return r.release(ctx, cs, s)
	}
	if cs, err = r.hold(ctx, cs); err != nil {
		return r.retry(key, s, err)
	}
	engine := r.engine(ctx, cs)
	if cs.Paused() {
		if err := engine.Pause(ctx, cs); err != nil {
			return r.retry(key, s, err)
		}
		return backoff.Jitter(maxRetry)
	}
	began := time.Now()
	run, err := engine.Apply(ctx, cs, configsync.Options{Patience: patience, Waiting: s.waiting})
	if commit := run.Commit(); commit != "" && commit != s.commit {
		s.commit, s.failures, s.waiting = commit, 0, configsync.Waiting{}
	}
	class := v1alpha1.ClassDone
	if err != nil {
		class = failure.Reason(err, v1alpha1.ReasonGitUnreachable).Class()
	}
	r.Ran(class, time.Since(began))
	r.Pruned(run.Pruned())
	return r.pause(key, cs, s, err, began)
}

// pause returns the pause after a run that ended with err.
func (r *Reconciler) pause(key cache.ObjectName, cs *v1alpha1.ConfigSync, s *state, err error, began time.Time) time.Duration {
	refresh, invalid := cs.Spec.Refresh()
	if invalid != nil {
		refresh = v1alpha1.DefaultRefreshInterval
	}
	if err == nil {
		s.failures, s.waiting = 0, configsync.Waiting{}
		r.say(key, s, slog.LevelInfo, "ConfigSync applied", "commit", s.commit)
		return backoff.Jitter(refresh)
	}
	if failure.Is(err, v1alpha1.ReasonProgressing) {
		if s.waiting.Since.IsZero() {
			s.waiting = configsync.Waiting{Commit: s.commit, Since: began}
		}
		s.failures++
		r.say(key, s, slog.LevelInfo, "ConfigSync waits", "message", err.Error())
		return backoff.Jitter(min(firstRetry*time.Duration(s.failures), maxWait))
	}
	if failure.Is(err, v1alpha1.ReasonDependencyNotReady) {
		s.failures++
		r.say(key, s, slog.LevelInfo, "ConfigSync waits", "message", err.Error())
		return backoff.Jitter(min(firstRetry*time.Duration(s.failures), maxWait))
	}
	switch class := failure.Reason(err, v1alpha1.ReasonProgressing).Class(); class {
	case v1alpha1.ClassStalled, v1alpha1.ClassHeld:
		r.say(key, s, slog.LevelWarn, "ConfigSync stopped", "class", string(class), "error", err.Error())
		return backoff.Jitter(min(refresh, maxRetry))
	default:
		return r.retry(key, s, err)
	}
}

// retry returns the pause after a failure that may pass.
func (r *Reconciler) retry(key cache.ObjectName, s *state, err error) time.Duration {
	if !errors.Is(err, context.Canceled) {
		r.say(key, s, slog.LevelWarn, "ConfigSync failed; trying again", "error", err.Error())
	}
	s.failures++
	return backoff.Jitter(min(firstRetry<<min(s.failures-1, 10), maxRetry))
}

// say logs an event of a ConfigSync, unless it was the last one.
func (r *Reconciler) say(key cache.ObjectName, s *state, level slog.Level, event string, args ...any) {
	if text := fmt.Sprint(event, args); text != s.said {
		s.said = text
		r.Log.Log(context.Background(), level, event, append([]any{"namespace", key.Namespace, "configsync", key.Name}, args...)...)
	}
}

// engine returns what makes the run of a ConfigSync.
func (r *Reconciler) engine(ctx context.Context, cs *v1alpha1.ConfigSync) *configsync.Engine {
	return &configsync.Engine{Own: &r.Own, Remote: r.Remote, Cache: r.Cache, Connect: sync.OnceValues(func() (kube.Clients, error) { return r.connect(ctx, cs) })}
}

// connect returns the clients of the account that a ConfigSync names. It asks the API server who they are, so that it
// can distinguish a missing right to act as that account from rights that the account lacks.
func (r *Reconciler) connect(ctx context.Context, cs *v1alpha1.ConfigSync) (kube.Clients, error) {
	if err := configsync.Validate(cs); err != nil { // the name of the account becomes a part of that of a user
		return kube.Clients{}, err
	}
	name := cs.Spec.Account()
	clients, err := r.Account(cs.Namespace, name)
	if err != nil {
		return kube.Clients{}, err
	}
	me, err := clients.Core.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return kube.Clients{}, failure.New(v1alpha1.ReasonApplyForbidden,
			"stoker config run may not act as ServiceAccount %s of namespace %s: grant it the verb impersonate on that account, or correct spec.serviceAccountName", name, cs.Namespace)
	case err != nil:
		return kube.Clients{}, fmt.Errorf("act as ServiceAccount %s: %w", name, err)
	case me.Status.UserInfo.Username != kube.AccountUser(cs.Namespace, name):
		return kube.Clients{}, failure.New(v1alpha1.ReasonApplyForbidden, "the API server takes the program for %s and not for ServiceAccount %s", failure.Quote(me.Status.UserInfo.Username), name)
	}
	return clients, nil
}
