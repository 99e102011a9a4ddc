// Package application finds the Argo CD Application whose sync created a hook Job, and the commit of that sync. It reads a single
// Application and nothing else of Argo CD.
package application

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/giturl"
	"stoker.io/stoker/internal/kube"
)

var (
	// ErrOvertaken means that the sync that created the Job is over, so that the Job must not request its commit any more.
	ErrOvertaken = errors.New("the sync that created this Job is over")
	// ErrStale means that the status of the Application does not show the sync of the Job yet.
	ErrStale = errors.New("the Application does not report which revision it syncs")
	// ErrOtherRepository means that the revision is not from the requested repository.
	ErrOtherRepository = errors.New("the revision belongs to another repository")
)

// SyncQuery names the sync to wait for: the one that created Job.
type SyncQuery struct {
	Application Name
	Job         Job
	// Repo is the repository that the commit must be from.
	Repo string
	// Source selects one of several sources by its position from 1, as the argocd command line does, or by its URL. If it is "", the
	// source is the one whose repository is Repo.
	Source string
	// Timeout bounds the wait until the Application reports the sync. The Application is read at least once.
	Timeout time.Duration
}

// Sync is a sync of an Application.
type Sync struct {
	Application Name
	// Commit is the full commit that is synced.
	Commit  string
	Started metav1.Time
}

// pollInterval is the time between two reads. A sync reports its revision about two seconds after it created its first hooks.
const pollInterval = 500 * time.Millisecond

const readTimeout = 10 * time.Second

// WaitForSync reads the Application until it reports the sync that created the Job. The error is ErrStale if query.Timeout passes first, and
// ErrOvertaken or ErrOtherRepository if waiting does not help.
//
// Argo CD marks a new sync as running before it replaces the result of the last one. So WaitForSync accepts a result only if the
// Job is among its running hooks, or if its revision begins with the digits in the Job's name.
func WaitForSync(ctx context.Context, client dynamic.Interface, query SyncQuery) (Sync, error) {
	limited, cancel := context.WithTimeout(ctx, query.Timeout)
	defer cancel()
	lastErr := ErrStale
	for n := 0; ; n++ {
		readCtx := limited
		if n == 0 {
			readCtx = ctx
		}
		app, err := getApplication(readCtx, client, query.Application)
		switch {
		case err == nil:
			var s Sync
			s, err = query.evaluate(app)
			if err == nil || !errors.Is(err, ErrStale) {
				return s, err
			}
			lastErr = err
		case readCtx.Err() == nil && !retryable(err):
			return Sync{}, err
		case readCtx.Err() == nil && n == 0: // a later error does not replace what an earlier read returned
			lastErr = fmt.Errorf("%w: %w", ErrStale, err)
		}
		if !backoff.Wait(limited, pollInterval) {
			break
		}
	}
	if ctx.Err() != nil {
		return Sync{}, ctx.Err()
	}
	return Sync{}, fmt.Errorf("%w (waited %s)", lastErr, query.Timeout)
}

