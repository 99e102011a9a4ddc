package manifest

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// ID identifies an object. The API version is not part of it, because an object is the same in every version.
type ID struct {
	Group, Kind, Namespace, Name string
}

// Type returns Kind or Kind.group, the form that the targets of a ConfigSync use.
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

// IsCRD reports whether the object is a CustomResourceDefinition.
func (id ID) IsCRD() bool {
	return id.Group == "apiextensions.k8s.io" && id.Kind == "CustomResourceDefinition"
}

// NeverPruned reports whether the deletion of the object would delete data that no commit can restore.
func (id ID) NeverPruned() bool {
	return id.IsNamespace() || id.IsCRD() || id.Group == "" && id.Kind == "PersistentVolumeClaim"
}

// Compare orders objects by kind, group, namespace and name.
func (id ID) Compare(other ID) int {
	return cmp.Or(cmp.Compare(id.Kind, other.Kind), cmp.Compare(id.Group, other.Group), cmp.Compare(id.Namespace, other.Namespace), cmp.Compare(id.Name, other.Name))
}

// Object is an object of a commit.
type Object struct {
	*unstructured.Unstructured
	// File is the path of its manifest in the repository.
	File string
	// Tainted means that its template could read the values of a Secret, so that the object may hold some.
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

// Entry is one line of an inventory. The UID is empty if the object may not have been created yet.
type Entry struct {
	ID
	UID types.UID
}

// String returns the line: group_kind_namespace_name_uid. Only the name can contain "_".
func (e Entry) String() string {
	return strings.Join([]string{e.Group, e.Kind, e.Namespace, e.Name, string(e.UID)}, "_")
}

// ParseEntry parses a line of an inventory. It returns false if the line is invalid.
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

// Rank returns the position of the kind in the order in which objects are applied. Pruning uses the reverse order.
func (id ID) Rank() int {
	if i := slices.Index(first, id.Kind); i >= 0 {
		return i
	}
	return len(first) + 1 + slices.Index(last, id.Kind)
}
