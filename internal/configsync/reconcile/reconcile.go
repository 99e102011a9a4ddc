// Package reconcile runs all ConfigSyncs of the watched namespaces after changes and at intervals. It is the reconciler of `stoker config
// run`, of which one replica is active at a time.
//
// Each run acts as a ServiceAccount of the ConfigSync's own namespace, which the ConfigSync names. The program uses its own rights only
// to read ConfigSyncs, GatewaySyncs and namespaces, and to write the status, the finalizer, requests for a rollback and Events.
package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/configsync"
	"stoker.io/stoker/internal/configsync/source"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
)

const (
	// maxRuns bounds concurrent runs, and maxNamespaceRuns those of one namespace, so that a slow git server of one namespace does not
	// delay the others. If half of maxRuns are under way, a namespace gets one only.
	maxRuns, maxNamespaceRuns = 8, 2
	// busyPause is the pause of a ConfigSync whose namespace has as many runs as it may have.
	busyPause = time.Second
	// runTimeout bounds one run. healthTimeout bounds its wait for healthy objects. It is short, so that the next run soon applies a fix in git.
	runTimeout, healthTimeout = 10 * time.Minute, 5 * time.Second
	// firstRetry is the pause after a failure, which doubles up to maxRetry. A ConfigSync that waits for healthy objects, for a dependency or
	// for its deletion runs again within maxWait.
	firstRetry, maxRetry, maxWait = 5 * time.Second, 5 * time.Minute, 30 * time.Second
)

// Config configures a Reconciler.
type Config struct {
	// ProgramClients have the rights of the program.
	ProgramClients kube.Clients
	// AccountClients returns clients that act as a ServiceAccount.
	AccountClients func(namespace, name string) (kube.Clients, error)
	// ConfigSync returns a ConfigSync from a cache, with the errors of kube.Watched. ConfigSyncs returns all of them.
	ConfigSync  func(namespace, name string) (*v1alpha1.ConfigSync, error)
	ConfigSyncs func() []*v1alpha1.ConfigSync
	// GatewaySync returns a GatewaySync from a cache.
	GatewaySync func(namespace, name string) (*v1alpha1.GatewaySync, error)
	// OnRun is called after each run with the class of its outcome and its duration.
	OnRun func(class v1alpha1.Class, d time.Duration)
	// OnPrune is called after each run with the numbers of objects that it deleted and could not delete.
	OnPrune func(deleted, failed int)
	// Remote configures the access to git.
	Remote repo.RemoteOptions
	// Cache keeps git objects between runs.
	Cache *source.Cache
	Log   *slog.Logger
}

// Reconciler runs ConfigSyncs. Changed and GatewaySyncChanged may be called at any time. While Run is not running, they do nothing.
type Reconciler struct {
	Config

	mu     sync.Mutex
	queue  workqueue.TypedDelayingInterface[cache.ObjectName] // nil unless Run is running
	states map[cache.ObjectName]*state
	woken  map[cache.ObjectName]bool // ConfigSyncs that run before they are due
	runs   map[string]int            // by namespace
}

// state is the state of a ConfigSync between its runs. Only the worker that processes the ConfigSync uses it. It may get lost: after a
// restart every ConfigSync runs at once.
type state struct {
	uid      types.UID
	trigger  string    // of the last run
	ran, due time.Time // the end of the last run, and the time of the next one
	failures int
	commit   string
	waiting  configsync.Waiting
	lastLog  string // see logOnce
}

// New returns a Reconciler.
func New(c Config) *Reconciler { return &Reconciler{Config: c} }

