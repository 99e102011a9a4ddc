package charts

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
)

const handedDown = "0123456789012345678901234567890123456789" // a commit that looks like a number

// handed checks what both ways of passing a revision have in common. The GatewaySync names the revision, a
// Job checks the same one first, and the pods of the gateways do not change with it.
func handed(t *testing.T, render func(revision string) objects) {
	t.Helper()
	found := render(handedDown)
	gs := found["GatewaySync/line"]
	require.NotNil(t, gs)
	ref, _ := at(gs.Object, "spec/git/ref")
	assert.Equal(t, handedDown, ref)
	require.NotNil(t, found["ConfigMap/stoker-preflight"])
	manifest, _ := at(found["ConfigMap/stoker-preflight"].Object, "data/gatewaysync.yaml")
	assert.Contains(t, manifest, "kind: GatewaySync")
	for _, job := range []string{"Job/stoker-preflight", "Job/stoker-wait"} {
		assert.Contains(t, found, job)
	}
	before, err := render("main")["StatefulSet/line"].MarshalJSON()
	require.NoError(t, err)
	after, err := found["StatefulSet/line"].MarshalJSON()
	require.NoError(t, err)
	assert.Equal(t, string(before), strings.ReplaceAll(string(after), handedDown, "main"))
	for _, path := range []string{"spec/template", "spec/volumeClaimTemplates"} {
		inside, _ := at(found["StatefulSet/line"].Object, path)
		assert.NotContains(t, mustJSON(t, inside), handedDown, "%s: each commit would restart the gateways", path)
	}
}

func TestHelmExampleRevision(t *testing.T) {
	t.Parallel()
	handed(t, func(revision string) objects { return helmExample(t, values{"revision": revision}) })
}

func helmExample(t *testing.T, given values) objects {
	t.Helper()
	c, err := loader.Load(filepath.Join(root, "examples", "argocd", "helm"))
	require.NoError(t, err)
	install := action.NewInstall(&action.Configuration{Capabilities: chartutil.DefaultCapabilities})
	install.DryRun, install.ClientOnly, install.ReleaseName, install.Namespace = true, true, "line", "plant"
	made, err := install.Run(c, given)
	require.NoError(t, err)
	// The API server generates the name of one Job.
	return parse(t, []byte(strings.ReplaceAll(made.Manifest, "generateName: stoker-rollback-", "name: stoker-rollback")))
}

// A private git server and a cluster without a default StorageClass need additional values. They must
// reach every object that uses them.
func TestHelmExampleValues(t *testing.T) {
	t.Parallel()
	const (
		class  = "spec/volumeClaimTemplates/0/spec/storageClassName"
		mounts = "spec/template/spec/containers/0/volumeMounts"
	)
	plain := helmExample(t, values{})
	assert.NotContains(t, mustJSON(t, plain["GatewaySync/line"].Object), "caSecretRef")
	is, _ := at(plain["StatefulSet/line"].Object, class)
	assert.Nil(t, is, "the storage class must not be set")
	assert.NotContains(t, mustJSON(t, plain["Job/stoker-preflight"].Object), "git-ca")

	found := helmExample(t, values{"caSecretRef": values{"name": "plant-ca", "key": "tls.crt"}, "storageClassName": "fast", "storage": "9Gi"})
	ref, _ := at(found["GatewaySync/line"].Object, "spec/git/caSecretRef")
	assert.Equal(t, values{"name": "plant-ca", "key": "tls.crt"}, ref)
	before, _ := at(found["ConfigMap/stoker-preflight"].Object, "data/gatewaysync.yaml")
	assert.Contains(t, before, "name: plant-ca", "the checked GatewaySync must be the applied one")
	is, _ = at(found["StatefulSet/line"].Object, class)
	assert.Equal(t, "fast", is)
	size, _ := at(found["StatefulSet/line"].Object, "spec/volumeClaimTemplates/0/spec/resources/requests/storage")
	assert.Equal(t, "9Gi", size)
	mounted, _ := at(found["Job/stoker-preflight"].Object, mounts)
	assert.Contains(t, mounted, values{"name": "git-ca", "mountPath": "/secrets/plant-ca", "readOnly": true}, "the Job must mount the authority")
	volumes, _ := at(found["Job/stoker-preflight"].Object, "spec/template/spec/volumes")
	assert.Contains(t, volumes, values{"name": "git-ca", "secret": values{"secretName": "plant-ca", "optional": true}})
}

func TestKustomizeExampleRevision(t *testing.T) {
	t.Parallel()
	handed(t, func(revision string) objects {
		dir := t.TempDir()
		copyFiles(t, filepath.Join(root, "examples", "argocd", "kustomize"), dir, func(string) bool { return true })
		// The same edit as Argo CD makes with kustomize edit add annotation.
		file := filepath.Join(dir, "kustomization.yaml")
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		text = append(bytes.TrimSpace(text), "\ncommonAnnotations:\n  example.com/revision: \""+revision+"\"\n"...)
		require.NoError(t, os.WriteFile(file, text, 0o644))
		found := objects{}
		for name, o := range kustomized(t, dir) {
			found[strings.Replace(name, "plant/", "", 1)] = o
		}
		return found
	})
}
