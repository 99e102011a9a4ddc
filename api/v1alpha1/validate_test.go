package v1alpha1_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/verdicts"
)

// F4, F5: hostile paths, URLs and refs are refused before anything is done with them. test/crd holds the CRD to the same
// table.
func TestValidateFollowsTheTable(t *testing.T) {
	for _, c := range verdicts.Table() {
		t.Run(c.Name, func(t *testing.T) {
			gs, err := v1alpha1.FromUnstructured(c.Object())
			if c.Undecodable {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			errs := v1alpha1.Validate(gs)
			if c.Refused == "" {
				assert.Empty(t, errs)
				return
			}
			var fields []string
			for _, e := range errs {
				fields = append(fields, e.Field)
				assert.NotEmpty(t, e.Error())
				assert.LessOrEqual(t, len(e.Error()), 6000)
			}
			assert.Contains(t, fields, c.Refused)
		})
	}
}

// C7: the URL of the repository may carry a password.
func TestNoMessageShowsTheRepository(t *testing.T) {
	gs := smallest()
	gs.Spec.Git.Repo = "ftp://user:S3CR3T-1@host/a b"
	assert.Contains(t, v1alpha1.Validate(gs).ToAggregate().Error(), "spec.git.repo")
	assert.NotContains(t, v1alpha1.Validate(gs).ToAggregate().Error(), "S3CR3T")
	gs.Spec.Git.Repo = "http://user:S3CR3T-1@host/a"
	warnings := v1alpha1.Warnings(gs)
	assert.Len(t, warnings, 3, "not encrypted, a password, no API token")
	for _, w := range warnings {
		assert.NotContains(t, w, "S3CR3T")
	}
}

func TestWarningsNameWhatIsNotChecked(t *testing.T) {
	gs := smallest()
	gs.Spec.Gateway.API = &v1alpha1.GatewayAPI{SecretName: "a"}
	assert.Empty(t, v1alpha1.Warnings(gs))
	gs.Spec.Git.Repo = "ssh://git@host/a"
	gs.Spec.Git.Auth = &v1alpha1.GitAuth{SSHKey: &v1alpha1.SSHKeyAuth{InsecureIgnoreHostKey: true}}
	gs.Spec.Gateway.TLSConfig = &v1alpha1.GatewayTLSConfig{InsecureSkipVerify: true}
	warnings := v1alpha1.Warnings(gs)
	require.Len(t, warnings, 2)
	assert.Contains(t, warnings[0], "insecureIgnoreHostKey")
	assert.Contains(t, warnings[1], "insecureSkipVerify")
}

func smallest() *v1alpha1.GatewaySync {
	gs := &v1alpha1.GatewaySync{}
	gs.Name = "plant"
	gs.Spec.Git.Repo = "https://git.example.com/plant.git"
	gs.Spec.Git.Ref = "main"
	return gs
}
