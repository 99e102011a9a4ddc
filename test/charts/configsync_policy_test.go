package charts

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// C5: a setter may patch ConfigSyncs, and not update them. So the policy stoker-gatewaysyncs, which is also about ConfigSyncs, lets it
// change annotations stoker.io/… only: requests and pauses. stoker config run may not update ConfigSyncs either, but must set their
// finalizer. Its right to update configsyncs/finalizers exempts it from the policy.
func TestConfigSyncRequestRights(t *testing.T) {
	t.Parallel()
	p := policed(t)
	_, err := p.as(t, p.RESTConfig(), "configsyncs").Create(t.Context(), parseOne(t, `
apiVersion: stoker.io/v1alpha1
kind: ConfigSync
metadata: {name: plant, annotations: {note: theirs}}
spec: {source: {git: {repoURL: "https://git.example.com/plant.git"}}}`), metav1.CreateOptions{})
	require.NoError(t, err)
	p.rightsOf(t, "configsync", with(set("configSync.enabled", true), set("configSync.namespaces", []any{p.namespace})))
	const finalizer = `{"metadata":{"finalizers":["stoker.io/configsync"]}}`
	dry := metav1.PatchOptions{FieldManager: "stoker-request", DryRun: []string{metav1.DryRunAll}}
	try := func(in, who, patch string) error {
		_, err := p.as(t, p.As(t, in, who, ""), "configsyncs").Patch(t.Context(), "plant", types.MergePatchType, []byte(patch), dry)
		return err
	}
	const annotations = `{"metadata":{"annotations":{"stoker.io/requested-ref":"v2","stoker.io/requested-over":"v2@HEAD","stoker.io/paused":"true"}}}`
	require.NoError(t, try(p.namespace, "setter", annotations))
	for _, patch := range []string{
		`{"spec":{"serviceAccountName":"other"}}`, `{"spec":{"source":{"git":{"branch":"main"}}}}`, `{"metadata":{"annotations":{"note":"mine"}}}`,
		`{"metadata":{"labels":{"a":"b"}}}`, finalizer,
	} {
		denied(t, try(p.namespace, "setter", patch), "stoker-gatewaysyncs", "may patch ConfigSyncs and not update them")
		assert.NoError(t, try(p.namespace, "editor", patch), patch)
	}
	for _, patch := range []string{annotations, finalizer} {
		assert.NoError(t, try(namespace, "stoker-configsync", patch), patch)
	}
}
