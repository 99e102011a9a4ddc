//go:build linux

package argocd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// Application holds the fields of an Application that the tests read.
type Application struct {
	metav1.ObjectMeta `json:"metadata"`
	Status            struct {
		Sync struct {
			Status   string `json:"status"`
			Revision string `json:"revision"`
		} `json:"sync"`
		Health struct {
			Status  string `json:"status"`
			Message string `json:"message"`
		} `json:"health"`
		Conditions []struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		} `json:"conditions"`
		OperationState *Operation `json:"operationState"`
	} `json:"status"`
}

// Operation is a running or finished sync.
type Operation struct {
	Phase      string      `json:"phase"`
	Message    string      `json:"message"`
	StartedAt  metav1.Time `json:"startedAt"`
	FinishedAt metav1.Time `json:"finishedAt"`
	RetryCount int         `json:"retryCount"`
	Operation  struct {
		Sync struct {
			Resources []struct {
				Kind string `json:"kind"`
				Name string `json:"name"`
			} `json:"resources"`
		} `json:"sync"`
	} `json:"operation"`
	SyncResult struct {
		Revision  string `json:"revision"`
		Resources []struct {
			Kind      string `json:"kind"`
			Name      string `json:"name"`
			HookType  string `json:"hookType"`
			HookPhase string `json:"hookPhase"`
			SyncPhase string `json:"syncPhase"`
			Message   string `json:"message"`
			Status    string `json:"status"`
		} `json:"resources"`
	} `json:"syncResult"`
}

// Over reports whether the operation has ended.
func (o *Operation) Over() bool { return o.Phase != "Running" && o.Phase != "Terminating" }

// Applications returns the client of the Applications in Argo CD's namespace.
func Applications(client dynamic.Interface) dynamic.ResourceInterface {
	return client.Resource(Resources).Namespace(Namespace)
}

// Projects returns the client of the AppProjects in Argo CD's namespace.
func Projects(client dynamic.Interface) dynamic.ResourceInterface {
	return client.Resource(projects).Namespace(Namespace)
}

// Read converts an Application.
func Read(u *unstructured.Unstructured) (*Application, error) {
	a := new(Application)
	return a, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, a)
}

// Get reads an Application.
func Get(ctx context.Context, client dynamic.Interface, name string) (*Application, error) {
	u, err := Applications(client).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return Read(u)
}

// RefreshAnnotation is on an Application until Argo CD has polled git.
const RefreshAnnotation = "argocd.argoproj.io/refresh"

// Refresh makes Argo CD poll git now, as a git host's webhook does.
func Refresh(ctx context.Context, client dynamic.Interface, name string) error {
	patch := []byte(`{"metadata":{"annotations":{"` + RefreshAnnotation + `":"normal"}}}`)
	_, err := Applications(client).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// Resource names an object of an Application for Argo CD's API.
type Resource struct{ Group, Version, Kind, Namespace, Name string }

// Action is an action in the menu of a resource.
type Action struct {
	Name     string `json:"name"`
	Disabled bool   `json:"disabled"`
}

// Actions returns the actions of a resource.
func (a *ArgoCD) Actions(ctx context.Context, application string, r Resource) ([]Action, error) {
	raw, err := a.ask(ctx, http.MethodGet, application, "resource/actions", r.query(), nil)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Actions []Action `json:"actions"`
	}
	return answer.Actions, json.Unmarshal(raw, &answer)
}

// Run runs an action.
func (a *ArgoCD) Run(ctx context.Context, application string, r Resource, action string) error {
	body, err := json.Marshal(action)
	if err != nil {
		return err
	}
	_, err = a.ask(ctx, http.MethodPost, application, "resource/actions", r.query(), body)
	return err
}

// Health returns the health of a resource, a space and its message; "" if the Application has no such resource. Since Argo CD 3 the Application
// itself no longer holds them.
func (a *ArgoCD) Health(ctx context.Context, application string, r Resource) (string, error) {
	raw, err := a.ask(ctx, http.MethodGet, application, "resource-tree", url.Values{}, nil)
	if err != nil {
		return "", err
	}
	var tree struct {
		Nodes []struct {
			Group     string                           `json:"group"`
			Kind      string                           `json:"kind"`
			Namespace string                           `json:"namespace"`
			Name      string                           `json:"name"`
			Health    struct{ Status, Message string } `json:"health"`
		} `json:"nodes"`
	}
	if err := json.Unmarshal(raw, &tree); err != nil {
		return "", err
	}
	for _, n := range tree.Nodes {
		if n.Group == r.Group && n.Kind == r.Kind && n.Namespace == r.Namespace && n.Name == r.Name {
			return n.Health.Status + " " + n.Health.Message, nil
		}
	}
	return "", nil
}

func (r Resource) query() url.Values {
	return url.Values{"namespace": {r.Namespace}, "resourceName": {r.Name}, "group": {r.Group}, "version": {r.Version}, "kind": {r.Kind}}
}

func (a *ArgoCD) ask(ctx context.Context, method, application, path string, query url.Values, body []byte) ([]byte, error) {
	query.Set("appNamespace", Namespace)
	address := a.base + "/api/v1/applications/" + url.PathEscape(application) + "/" + path + "?" + query.Encode()
	request, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := a.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	said, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", method, address, response.Status, said)
	}
	return said, err
}
