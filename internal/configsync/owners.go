package configsync

import (
	"context"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/kube"
)

// owners looks up the ConfigSyncs that the marks (annotation stoker.io/configsync) of objects name, and namespaces. It is safe for concurrent use.
type owners struct {
	clients kube.Clients
	// elsewhere means that the objects are in another cluster than clients.
	elsewhere bool
	mu        sync.Mutex
	found     map[string]*owner
}

// owner is what is known of a ConfigSync.
type owner struct {
	entries map[manifest.ID]manifest.Entry
	// all means that the ConfigSync has no inventory yet, so it owns all objects with its mark. unknown means that it cannot be read.
	all, unknown bool
}

// owns reports whether the ConfigSync of a mark owns a live object. A ConfigSync that does not exist owns nothing, and one whose inventory
// does not have the object has given it up. listed is the UID in the inventory of the caller's ConfigSync. It decides if the
// ConfigSync of the mark cannot be read or has no inventory yet.
func (o *owners) owns(ctx context.Context, mark string, listed types.UID, live *unstructured.Unstructured) bool {
	c := o.get(ctx, mark)
	if c.unknown {
		return listed != live.GetUID()
	}
	e, ok := c.entries[manifest.IDOf(live)]
	return ok && (e.UID == "" || e.UID == live.GetUID()) || c.all && listed != live.GetUID()
}

// lacksNamespace reports whether the cluster of the objects is known to lack a namespace.
func (o *owners) lacksNamespace(ctx context.Context, name string) bool {
	if name == "" || o.elsewhere {
		return false
	}
	_, err := o.clients.Core.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}

func (o *owners) get(ctx context.Context, mark string) *owner {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c := o.found[mark]; c != nil {
		return c
	}
	c := &owner{}
	namespace, name, _ := strings.Cut(mark, "/")
	if o.elsewhere || strings.HasSuffix(mark, v1alpha1.OtherCluster) {
		c.unknown = true
	} else if validName(namespace) && validName(name) { // no ConfigSync can have other names
		cs, err := kube.ConfigSyncs(o.clients.Dynamic, namespace).Get(ctx, name)
		switch {
		case err == nil:
			c.entries, c.all = inventoryEntries(cs), cs.Status.SourceRevision == ""
		case !apierrors.IsNotFound(err):
			c.unknown = true
		}
	}
	if o.found == nil {
		o.found = map[string]*owner{}
	}
	o.found[mark] = c
	return c
}

func validName(s string) bool { return len(validation.IsDNS1123Subdomain(s)) == 0 }
