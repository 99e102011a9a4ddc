// Package application finds out for a Job of a sync which Application of Argo CD it belongs to, and which revision that
// sync brings. It reads one Application and knows nothing else of Argo CD.
package application

import (
	"encoding/json"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Resource is where Applications are.
var Resource = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "applications"}

// DefaultNamespace is where Argo CD keeps Applications unless it is told otherwise.
const DefaultNamespace = "argocd"

// Application is what is read of an Application.
type Application struct {
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Spec struct {
		Source  *Source  `json:"source"`
		Sources []Source `json:"sources"`
	} `json:"spec"`
	Status struct {
		OperationState *OperationState `json:"operationState"`
	} `json:"status"`
}

// Source is where manifests come from.
type Source struct {
	RepoURL string `json:"repoURL"`
	Path    string `json:"path"`
	// Chart is set where the source is a repository of Helm charts, whose revisions are no commits.
	Chart string `json:"chart"`
}

// OperationState is the last sync, or the one that is under way.
type OperationState struct {
	Phase      string      `json:"phase"`
	Message    string      `json:"message"`
	StartedAt  metav1.Time `json:"startedAt"`
	SyncResult *SyncResult `json:"syncResult"`
}

// SyncResult is what a sync brought. At the beginning of a sync it is still that of the one before.
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

// over reports whether the sync has ended, or is being ended.
func (o *OperationState) over() bool {
	return slices.Contains([]string{"Succeeded", "Failed", "Error", "Terminating"}, o.Phase)
}

// running reports whether the sync waits for a hook: a Job of that name.
func (r *SyncResult) running(job Job) bool {
	return job.Name != "" && slices.ContainsFunc(r.Resources, func(x ResourceResult) bool {
		return x.Group == "batch" && x.Kind == "Job" && x.Namespace == job.Namespace && x.Name == job.Name && x.HookPhase == "Running"
	})
}

// read reads an Application as an untyped client has it.
func read(u *unstructured.Unstructured) (*Application, error) {
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

// unreadableError means that an Application has another form than is known here: to look again does not help.
type unreadableError struct{ err error }

func (e *unreadableError) Error() string {
	return "the Application is of another form than argoproj.io/v1alpha1 has: " + e.err.Error()
}

func (e *unreadableError) Unwrap() error { return e.err }

// at is a time for people.
func at(t metav1.Time) string {
	if t.IsZero() {
		return "an unknown time"
	}
	return t.UTC().Format(time.RFC3339)
}
