package validation_test

import (
	"encoding/json"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/decode"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/test/verdicts"
)

// F4, F5: hostile paths, URLs and refs are refused before any use. test/crd checks the CRD against the same table.
func TestValidateGatewaySync(t *testing.T) {
	for _, c := range verdicts.Table() {
		t.Run(c.Name, func(t *testing.T) {
			gs, err := decode.Unstructured(c.Object())
			if c.Undecodable {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			requireVerdict(t, &c, validation.GatewaySync(gs))
		})
	}
}

func requireVerdict(t *testing.T, c *verdicts.Case, errs field.ErrorList) {
	t.Helper()
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
}

// F4, F5: as above, for ConfigSyncs.
func TestValidateConfigSync(t *testing.T) {
	for _, c := range verdicts.ConfigSyncs() {
		t.Run(c.Name, func(t *testing.T) {
			data, err := json.Marshal(c.Object())
			require.NoError(t, err)
			cs, err := decode.ConfigSync(data)
			require.NoError(t, err)
			requireVerdict(t, &c, validation.ConfigSync(cs))
		})
	}
}

// C7: the URL of the repository may contain a password.
func TestMessagesHideRepository(t *testing.T) {
	gs := verdicts.Smallest()
	gs.Spec.Git.Repo = "ftp://user:S3CR3T-1@host/a b"
	assert.Contains(t, validation.GatewaySync(gs).ToAggregate().Error(), "spec.git.repo")
	assert.NotContains(t, validation.GatewaySync(gs).ToAggregate().Error(), "S3CR3T")
	gs.Spec.Git.Auth = &v1alpha1.Credential{GitHubApp: &v1alpha1.GitHubAppAuth{APIBaseURL: "ftp://user:S3CR3T-2@host"}}
	assert.Contains(t, validation.GatewaySync(gs).ToAggregate().Error(), "apiBaseURL")
	assert.NotContains(t, validation.GatewaySync(gs).ToAggregate().Error(), "S3CR3T")
	gs.Spec.Git.Repo = "http://user:S3CR3T-1@host/a"
	warnings := validation.Warnings(gs)
	assert.Len(t, warnings, 3, "expected warnings: no TLS, password in the address, no API key")
	for _, w := range warnings {
		assert.NotContains(t, w, "S3CR3T")
	}
}

func TestInsecureSettingWarnings(t *testing.T) {
	gs := verdicts.Smallest()
	gs.Spec.Gateway.API = &v1alpha1.GatewayAPI{SecretName: "a"}
	assert.Empty(t, validation.Warnings(gs))
	gs.Spec.Git.Repo = "ssh://git@host/a"
	gs.Spec.Git.Auth = &v1alpha1.Credential{SSHKey: &v1alpha1.SSHKeyAuth{InsecureIgnoreHostKey: true}}
	gs.Spec.Bidirectional = &v1alpha1.BidirectionalSpec{Auth: &v1alpha1.Credential{SSHKey: &v1alpha1.SSHKeyAuth{InsecureIgnoreHostKey: true}}}
	gs.Spec.Gateway.TLSConfig = &v1alpha1.GatewayTLSConfig{InsecureSkipVerify: true}
	warnings := validation.Warnings(gs)
	require.Len(t, warnings, 3)
	assert.Contains(t, warnings[0], "spec.git.auth.sshKey.insecureIgnoreHostKey")
	assert.Contains(t, warnings[1], "spec.bidirectional.auth.sshKey.insecureIgnoreHostKey")
	assert.Contains(t, warnings[2], "insecureSkipVerify")
}

// An object that no API server has validated may contain anything. Messages about it appear in a status and a log, so they must be
// short.
func TestMessageLength(t *testing.T) {
	long := strings.Repeat("/ä", 1<<19)
	gs := verdicts.Smallest()
	gs.Name, gs.Spec.Git.Ref, gs.Spec.Polling.Interval = long, long, long
	gs.Spec.Git.AllowedRefs = []string{long}
	gs.Spec.Agent.Image.PullPolicy = "maybe"
	gs.Spec.Sync.Defaults.Prune = v1alpha1.Prune(long)
	gs.Spec.Sync.Defaults.Vars = map[string]v1alpha1.VarValue{long: v1alpha1.VarValue(long)}
	gs.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{long: {Mappings: []v1alpha1.Mapping{{
		Source: long, Destination: long, Type: v1alpha1.MappingType(long),
		Patches: []v1alpha1.Patch{{File: long, Set: map[string]v1alpha1.PatchValue{long: v1alpha1.PatchValue(long)}}}}}}}
	gs.Spec.Deployment = &v1alpha1.DeploymentSpec{
		Stages:    []v1alpha1.Stage{{Name: long, Gateways: []string{long}}, {Name: long, Gateways: []string{long}}},
		SyncOrder: []v1alpha1.SyncOrderEntry{{Name: long}, {Name: long}},
		Windows:   []v1alpha1.MaintenanceWindow{{Name: long, Schedule: long, Duration: long, TimeZone: long}, {Name: long}},
	}
	errs := validation.GatewaySync(gs)
	assert.Greater(t, len(errs), 10)
	for _, e := range errs {
		assert.Less(t, len(e.Error()), 700)
	}
	_, err := effective.Of(gs, long, nil)
	require.Error(t, err)
	assert.Less(t, len(err.Error()), 1000)
}

// F26: the identity of a pod goes to hosts of its cloud only. The table of test/verdicts has the hosts, and the errors say why.
func TestStorageAdvice(t *testing.T) {
	for name, c := range map[string]struct {
		storage v1alpha1.SnapshotStorage
		want    string
	}{
		"bucket of S3":            {v1alpha1.SnapshotStorage{Type: v1alpha1.StorageS3, Bucket: "ab"}, "3 to 63 "},
		"bucket of GCS":           {v1alpha1.SnapshotStorage{Type: v1alpha1.StorageGCS, Bucket: "ab"}, "3 to 222 "},
		"container of Azure":      {v1alpha1.SnapshotStorage{Type: v1alpha1.StorageAzure, Account: "abc", Bucket: "ab"}, "3 to 63 "},
		"server without a Secret": {v1alpha1.SnapshotStorage{Type: v1alpha1.StorageGCS, Bucket: "abc", Endpoint: "evil.example.com"}, "other servers do not get the identity of the pod"},
	} {
		t.Run(name, func(t *testing.T) {
			gs := verdicts.Smallest()
			gs.Spec.Snapshots = &v1alpha1.SnapshotsSpec{Storage: &c.storage}
			assert.ErrorContains(t, validation.GatewaySync(gs).ToAggregate(), c.want)
		})
	}
}

// C7: the URL of the API may contain a password.
func TestMessagesHideForgeAPI(t *testing.T) {
	gs := verdicts.Smallest()
	gs.Spec.Bidirectional = &v1alpha1.BidirectionalSpec{APIBaseURL: "ftp://user:S3CR3T@host"}
	err := validation.GatewaySync(gs).ToAggregate()
	require.ErrorContains(t, err, "spec.bidirectional.apiBaseURL")
	assert.NotContains(t, err.Error(), "S3CR3T")
}

// F4: a path that passes validation stays below its root.
func FuzzMappingPath(f *testing.F) {
	for _, p := range []string{"", ".", "./a/", "a/b c", "..a/...", "../a", "a/../b", "/a", "a//b", `a\..\b`, "a\x00b", "{{.x}}/../a", "./../a", "./", ".//a"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p string) {
		gs := verdicts.Smallest()
		gs.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{"default": {Mappings: []v1alpha1.Mapping{{
			Source: p, Destination: p, Patches: []v1alpha1.Patch{{File: p, Set: map[string]v1alpha1.PatchValue{"a": v1alpha1.PatchValue(p)}}}}}}}
		var refused []string
		for _, e := range validation.GatewaySync(gs) {
			refused = append(refused, e.Field)
		}
		mapping := field.NewPath("spec", "sync", "profiles").Key("default").Child("mappings").Index(0)
		for _, name := range []string{"source", "destination"} {
			if !slices.Contains(refused, mapping.Child(name).String()) {
				assertLocal(t, p)
			}
		}
		if p != "" && !slices.Contains(refused, mapping.Child("patches").Index(0).Child("file").String()) {
			assertLocal(t, p)
		}
	})
}

