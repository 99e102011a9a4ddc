package v1alpha1_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/verdicts"
)

// F4, F5: hostile paths, URLs and refs are refused before any use. test/crd checks the CRD against the same table.
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
				assert.LessOrEqual(t, len(e.Error()), 600)
			}
			assert.Contains(t, fields, c.Refused)
		})
	}
}

// F4, F5: as above, for ConfigSyncs.
func TestValidateConfigSync(t *testing.T) {
	for _, c := range verdicts.ConfigSyncs() {
		t.Run(c.Name, func(t *testing.T) {
			data, err := json.Marshal(c.Object())
			require.NoError(t, err)
			cs, err := v1alpha1.DecodeConfigSync(data)
			require.NoError(t, err)
			errs := v1alpha1.ValidateConfigSync(cs)
			if c.Refused == "" {
				assert.Empty(t, errs)
				return
			}
			var fields []string
			for _, e := range errs {
				fields = append(fields, e.Field)
				assert.LessOrEqual(t, len(e.Error()), 600)
			}
			assert.Contains(t, fields, c.Refused)
		})
	}
}

// C7: the URL of the repository may contain a password.
func TestNoMessageShowsTheRepository(t *testing.T) {
	gs := smallest()
	gs.Spec.Git.Repo = "ftp://user:S3CR3T-1@host/a b"
	assert.Contains(t, v1alpha1.Validate(gs).ToAggregate().Error(), "spec.git.repo")
	assert.NotContains(t, v1alpha1.Validate(gs).ToAggregate().Error(), "S3CR3T")
	gs.Spec.Git.Auth = &v1alpha1.GitAuth{GitHubApp: &v1alpha1.GitHubAppAuth{APIBaseURL: "ftp://user:S3CR3T-2@host"}}
	assert.Contains(t, v1alpha1.Validate(gs).ToAggregate().Error(), "apiBaseURL")
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
	gs.Spec.Bidirectional = &v1alpha1.BidirectionalSpec{Auth: &v1alpha1.ProposalAuth{SSHKey: &v1alpha1.SSHKeyAuth{InsecureIgnoreHostKey: true}}}
	gs.Spec.Gateway.TLSConfig = &v1alpha1.GatewayTLSConfig{InsecureSkipVerify: true}
	warnings := v1alpha1.Warnings(gs)
	require.Len(t, warnings, 3)
	assert.Contains(t, warnings[0], "spec.git.auth.sshKey.insecureIgnoreHostKey")
	assert.Contains(t, warnings[1], "spec.bidirectional.auth.sshKey.insecureIgnoreHostKey")
	assert.Contains(t, warnings[2], "insecureSkipVerify")
}

func smallest() *v1alpha1.GatewaySync {
	gs := &v1alpha1.GatewaySync{}
	gs.Name = "plant"
	gs.Spec.Git.Repo = "https://git.example.com/plant.git"
	gs.Spec.Git.Ref = "main"
	return gs
}

// An object that no API server has validated may contain anything. Messages about it appear in a status and a log, so they must be
// short.
func TestMessagesAreShortWhateverTheObjectHolds(t *testing.T) {
	long := strings.Repeat("/ä", 1<<19)
	gs := smallest()
	gs.Name, gs.Spec.Git.Ref, gs.Spec.Polling.Interval = long, long, long
	gs.Spec.Git.AllowedRefs = []string{long}
	gs.Spec.Agent.Image.PullPolicy = "maybe"
	gs.Spec.Sync.Defaults.Prune = v1alpha1.Prune(long)
	gs.Spec.Sync.Defaults.Vars = map[string]v1alpha1.VarValue{long: v1alpha1.VarValue(long)}
	gs.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{long: {Mappings: []v1alpha1.Mapping{{
		Source: long, Destination: long, Type: v1alpha1.MappingType(long),
		Patches: []v1alpha1.Patch{{File: long, Set: map[string]v1alpha1.PatchValue{long: v1alpha1.PatchValue(long)}}}}}}}
	errs := v1alpha1.Validate(gs)
	assert.Greater(t, len(errs), 10)
	for _, e := range errs {
		assert.Less(t, len(e.Error()), 700)
	}
	_, err := gs.Effective(long, nil)
	require.Error(t, err)
	assert.Less(t, len(err.Error()), 1000)
}

// F26: the identity of a pod goes to hosts of its cloud only.
func TestIdentityOfThePodGoesToItsCloud(t *testing.T) {
	own := &v1alpha1.SecretKeyRef{Name: "a", Key: "b"}
	for _, c := range []struct {
		name    string
		storage v1alpha1.SnapshotStorage
		want    string
	}{
		{"Google", v1alpha1.SnapshotStorage{Type: v1alpha1.StorageGCS, GCS: &v1alpha1.GCSStorage{Bucket: "abc", Endpoint: "storage.googleapis.com"}}, ""},
		{"Google without TLS", v1alpha1.SnapshotStorage{Type: v1alpha1.StorageGCS, GCS: &v1alpha1.GCSStorage{Bucket: "abc", Endpoint: "http://storage.googleapis.com"}}, "gcs.endpoint"},
		{"a server of the editor", v1alpha1.SnapshotStorage{Type: v1alpha1.StorageGCS, GCS: &v1alpha1.GCSStorage{Bucket: "abc", Endpoint: "evil.example.com"}}, "gcs.endpoint"},
		{"a server of the editor with a Secret", v1alpha1.SnapshotStorage{Type: v1alpha1.StorageGCS, GCS: &v1alpha1.GCSStorage{Bucket: "abc", Endpoint: "evil.example.com", SecretRef: own}}, ""},
		{"Azure", v1alpha1.SnapshotStorage{Type: v1alpha1.StorageAzure, Azure: &v1alpha1.AzureStorage{Account: "abc", Container: "abc", Endpoint: "abc.blob.core.windows.net"}}, ""},
		{"a server like Azure", v1alpha1.SnapshotStorage{Type: v1alpha1.StorageAzure, Azure: &v1alpha1.AzureStorage{Account: "abc", Container: "abc", Endpoint: "abc.blob.core.windows.net.example.com"}}, "azure.endpoint"},
	} {
		t.Run(c.name, func(t *testing.T) {
			gs := smallest()
			gs.Spec.Snapshots = &v1alpha1.SnapshotsSpec{Storage: &c.storage}
			errs := v1alpha1.Validate(gs)
			if c.want == "" {
				assert.Empty(t, errs)
				return
			}
			require.Len(t, errs, 1)
			assert.Equal(t, "spec.snapshots.storage."+c.want, errs[0].Field)
			assert.Contains(t, errs[0].Detail, "other servers do not get the identity of the pod")
		})
	}
}
