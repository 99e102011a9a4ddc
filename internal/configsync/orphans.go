package configsync

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/configsync/plan"
	"stoker.io/stoker/internal/kube"
)

// maxListed bounds the objects that Orphans lists.
const maxListed = 200_000

// Orphans returns the objects that carry the annotation stoker.io/configsync of a ConfigSync and match no entry of its inventory
// (plan.MatchesEntry), for example after a restore without the status. A run never prunes them, and adopts those that git names again.
// Orphans lists only metadata, in all namespaces. If the caller may not list a kind in all of them, Orphans lists it in the namespace of the
// ConfigSync. unseen names the kinds and API groups that could not be listed.
func (e *Engine) Orphans(ctx context.Context, cs *v1alpha1.ConfigSync) (orphans []manifest.ID, unseen []string, err error) {
	clients, err := e.Connect()
	if err != nil {
		return nil, nil, err
	}
	if clients, err = e.clusterClients(ctx, cs, clients); err != nil {
		return nil, nil, err
	}
	client, err := kube.MetadataOf(clients)
	if err != nil {
		return nil, nil, err
	}
	served, err := clients.Core.Discovery().ServerPreferredResources()
	failed, partial := discovery.GroupDiscoveryFailedErrorGroups(err)
	if err != nil && !partial {
		return nil, nil, fmt.Errorf("ask the API server for its kinds: %w", err)
	}
	for gv := range failed {
		unseen = append(unseen, gv.String())
	}
	entries := inventoryEntries(cs)
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
			found, err := listMarked(ctx, resource, "", cs.Owner(), &left)
			if apierrors.IsForbidden(err) && kind.Namespaced {
				found, err = listMarked(ctx, resource, cs.Namespace, cs.Owner(), &left)
			}
			if err != nil {
				unseen = append(unseen, manifest.ID{Group: gv.Group, Kind: kind.Kind}.Type())
				continue
			}
			for i := range found {
				o := &found[i]
				id := manifest.ID{Group: gv.Group, Kind: kind.Kind, Namespace: o.Namespace, Name: o.Name}
				if e, listed := entries[id]; !listed || !plan.MatchesEntry(e, o, cs.Owner()) {
					orphans = append(orphans, id)
				}
			}
		}
	}
	slices.SortFunc(orphans, manifest.ID.Compare)
	return orphans, unseen, ctx.Err()
}

// listMarked lists the objects with the annotation of an owner, in one namespace, or in all if namespace is "". It ignores objects that a
// controller owns, because some controllers copy annotations. left is how many objects may still be read. More are an error.
func listMarked(ctx context.Context, resource metadata.Getter, namespace, owner string, left *int) (found []metav1.PartialObjectMetadata, err error) {
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