// Changed is called when a ConfigSync may have changed. It queues the ConfigSync, and if it is ready, those that wait for it.
func (r *Reconciler) Changed(namespace, name string) {
	if cs, err := r.ConfigSync(namespace, name); err == nil && request.ReadConfig(cs, "").Phase == request.Succeeded {
		r.wake(namespace, func(other *v1alpha1.ConfigSync) bool { return waitsFor(other, v1alpha1.DependsOnConfigSync, name) })
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queue != nil {
		r.queue.Add(cache.NewObjectName(namespace, name))
	}
}

// GatewaySyncChanged is called when a GatewaySync may have changed. ConfigSyncs that follow it, or wait for it, run soon.
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

// waitsFor reports whether the status of a ConfigSync says that it waits, and the ConfigSync names this dependency.
func waitsFor(cs *v1alpha1.ConfigSync, kind v1alpha1.ConfigDependencyKind, name string) bool {
	ready := meta.FindStatusCondition(cs.Status.Conditions, v1alpha1.ConditionReady)
	return ready != nil && ready.Reason == string(v1alpha1.ReasonDependencyNotReady) &&
		slices.ContainsFunc(cs.Spec.DependsOn, func(d v1alpha1.ConfigDependency) bool { return d.EffectiveKind() == kind && d.Name == name })
}

// wake queues the matching ConfigSyncs of a namespace, so that they run before they are due.
func (r *Reconciler) wake(namespace string, match func(*v1alpha1.ConfigSync) bool) {
	for _, cs := range r.ConfigSyncs() {
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

// Run runs ConfigSyncs until ctx is done. It returns after the last run has ended.
func (r *Reconciler) Run(ctx context.Context) {
	queue := workqueue.NewTypedDelayingQueue[cache.ObjectName]()
	r.mu.Lock()
	r.queue, r.states, r.woken, r.runs = queue, map[cache.ObjectName]*state{}, map[cache.ObjectName]bool{}, map[string]int{}
	r.mu.Unlock()
	for _, cs := range r.ConfigSyncs() {
		queue.Add(cache.MetaObjectToName(cs))
	}
	var workers sync.WaitGroup
	for range maxRuns {
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

// next processes the next ConfigSync of the queue. It returns false when the queue is shut down.
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

// process runs a ConfigSync if it is due or was changed. It returns the pause until the next run, or 0 if there is no next run.
func (r *Reconciler) process(ctx context.Context, key cache.ObjectName) time.Duration {
	seen, err := r.ConfigSync(key.Namespace, key.Name)
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
		return left
	}
	if !r.acquireSlot(key.Namespace) {
		return backoff.Jitter(busyPause)
	}
	defer r.releaseSlot(key.Namespace)
	pause := r.run(ctx, key, s)
	s.ran = time.Now()
	s.due = s.ran.Add(pause)
	return pause
}

// state returns the state of a ConfigSync, and whether it was woken. It replaces the state of a deleted ConfigSync of the same name.
func (r *Reconciler) state(key cache.ObjectName, uid types.UID) (*state, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.states[key]
	if s == nil || s.uid != uid {
		r.forgetObjects(s)
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
	r.forgetObjects(r.states[key])
	delete(r.states, key)
	delete(r.woken, key)
}

// forgetObjects removes the cached git objects of a deleted ConfigSync. s may be nil.
func (r *Reconciler) forgetObjects(s *state) {
	if s == nil {
		return
	}
	if err := r.Cache.Forget(string(s.uid)); err != nil {
		r.Log.Warn("git objects cannot be removed", "error", err)
	}
}

// acquireSlot reports whether another run of a namespace may start. If so, the caller calls releaseSlot after the run.
func (r *Reconciler) acquireSlot(namespace string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := 0
	for _, n := range r.runs {
		all += n
	}
	if n := r.runs[namespace]; n >= maxNamespaceRuns || n > 0 && all >= maxRuns/2 {
		return false
	}
	r.runs[namespace]++
	return true
}

func (r *Reconciler) releaseSlot(namespace string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runs[namespace]--; r.runs[namespace] == 0 {
		delete(r.runs, namespace)
	}
}

// trigger returns a text that changes when a user changes a ConfigSync, but not when its status changes. A change starts a run at once.
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

// run runs a ConfigSync, and returns the pause until the next run.
func (r *Reconciler) run(ctx context.Context, key cache.ObjectName, s *state) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	cs, err := kube.ConfigSyncs(r.ProgramClients.Dynamic, key.Namespace).Get(ctx, key.Name)
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
		return r.finalize(ctx, cs, s)
	}
	if cs, err = r.syncFinalizer(ctx, cs); err != nil {
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
	run, err := engine.Apply(ctx, cs, configsync.Options{HealthTimeout: healthTimeout, Waiting: s.waiting})
	if commit := run.Commit(); commit != "" && commit != s.commit {
		s.commit, s.failures, s.waiting = commit, 0, configsync.Waiting{}
	}
	class := v1alpha1.ClassDone
	if err != nil {
		class = failure.Reason(err, v1alpha1.ReasonGitUnreachable).Class()
	}
	r.OnRun(class, time.Since(began))
	r.OnPrune(run.Pruned())
	return r.pause(key, cs, s, run, err, began)
}

// pause returns the pause after a run that began at began and ended with err. A run without a plan did not wait for objects, but for example
// for other builds.
func (r *Reconciler) pause(key cache.ObjectName, cs *v1alpha1.ConfigSync, s *state, run *configsync.Run, err error, began time.Time) time.Duration {
	refresh, invalid := effective.RefreshInterval(&cs.Spec)
	if invalid != nil {
		refresh = v1alpha1.DefaultRefreshInterval
	}
	if err == nil {
		s.failures, s.waiting = 0, configsync.Waiting{}
		r.logOnce(key, s, slog.LevelInfo, "ConfigSync applied", "commit", s.commit)
		return backoff.Jitter(refresh)
	}
	waits := failure.Is(err, v1alpha1.ReasonProgressing)
	if waits && run.Plan != nil && s.waiting.Since.IsZero() {
		s.waiting = configsync.Waiting{Commit: s.commit, Since: began}
	}
	if waits || failure.Is(err, v1alpha1.ReasonDependencyNotReady) {
		s.failures++
		r.logOnce(key, s, slog.LevelInfo, "ConfigSync waits", "message", err.Error())
		return backoff.Jitter(min(firstRetry*time.Duration(s.failures), maxWait))
	}
	switch class := failure.Reason(err, v1alpha1.ReasonProgressing).Class(); class {
	case v1alpha1.ClassStalled, v1alpha1.ClassHeld:
		r.logOnce(key, s, slog.LevelWarn, "ConfigSync stopped", "class", string(class), "error", err.Error())
		return backoff.Jitter(min(refresh, maxRetry))
	default:
		return r.retry(key, s, err)
	}
}

// retry returns the pause after a temporary failure. It grows with each failure.
func (r *Reconciler) retry(key cache.ObjectName, s *state, err error) time.Duration {
	if !errors.Is(err, context.Canceled) {
		r.logOnce(key, s, slog.LevelWarn, "ConfigSync failed; trying again", "error", err.Error())
	}
	s.failures++
	return backoff.Jitter(min(firstRetry<<min(s.failures-1, 10), maxRetry))
}

// logOnce logs an event of a ConfigSync, unless it is the same as the last one.
func (r *Reconciler) logOnce(key cache.ObjectName, s *state, level slog.Level, event string, args ...any) {
	if text := fmt.Sprint(event, args); text != s.lastLog {
		s.lastLog = text
		r.Log.Log(context.Background(), level, event, append([]any{"namespace", key.Namespace, "configsync", key.Name}, args...)...)
	}
}

// engine returns the engine for a run of a ConfigSync. It creates the clients of the account when the run needs them.
func (r *Reconciler) engine(ctx context.Context, cs *v1alpha1.ConfigSync) *configsync.Engine {
	return &configsync.Engine{StatusClients: &r.ProgramClients, Remote: r.Remote, Cache: r.Cache, Connect: sync.OnceValues(func() (kube.Clients, error) { return r.connect(ctx, cs) })}
}

// connect returns clients that act as the ServiceAccount of a ConfigSync. A SelfSubjectReview verifies them, so that a missing right of the
// program to impersonate the account does not look like a missing right of the account.
func (r *Reconciler) connect(ctx context.Context, cs *v1alpha1.ConfigSync) (kube.Clients, error) {
	name := cs.Spec.Account()
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 { // it becomes a part of a user name
		return kube.Clients{}, failure.New(v1alpha1.ReasonManifestInvalid, "spec.serviceAccountName: %s: %s", failure.Quote(name), problems[0])
	}
	clients, err := r.AccountClients(cs.Namespace, name)
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
		return kube.Clients{}, failure.New(v1alpha1.ReasonApplyForbidden, "the API server identifies the program as %s and not as ServiceAccount %s", failure.Quote(me.Status.UserInfo.Username), name)
	}
	return clients, nil
}

// syncFinalizer adds or removes the finalizer, as spec.deletionPolicy says. It is called before a run applies the first object. It returns
// the ConfigSync as it is after the write.
func (r *Reconciler) syncFinalizer(ctx context.Context, cs *v1alpha1.ConfigSync) (*v1alpha1.ConfigSync, error) {
	has := slices.Contains(cs.Finalizers, v1alpha1.FinalizerConfigSync)
	switch wanted := cs.Spec.DeletionPolicy == v1alpha1.ConfigDelete; {
	case wanted && !has:
		return r.patchFinalizers(ctx, cs, append(slices.Clone(cs.Finalizers), v1alpha1.FinalizerConfigSync))
	case has && !wanted:
		return r.removeFinalizer(ctx, cs)
	}
	return cs, nil
}

// removeFinalizer removes the finalizer.
func (r *Reconciler) removeFinalizer(ctx context.Context, cs *v1alpha1.ConfigSync) (*v1alpha1.ConfigSync, error) {
	return r.patchFinalizers(ctx, cs, slices.DeleteFunc(slices.Clone(cs.Finalizers), func(f string) bool { return f == v1alpha1.FinalizerConfigSync }))
}

// patchFinalizers replaces the finalizers of a ConfigSync. It fails if the ConfigSync changed since it was read.
func (r *Reconciler) patchFinalizers(ctx context.Context, cs *v1alpha1.ConfigSync, list []string) (*v1alpha1.ConfigSync, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": cs.UID, "resourceVersion": cs.ResourceVersion, "finalizers": list}})
	if err != nil {
		return nil, err
	}
	changed, err := kube.ConfigSyncs(r.ProgramClients.Dynamic, cs.Namespace).Patch(ctx, cs.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return nil, fmt.Errorf("write the finalizers of ConfigSync %s: %w", cs.Name, err)
	}
	return changed, nil
}

// finalize deletes the objects of a ConfigSync that is being deleted, if the policy says so, and then removes the finalizer. It returns the
// pause until the next attempt, or 0. In a terminating namespace it only removes the finalizer: the rights of the account may be gone
// already, and Kubernetes deletes all objects of the namespace. Objects elsewhere stay.
func (r *Reconciler) finalize(ctx context.Context, cs *v1alpha1.ConfigSync, s *state) time.Duration {
	if !slices.Contains(cs.Finalizers, v1alpha1.FinalizerConfigSync) {
		return 0
	}
	key := cache.MetaObjectToName(cs)
	again := func(err error) time.Duration { return min(r.retry(key, s, err), backoff.Jitter(maxWait)) }
	if cs.Spec.DeletionPolicy == v1alpha1.ConfigDelete {
		terminates, err := r.isTerminating(ctx, cs.Namespace)
		if err == nil && !terminates {
			err = r.deleteObjects(ctx, cs)
		}
		if err != nil {
			return again(err)
		}
	}
	now, err := kube.ConfigSyncs(r.ProgramClients.Dynamic, cs.Namespace).Get(ctx, cs.Name) // deleteObjects may have written the status
	if err == nil && now.UID == cs.UID {
		_, err = r.removeFinalizer(ctx, now)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return again(err)
	}
	return 0
}

// deleteObjects deletes the objects of a ConfigSync. If it cannot, for a reason of configsync.Remaining.Forbidden, it fails until
// spec.progressDeadline after the deletion of the ConfigSync. After that it leaves the objects in the cluster.
func (r *Reconciler) deleteObjects(ctx context.Context, cs *v1alpha1.ConfigSync) error {
	engine := r.engine(ctx, cs)
	left, err := engine.Remove(ctx, cs)
	switch deadline, invalid := effective.ConfigProgressDeadline(&cs.Spec); {
	case err == nil:
		engine.SendReleased(ctx, cs, left.Objects, "")
	case left.Forbidden && (invalid != nil || r.ProgramClients.Now().Sub(cs.DeletionTimestamp.Time) >= deadline):
		engine.SendReleased(ctx, cs, left.Objects, fmt.Sprintf("they could not be deleted until %s after the deletion of the ConfigSync: %s", deadline, failure.Cut(err.Error(), 300)))
	default:
		return err
	}
	return nil
}

// isTerminating reports whether a namespace is being deleted.
func (r *Reconciler) isTerminating(ctx context.Context, namespace string) (bool, error) {
	ns, err := r.ProgramClients.Core.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("read namespace %s: %w", namespace, err)
	}
	return ns.DeletionTimestamp != nil || ns.Status.Phase == corev1.NamespaceTerminating, nil
}
