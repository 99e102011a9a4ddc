// Package application finds the Argo CD Application whose sync created a hook Job, and the commit of that sync. It reads a single
// Application and nothing else of Argo CD.
package application

import (
	"encoding/json"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

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
