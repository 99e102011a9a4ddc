package configsync

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/configsync/manifest"
)

// maxListed bounds the objects of a cluster that are looked at.
const maxListed = 200_000

// Orphans returns the objects that are marked as a ConfigSync's and that its inventory does not have, as after a restore without the
// status. A run never prunes them; one that git names again becomes the ConfigSync's own again. It looks in all namespaces that the
// caller may list, and only at metadata. unseen names the kinds that could not be listed.
func (e *Engine) Orphans(ctx context.Context, cs *v1alpha1.ConfigSync) (orphans []manifest.ID, unseen []string, err error) {
	clients, err := e.Connect()
	if err != nil {
		return nil, nil, err
	}
	client, err := metadata.NewForConfig(clients.Config)
	if err != nil {
		return nil, nil, err
	}
	served, err := clients.Core.Discovery().ServerPreferredResources()
	if len(served) == 0 && err != nil {
		return nil, nil, fmt.Errorf("ask the API server for its kinds: %w", err)
	}
	listed := map[string]bool{}
	for _, line := range cs.Status.Inventory {
		listed[line] = true
	}
	left := maxListed
	for _, group := range served {
		gv, err := schema.ParseGroupVersion(group.GroupVersion)
		if err != nil {
			continue
		}
		for _, kind := range group.APIResources {
			if strings.Contains(kind.Name, "/") || !slices.Contains(kind.Verbs, "list") || !slices.Contains(kind.Verbs, "patch") {
				continue
			}
			resource := client.Resource(gv.WithResource(kind.Name))
			found, err := marked(ctx, resource, "", cs.Owner(), &left)
			if apierrors.IsForbidden(err) && kind.Namespaced {
				found, err = marked(ctx, resource, cs.Namespace, cs.Owner(), &left)
			}
			if err != nil {
				unseen = append(unseen, manifest.ID{Group: gv.Group, Kind: kind.Kind}.Type())
				continue
			}
			for _, o := range found {
				id := manifest.ID{Group: gv.Group, Kind: kind.Kind, Namespace: o.Namespace, Name: o.Name}
				if !listed[manifest.Entry{ID: id, UID: o.UID}.String()] {
					orphans = append(orphans, id)
				}
			}
		}
	}
	slices.SortFunc(orphans, func(a, b manifest.ID) int { return cmp.Or(a.Compare(b)) })
	return orphans, unseen, ctx.Err()
}

// marked lists the objects with the mark of an owner. Those that a controller made are not among them: some controllers copy annotations.
func marked(ctx context.Context, resource metadata.Getter, namespace, owner string, left *int) (found []metav1.PartialObjectMetadata, err error) {
	options := metav1.ListOptions{Limit: 500}
	for {
		var page *metav1.PartialObjectMetadataList
		if namespace == "" {
			page, err = resource.List(ctx, options)
		} else {
			page, err = resource.Namespace(namespace).List(ctx, options)
		}
		if err != nil {
			return nil, err
		}
		for _, o := range page.Items {
			if o.Annotations[v1alpha1.AnnotationConfigSync] == owner && metav1.GetControllerOf(&o) == nil {
				found = append(found, o)
			}
		}
		if *left -= len(page.Items); *left < 0 {
			return found, fmt.Errorf("the cluster has more than %d objects", maxListed)
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return found, nil
		}
	}
}
