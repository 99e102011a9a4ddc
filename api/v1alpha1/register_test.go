package v1alpha1_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"

	"stoker.io/stoker/api/v1alpha1"
)

func TestSchemeRoundTrip(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	codec := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{})
	gs := smallest()
	gs.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{"area": {Mappings: []v1alpha1.Mapping{{Source: ".", Destination: "./config", Type: v1alpha1.MappingDir}}}}
	gs.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.KindGatewaySync))
	written, err := runtime.Encode(codec, gs)
	require.NoError(t, err)
	read, err := runtime.Decode(codec, written)
	require.NoError(t, err)
	assert.Equal(t, gs, read)
	assert.Equal(t, "gatewaysyncs.stoker.io", v1alpha1.Resource("gatewaysyncs").String())

	list, err := scheme.New(v1alpha1.GroupVersion.WithKind(v1alpha1.KindGatewaySync + "List"))
	require.NoError(t, err)
	assert.IsType(t, &v1alpha1.GatewaySyncList{}, list)
}

func smallest() *v1alpha1.GatewaySync {
	gs := &v1alpha1.GatewaySync{}
	gs.Name = "plant"
	gs.Spec.Git.Repo = "https://git.example.com/plant.git"
	gs.Spec.Git.Ref = "main"
	return gs
}
