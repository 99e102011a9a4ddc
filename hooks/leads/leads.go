// Package leads reads which GatewaySyncs have a lead. The lock of a lead is in the SyncTarget.
package leads

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// Leads holds SyncTargets. If they cannot be read, Err says why, and the age of each status shows whether a lead is alive.
type Leads struct {
	Err     error
	targets map[types.NamespacedName]*v1alpha1.SyncTarget
}

// Read lists the SyncTargets of a namespace, or of all namespaces if it is "".
func Read(ctx context.Context, client dynamic.Interface, namespace string) Leads {
	list, undecodable, err := kube.SyncTargets(client, namespace).List(ctx, metav1.ListOptions{})
	l := Leads{err, map[types.NamespacedName]*v1alpha1.SyncTarget{}}
	for _, t := range list {
		l.targets[types.NamespacedName{Namespace: t.Namespace, Name: t.Name}] = t
	}
	for _, u := range undecodable { // of another version: the age of the status decides
		l.targets[types.NamespacedName{Namespace: u.Namespace, Name: u.Name}] = nil
	}
	return l
}

// Target returns the SyncTarget of gs: an empty one if there is none, nil if it is unknown.
func (l Leads) Target(gs *v1alpha1.GatewaySync) *v1alpha1.SyncTarget {
	t, ok := l.targets[types.NamespacedName{Namespace: gs.Namespace, Name: gs.Name}]
	if l.Err == nil && !ok {
		return &v1alpha1.SyncTarget{}
	}
	return t
}
