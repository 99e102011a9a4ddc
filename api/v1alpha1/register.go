// +groupName=stoker.io
// +kubebuilder:object:generate=true

// Package v1alpha1 is the API of Stoker, group stoker.io: the GatewaySync and the ConfigSync that people write, the SyncTarget and the
// SyncReports by which agents talk to each other, what follows from a GatewaySync without asking anybody (the desired ref,
// the identity of a gateway, the effective settings of a profile, validation), and the closed list of reasons. It imports
// no other package of Stoker and does no I/O.
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

//go:generate go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0 object crd:headerFile=crd-header.yaml paths=. output:crd:dir=../../charts/stoker/files/crds
//go:generate go run ../internal/reference ../../docs/reference/gatewaysync.md
//go:generate go run ../internal/reference ../../docs/reference/configsync.md

// Kind is the kind of the one object that people write.
const Kind = "GatewaySync"

// GroupVersion is the group and version of this package's kinds.
var GroupVersion = schema.GroupVersion{Group: "stoker.io", Version: "v1alpha1"}

var schemeBuilder = runtime.NewSchemeBuilder(func(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &GatewaySync{}, &GatewaySyncList{}, &SyncTarget{}, &SyncTargetList{}, &SyncReport{}, &SyncReportList{},
		&ConfigSync{}, &ConfigSyncList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
})

// AddToScheme makes the kinds of this package known to a scheme.
func AddToScheme(scheme *runtime.Scheme) error { return schemeBuilder.AddToScheme(scheme) }

// Resource returns the group and resource for a plural name, as errors of the API server name it.
func Resource(plural string) schema.GroupResource {
	return GroupVersion.WithResource(plural).GroupResource()
}