func getApplication(ctx context.Context, client dynamic.Interface, name Name) (*Application, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	u, err := client.Resource(Resource).Namespace(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	switch {
	case err == nil:
		return decode(u)
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("%w\nThe Job needs the right to get Application %s in namespace %s: bind the Role stoker-hooks-applications, which the chart creates if hooks.applications is set", err, name.Name, name.Namespace)
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("there is no Application %s in namespace %s: set --application NAMESPACE/NAME: %w", name.Name, name.Namespace, err)
	}
	return nil, err
}

// retryable reports whether a retry may help. If an Application cannot be decoded, a retry does not help.
func retryable(err error) bool {
	_, unreadable := errors.AsType[*unreadableError](err)
	return !unreadable && kube.Transient(err)
}

// evaluate returns the sync if app, one read of the Application, reports it. Otherwise it returns ErrOvertaken, ErrStale or
// ErrOtherRepository. It reads only app.
func (q SyncQuery) evaluate(app *Application) (Sync, error) {
	o := app.Status.OperationState
	if o == nil {
		return Sync{}, fmt.Errorf("%w: %s has not synced yet", ErrStale, q.Application)
	}
	hook, generated := ParseHookName(q.Job.Name)
	if generated && o.StartedAt.Unix() > hook.Started.Unix() {
		return Sync{}, fmt.Errorf("%w: it started at %s, and %s started another one at %s", ErrOvertaken, timeText(metav1.Time{Time: hook.Started}), q.Application, timeText(o.StartedAt))
	}
	if o.finished() {
		return Sync{}, fmt.Errorf("%w: the sync of %s ended as %s", ErrOvertaken, q.Application, o.Phase)
	}
	r := o.SyncResult
	if r == nil {
		return Sync{}, fmt.Errorf("%w: %s has no result yet", ErrStale, q.Application)
	}
	listed := r.isRunningHook(q.Job)
	byName := generated && hook.Revision != "" && strings.HasPrefix(r.Revision, hook.Revision)
	if !listed && !byName {
		return Sync{}, fmt.Errorf("%w: the last result of %s has revision %s and does not list the Job %s as a running hook", ErrStale, q.Application, revision(r), q.Job)
	}
	commit, err := q.commit(app, r)
	return Sync{Application: q.Application, Commit: commit, Started: o.StartedAt}, err
}

func revision(r *SyncResult) string {
	if r.Revision == "" && len(r.Revisions) > 0 {
		return strings.Join(r.Revisions[:min(len(r.Revisions), 8)], " ")
	}
	return fmt.Sprintf("%.40q", r.Revision)
}

// commit returns the commit of the selected source. Sources that match must have the same revision.
func (q SyncQuery) commit(app *Application, r *SyncResult) (string, error) {
	sources, revisions := sourcesOf(app, r)
	if len(sources) != len(revisions) {
		return "", fmt.Errorf("%w: %s has %d sources, but its result has %d revisions", ErrStale, q.Application, len(sources), len(revisions))
	}
	found := -1
	for i, s := range sources {
		if !q.selects(i, s) {
			continue
		}
		if found >= 0 && revisions[i] != revisions[found] {
			return "", fmt.Errorf("%w: sources %d and %d of %s both match, at different revisions: choose one with --source", ErrOtherRepository, found+1, i+1, q.Application)
		}
		found = i
	}
	switch {
	case found < 0 && q.Source != "":
		return "", fmt.Errorf("%w: --source %.200q matches none of the %d sources of %s", ErrOtherRepository, q.Source, len(sources), q.Application)
	case found < 0, !giturl.Same(sources[found].RepoURL, q.Repo):
		return "", fmt.Errorf("%w: %s syncs %s, but spec.git.repo is %s: pass a ref instead of --application", ErrOtherRepository, q.Application, addresses(sources), address(q.Repo))
	case sources[found].Chart != "" || !syntax.IsCommit(revisions[found]):
		return "", fmt.Errorf("%w: the revision %.40q of %s is not a git commit", ErrOtherRepository, revisions[found], q.Application)
	}
	return revisions[found], nil
}

// sourcesOf returns the sources of a sync and their revisions, in the same order. It prefers the result over the spec, which may
// have changed since.
func sourcesOf(app *Application, r *SyncResult) ([]Source, []string) {
	switch {
	case len(r.Revisions) > 0 && len(r.Sources) > 0:
		return r.Sources, r.Revisions
	case len(r.Revisions) > 0:
		return app.Spec.Sources, r.Revisions
	case r.Source != nil && r.Source.RepoURL != "":
		return []Source{*r.Source}, []string{r.Revision}
	case app.Spec.Source != nil:
		return []Source{*app.Spec.Source}, []string{r.Revision}
	}
	return nil, nil
}

// selects reports whether the source at index i is the selected one.
func (q SyncQuery) selects(i int, s Source) bool {
	switch n, err := strconv.Atoi(q.Source); {
	case q.Source == "":
		return giturl.Same(s.RepoURL, q.Repo)
	case err == nil:
		return i+1 == n
	}
	return giturl.Same(s.RepoURL, q.Source)
}

const maxShown = 4

func addresses(sources []Source) string {
	var list []string
	for _, s := range sources[:min(len(sources), maxShown)] {
		list = append(list, address(s.RepoURL))
	}
	if more := len(sources) - maxShown; more > 0 {
		list = append(list, fmt.Sprintf("%d more", more))
	}
	if len(list) == 0 {
		return "no repository"
	}
	return strings.Join(list, ", ")
}

// address returns the address of a repository without user and password.
func address(s string) string {
	if scheme, rest, ok := strings.Cut(s, "://"); ok {
		host, path, _ := strings.Cut(rest, "/")
		if i := strings.LastIndexByte(host, '@'); i >= 0 {
			host = host[i+1:]
		}
		s = scheme + "://" + host + "/" + path
	}
	return fmt.Sprintf("%.200s", s)
}

// Resource is the resource of Applications.
var Resource = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "applications"}