func assertLocal(t *testing.T, p string) {
	t.Helper()
	assert.True(t, filepath.IsLocal(p), "%q", p)
	root := "/data"
	joined := path.Join(root, p)
	assert.True(t, joined == root || strings.HasPrefix(joined, root+"/"), "%q", p)
}

func TestLengthInCharacters(t *testing.T) {
	longest, tooLong := strings.Repeat("ä", 4096), strings.Repeat("ä", 4097)
	for name, c := range map[string]struct {
		profile v1alpha1.SyncProfile
		want    string
	}{
		"variable":         {v1alpha1.SyncProfile{SyncSettings: v1alpha1.SyncSettings{Vars: map[string]v1alpha1.VarValue{"a": v1alpha1.VarValue(longest)}}}, ""},
		"long variable":    {v1alpha1.SyncProfile{SyncSettings: v1alpha1.SyncSettings{Vars: map[string]v1alpha1.VarValue{"a": v1alpha1.VarValue(tooLong)}}}, "may not be more than 4096 characters"},
		"patch value":      {patchOf("a", longest), ""},
		"long patch value": {patchOf("a", tooLong), "may not be more than 4096 characters"},
		"patch key":        {patchOf(strings.Repeat("ä", 512), "x"), ""},
		"long patch key":   {patchOf(strings.Repeat("ä", 513), "x"), "may not be more than 512 characters"},
	} {
		t.Run(name, func(t *testing.T) {
			gs := verdicts.Smallest()
			if c.profile.Mappings == nil {
				c.profile.Mappings = []v1alpha1.Mapping{{Source: "a", Destination: "a"}}
			}
			gs.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{"p": c.profile}
			errs := validation.GatewaySync(gs)
			if c.want == "" {
				assert.Empty(t, errs)
				return
			}
			require.Len(t, errs, 1)
			assert.Equal(t, field.ErrorTypeTooLong, errs[0].Type)
			assert.Equal(t, c.want, errs[0].Detail)
		})
	}
}

