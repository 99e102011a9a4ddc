// +groupName=stoker.io
// +kubebuilder:object:generate=true

// Package v1alpha1 is the API of Stoker, group stoker.io: GatewaySync and ConfigSync, which users write; SyncTarget and SyncReport, by which
// agents communicate; the annotations of objects and pods; and the closed list of reasons. The packages below it validate
// objects, and compute defaults and decisions from them. This package imports no other package of Stoker and does no I/O.
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

//go:generate go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0 object crd:headerFile=crd-header.yaml paths=. output:crd:dir=../../charts/stoker/files/crds
//go:generate go run ../internal/reference ../../docs/reference/gatewaysync.md
//go:generate go run ../internal/reference ../../docs/reference/configsync.md

// KindGatewaySync is the kind of the object that says what gateways run.
const KindGatewaySync = "GatewaySync"

// GroupVersion is the group and version of this package's kinds.
var GroupVersion = schema.GroupVersion{Group: "stoker.io", Version: "v1alpha1"}

var schemeBuilder = runtime.NewSchemeBuilder(func(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &GatewaySync{}, &GatewaySyncList{}, &SyncTarget{}, &SyncTargetList{}, &SyncReport{}, &SyncReportList{},
		&ConfigSync{}, &ConfigSyncList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
})

// AddToScheme adds the kinds of this package to a scheme.
func AddToScheme(scheme *runtime.Scheme) error { return schemeBuilder.AddToScheme(scheme) }

// Resource returns the group and resource of a plural name, for errors of the API server.
func Resource(plural string) schema.GroupResource {
	return GroupVersion.WithResource(plural).GroupResource()
}
