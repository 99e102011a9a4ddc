// Package manifest reads manifests of Kubernetes: bytes of a hostile repository become objects, with a bound on everything. It also
// holds the identity of an object, its line in an inventory, and the order of kinds. It is pure.
package manifest

import (
	"cmp"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// ID tells two objects apart. The API version is not part of it: an object is the same in every version.
type ID struct {
	Group, Kind, Namespace, Name string
}

// Type is Kind or Kind.group, as targets of a ConfigSync are written.
func (id ID) Type() string {
	if id.Group == "" {
		return id.Kind
	}
	return id.Kind + "." + id.Group
}

// String returns the type, the namespace and the name.
func (id ID) String() string {
	if id.Namespace == "" {
		return id.Type() + " " + id.Name
	}
	return id.Type() + " " + id.Namespace + "/" + id.Name
}

// IsSecret reports whether the object is a Secret.
func (id ID) IsSecret() bool { return id.Group == "" && id.Kind == "Secret" }

// IsData reports whether the object is a ConfigMap or a Secret. Pods that are not replaced yet may still read it when
// they restart, so it is pruned last.
func (id ID) IsData() bool { return id.IsSecret() || id.Group == "" && id.Kind == "ConfigMap" }

// IsNamespace reports whether the object is a Namespace.
func (id ID) IsNamespace() bool { return id.Group == "" && id.Kind == "Namespace" }

// IsDefinition reports whether the object is a CustomResourceDefinition.
func (id ID) IsDefinition() bool {
	return id.Group == "apiextensions.k8s.io" && id.Kind == "CustomResourceDefinition"
}

// NeverPruned reports whether a deletion of the object would delete what no commit can bring back.
func (id ID) NeverPruned() bool {
	return id.IsNamespace() || id.IsDefinition() || id.Group == "" && id.Kind == "PersistentVolumeClaim"
}

// Compare orders objects by kind, group, namespace and name: for printing, and among objects of the same rank.
func (id ID) Compare(other ID) int {
	return cmp.Or(cmp.Compare(id.Kind, other.Kind), cmp.Compare(id.Group, other.Group), cmp.Compare(id.Namespace, other.Namespace), cmp.Compare(id.Name, other.Name))
}

// Object is an object that a commit wants.
type Object struct {
	*unstructured.Unstructured
	// File is where it comes from.
	File string
	// Tainted means that the values of a Secret were available to its template, so that it may hold some.
	Tainted bool
}

// ID returns the identity of an object, with the namespace that it has now.
func (o Object) ID() ID { return IDOf(o.Unstructured) }

// Confidential reports whether values of the object must not be shown.
func (o Object) Confidential() bool { return o.Tainted || o.ID().IsSecret() }

// IDOf returns the identity of an object.
func IDOf(u *unstructured.Unstructured) ID {
	gvk := u.GroupVersionKind()
	return ID{gvk.Group, gvk.Kind, u.GetNamespace(), u.GetName()}
}

// Entry is one line of an inventory. Before an object exists its UID is unknown, and empty.
type Entry struct {
	ID
	UID types.UID
}

// String returns the line: group_kind_namespace_name_uid. Only the name can hold a _.
func (e Entry) String() string {
	return strings.Join([]string{e.Group, e.Kind, e.Namespace, e.Name, string(e.UID)}, "_")
}

// ParseEntry reads a line of an inventory. It returns false for anything else.
func ParseEntry(line string) (Entry, bool) {
	parts := strings.SplitN(line, "_", 4)
	if len(parts) != 4 {
		return Entry{}, false
	}
	at := strings.LastIndexByte(parts[3], '_')
	if at < 1 || parts[1] == "" {
		return Entry{}, false
	}
	return Entry{ID{parts[0], parts[1], parts[2], parts[3][:at]}, types.UID(parts[3][at+1:])}, true
}

// first and last are the kinds that are applied before and after all others, in this order.
var (
	first = []string{
		"Namespace", "CustomResourceDefinition", "PriorityClass", "StorageClass", "ResourceQuota", "LimitRange", "ServiceAccount", "Role",
		"ClusterRole", "RoleBinding", "ClusterRoleBinding", "ConfigMap", "Secret", "PersistentVolume", "PersistentVolumeClaim", "Service", "GatewaySync",
	}
	last = []string{"Job", "HorizontalPodAutoscaler", "Ingress", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "APIService"}
)

// Rank is the place of a kind in the order of applying. Pruning goes the other way.
func (id ID) Rank() int {
	for i, kind := range first {
		if kind == id.Kind {
			return i
		}
	}
	for i, kind := range last {
		if kind == id.Kind {
			return len(first) + 1 + i
		}
	}
	return len(first)
}