// patchOf returns a profile that sets one value of a file.
func patchOf(key, value string) v1alpha1.SyncProfile {
	return v1alpha1.SyncProfile{Mappings: []v1alpha1.Mapping{{Source: "a", Destination: "a", Type: v1alpha1.MappingDir,
		Patches: []v1alpha1.Patch{{File: "x.json", Set: map[string]v1alpha1.PatchValue{key: v1alpha1.PatchValue(value)}}}}}}
}

func TestErrorOrder(t *testing.T) {
	gs := verdicts.Smallest()
	gs.Spec.Alerting = &v1alpha1.AlertingSpec{Webhooks: []v1alpha1.AlertWebhook{{
		Type: v1alpha1.AlertWebhookCE, URLSecretRef: &v1alpha1.SecretKeyRef{}, SigningSecretRef: &v1alpha1.SecretKeyRef{}}}}
	cs := &v1alpha1.ConfigSync{}
	cs.Name = "plant"
	cs.Spec.Source.Git = &v1alpha1.ConfigGit{RepoURL: "https://git.example.com/plant.git", Branch: "-x", Revision: "-y"}
	first, firstConfig := validation.GatewaySync(gs).ToAggregate().Error(), validation.ConfigSync(cs).ToAggregate().Error()
	for range 30 { // sequence: the order of a map differs from call to call
		require.Equal(t, first, validation.GatewaySync(gs).ToAggregate().Error())
		require.Equal(t, firstConfig, validation.ConfigSync(cs).ToAggregate().Error())
	}
}

func TestSnapshotsValidation(t *testing.T) {
	for name, tt := range map[string]struct {
		snapshots v1alpha1.SnapshotsSpec
		restore   string
		says      string
	}{
		"valid":              {v1alpha1.SnapshotsSpec{Enabled: true, RetentionCount: 100, MaxSize: "512Mi"}, "area-4-20260212-102000.tar.gz", ""},
		"too many snapshots": {v1alpha1.SnapshotsSpec{RetentionCount: 101}, "", "spec.snapshots.retentionCount"},
		"unknown unit":       {v1alpha1.SnapshotsSpec{MaxSize: "1TB"}, "", "spec.snapshots.maxSize"},
		"not an id":          {v1alpha1.SnapshotsSpec{}, "../../etc", "spec.rollback.toSnapshot"},
	} {
		t.Run(name, func(t *testing.T) {
			gs := &v1alpha1.GatewaySync{Spec: v1alpha1.GatewaySyncSpec{Git: v1alpha1.GitSpec{Repo: "https://git.example.com/plant.git", Ref: "main"},
				Snapshots: &tt.snapshots, Rollback: &v1alpha1.RollbackSpec{ToSnapshot: tt.restore}}}
			gs.Name, gs.Namespace = "plant", "line"
			err := validation.GatewaySync(gs).ToAggregate()
			if tt.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.says)
		})
	}
}
