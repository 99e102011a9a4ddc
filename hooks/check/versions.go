package check

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/Masterminds/semver/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"stoker.io/stoker/internal/kube"
)

// How many minor versions a part may be older than the newest one. Agents live as long as their pods, in plants often a year.
const (
	maxPartSkew  = 1
	maxAgentSkew = 4
)

// Part is a program of Stoker, or all agents of one version.
type Part struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
	Version   string `json:"version"`
	Count     int    `json:"count,omitempty"` // of agents
	// Problem says why the version is not supported beside the newest one, or why it is unknown.
	Problem string `json:"problem,omitempty"`
}

const agents = "agents"

// Versions returns the versions of the parts of the installation, and of the agents of a namespace, or of all if it is "". own is the version
// of this command.
func Versions(ctx context.Context, c kube.Clients, namespace, own string) ([]Part, error) {
	installed, err := installedParts(ctx, c)
	if err != nil {
		if !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
			return nil, err
		}
		installed = []Part{{Name: "injector", Problem: "unknown: " + err.Error()}}
	}
	parts := append([]Part{{Name: "stoker", Version: own}}, installed...)
	reports, undecodable, err := kube.SyncReports(c.Dynamic, namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list SyncReports: %w", err)
	}
	count := map[string]int{}
	if len(undecodable) > 0 {
		count[""] = len(undecodable)
	}
	for _, r := range reports {
		count[r.Status.AgentVersion]++
	}
	for _, v := range slices.Sorted(maps.Keys(count)) {
		parts = append(parts, Part{Name: agents, Namespace: namespace, Version: v, Count: count[v]})
	}
	Compare(parts)
	return parts, nil
}

// systemNamespace returns the namespace that the webhook configuration names. Callers must trust Deployments with Stoker's labels only in that
// namespace: the owner of another one can label any Deployment. Its error is NotFound if there is no configuration, or if it names no Service.
func systemNamespace(ctx context.Context, c kube.Clients) (string, error) {
	w, err := c.Core.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, injectorName, metav1.GetOptions{})
	switch {
	case err != nil:
		return "", err
	case len(w.Webhooks) == 0 || w.Webhooks[0].ClientConfig.Service == nil:
		return "", apierrors.NewNotFound(schema.GroupResource{Resource: "services"}, injectorName)
	}
	return w.Webhooks[0].ClientConfig.Service.Namespace, nil
}

// installedParts returns the Deployments of Stoker.
func installedParts(ctx context.Context, c kube.Clients) ([]Part, error) {
	namespace, err := systemNamespace(ctx, c)
	if err != nil {
		return nil, err
	}
	found, err := c.Core.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=stoker"})
	if err != nil {
		return nil, err
	}
	var parts []Part
	for i := range found.Items {
		d := &found.Items[i]
		parts = append(parts, Part{Name: d.Labels["app.kubernetes.io/component"], Namespace: d.Namespace, Version: d.Labels["app.kubernetes.io/version"]})
	}
	return parts, nil
}

// Compare sets the problem of each part that does not work together with the newest, or whose version is not that of a release. An agent never
// counts as the newest: a pod can report any version.
func Compare(parts []Part) {
	var newest *semver.Version
	versions := make([]*semver.Version, len(parts))
	for i := range parts {
		if v, err := semver.NewVersion(parts[i].Version); err == nil {
			versions[i] = v
			if parts[i].Name != agents && (newest == nil || v.GreaterThan(newest)) {
				newest = v
			}
		} else if parts[i].Problem == "" {
			parts[i].Problem = fmt.Sprintf("unknown: %q is not the version of a release", cmp.Or(parts[i].Version, "none"))
		}
	}
	for i, v := range versions {
		if v == nil || newest == nil {
			continue
		}
		most, fix := uint64(maxPartSkew), "upgrade it"
		if parts[i].Name == agents {
			most, fix = maxAgentSkew, "restart their pods"
		}
		switch {
		case v.GreaterThan(newest):
			parts[i].Problem = fmt.Sprintf("newer than %s: upgrade the release, or restart their pods", newest)
		case v.Major() != newest.Major() || newest.Minor()-v.Minor() > most:
			parts[i].Problem = fmt.Sprintf("too old beside %s: %s", newest, fix)
		}
	}
}
