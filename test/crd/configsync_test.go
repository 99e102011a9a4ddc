package crd

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"

	"stoker.io/stoker/api/v1alpha1/decode"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/test/verdicts"
)

// F4, F5, C2: the CRD of the ConfigSync is accepted, and gives the verdicts of the Go validation.
func TestConfigSyncMatchesGoValidation(t *testing.T) {
	crd, _ := load(t, "configsyncs")
	require.Empty(t, crdvalidation.ValidateCustomResourceDefinition(context.Background(), crd))
	assert.Equal(t, []string{"csync"}, crd.Spec.Names.ShortNames)
	assert.Equal(t, apiextensions.NamespaceScoped, crd.Spec.Scope)
	server := newServerOf(t, "configsyncs")
	for _, c := range verdicts.ConfigSyncs() {
		t.Run(c.Name, func(t *testing.T) {
			object := asJSON(t, c.Object())
			refused := server.admit(object)
			data, err := json.Marshal(object)
			require.NoError(t, err)
			cs, err := decode.ConfigSync(data)
			require.NoError(t, err)
			if c.Refused == "" {
				assert.Empty(t, refused)
				assert.Empty(t, validation.ConfigSync(cs))
				return
			}
			assert.NotEmpty(t, refused)
			assert.NotEmpty(t, validation.ConfigSync(cs))
		})
	}
}

// The defaults exist both as markers and as code.
func TestConfigSyncDefaultsMatchCode(t *testing.T) {
	c := verdicts.Case{Kind: "ConfigSync"}
	inForce := func(object map[string]any) map[string]any {
		data, err := json.Marshal(object)
		require.NoError(t, err)
		cs, err := decode.ConfigSync(data)
		require.NoError(t, err)
		deadline, err := effective.ConfigProgressDeadline(&cs.Spec)
		require.NoError(t, err)
		refresh, err := effective.RefreshInterval(&cs.Spec)
		require.NoError(t, err)
		path, _ := cs.Spec.Source.Paths()
		return map[string]any{"deadline": deadline, "refresh": refresh, "account": cs.Spec.Account(), "path": path, "waits": cs.Spec.Apply.Waits(), "ref": cs.Spec.Source.Git.Ref()}
	}
	bare := inForce(asJSON(t, c.Object()))
	object := asJSON(t, c.Object())
	require.Empty(t, newServerOf(t, "configsyncs").admit(object))
	assert.Equal(t, bare, inForce(object))
	assert.Contains(t, object["spec"], "prune", "admit must have added the defaults")
}