// DefaultNamespace is the default namespace of Applications.
const DefaultNamespace = "argocd"

// Application holds the fields of an Application that this package reads.
type Application struct {
	Spec struct {
		Source  *Source  `json:"source"`
		Sources []Source `json:"sources"`
	} `json:"spec"`
	Status struct {
		OperationState *OperationState `json:"operationState"`
	} `json:"status"`
}

// Source is a source of manifests.
type Source struct {
	RepoURL string `json:"repoURL"`
	// Chart is set if the source is a repository of Helm charts, whose revisions are not commits.
	Chart string `json:"chart"`
}

// OperationState is the last or current sync.
type OperationState struct {
	Phase      string      `json:"phase"`
	StartedAt  metav1.Time `json:"startedAt"`
	SyncResult *SyncResult `json:"syncResult"`
}

// SyncResult is the result of a sync. At the beginning of a sync it is still that of the previous one.
type SyncResult struct {
	Resources []ResourceResult `json:"resources"`
	Revision  string           `json:"revision"`
	Revisions []string         `json:"revisions"`
	Source    *Source          `json:"source"`
	Sources   []Source         `json:"sources"`
}

// ResourceResult is one object of a sync.
type ResourceResult struct {
	Group     string `json:"group"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	HookPhase string `json:"hookPhase"`
}

// finished reports whether the sync has ended or is being terminated.
func (o *OperationState) finished() bool {
	return slices.Contains([]string{"Succeeded", "Failed", "Error", "Terminating"}, o.Phase)
}

// isRunningHook reports whether job is a running hook of the sync.
func (r *SyncResult) isRunningHook(job Job) bool {
	return job.Name != "" && slices.ContainsFunc(r.Resources, func(x ResourceResult) bool {
		return x.Group == "batch" && x.Kind == "Job" && x.Namespace == job.Namespace && x.Name == job.Name && x.HookPhase == "Running"
	})
}

// decode returns an Application. Its error is an unreadableError if the object has another form.
func decode(u *unstructured.Unstructured) (*Application, error) {
	raw, err := json.Marshal(u.Object)
	if err != nil {
		return nil, err
	}
	a := &Application{}
	if err := json.Unmarshal(raw, a); err != nil {
		return nil, &unreadableError{err}
	}
	return a, nil
}

// unreadableError means that an Application has an unknown form. A retry does not help.
type unreadableError struct{ err error }

func (e *unreadableError) Error() string {
	return "the Application does not have the form of argoproj.io/v1alpha1: " + e.err.Error()
}

func (e *unreadableError) Unwrap() error { return e.err }

// timeText returns a time for messages.
func timeText(t metav1.Time) string {
	if t.IsZero() {
		return "an unknown time"
	}
	return t.UTC().Format(time.RFC3339)
}
