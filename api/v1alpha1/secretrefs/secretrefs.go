// Package secretrefs lists the Secrets that the spec of a GatewaySync names.
package secretrefs

import (
	"iter"

	"stoker.io/stoker/api/v1alpha1"
)

// Field is the path of a field of the spec that names a key of a Secret or ConfigMap.
type Field string

// The fields, except those of object storage, which have the names of their types.
const (
	GatewayAPI       Field = "spec.gateway.api"
	GatewayCA        Field = "spec.gateway.tlsConfig.caSecretRef"
	GitHubApp        Field = "spec.git.auth.githubApp"
	GitSSHKey        Field = "spec.git.auth.sshKey"
	GitKnownHosts    Field = "spec.git.auth.sshKey.knownHosts"
	GitToken         Field = "spec.git.auth.token"
	GitCA            Field = "spec.git.caSecretRef"
	GitKeys          Field = "spec.git.verify.keysSecretRef"
	GitKeysConfigMap Field = "spec.git.verify.keysConfigMapRef"

	Validation   Field = "spec.validation.webhook.secretRef"
	ValidationCA Field = "spec.validation.webhook.caSecretRef"

	ProposalApp        Field = "spec.bidirectional.auth.githubApp"
	ProposalSSHKey     Field = "spec.bidirectional.auth.sshKey"
	ProposalKnownHosts Field = "spec.bidirectional.auth.sshKey.knownHosts"
	ProposalToken      Field = "spec.bidirectional.auth.token"
	ProposalSigning    Field = "spec.bidirectional.signing"
)

// Kind returns the kind of object that the field names.
func (f Field) Kind() string {
	if f == GitKeysConfigMap {
		return "ConfigMap"
	}
	return "Secret"
}

// Folder returns the name of the folder in which a pod mounts the keys of the object that the field names. The folder of a ConfigMap has
// a name that no Secret can have.
func (f Field) Folder(name string) string {
	if f == GitKeysConfigMap {
		return "configmap_" + name
	}
	return name
}

// FileVariables are the environment variables with the file of a secret, for pods that do not mount it in its folder.
var FileVariables = map[Field]string{
	GatewayAPI: "API_KEY_FILE", GitSSHKey: "GIT_SSH_KEY_FILE", GitKnownHosts: "GIT_KNOWN_HOSTS_FILE",
	GitToken: "GIT_TOKEN_FILE", GitCA: "GIT_CA_FILE",
}

// ForSync yields the secrets that an agent needs, and a ConfigMap that it reads like one. The secret of spec.webhook is not among them,
// because only the receiver reads it.
func ForSync(s *v1alpha1.GatewaySyncSpec) iter.Seq2[Field, v1alpha1.SecretKeyRef] {
	uses := []use{{GatewayAPI, s.Gateway.APIKey()}}
	if t := s.Gateway.TLSConfig; t != nil {
		uses = append(uses, use{GatewayCA, t.CASecretRef})
	}
	if a := s.Git.Auth; a != nil {
		uses = append(uses, credentials(a.GitHubApp, GitHubApp, a.SSHKey, GitSSHKey, GitKnownHosts, a.Token, GitToken)...)
	}
	uses = append(uses, use{GitCA, s.Git.CASecretRef})
	if v := s.Git.Verify; v != nil {
		uses = append(uses, use{GitKeys, v.KeysSecretRef}, use{GitKeysConfigMap, v.KeysConfigMapRef})
	}
	if v := s.Validation; v != nil && v.Webhook != nil {
		uses = append(uses, use{Validation, v.Webhook.SecretRef}, use{ValidationCA, v.Webhook.CASecretRef})
	}
	return present(uses)
}

// ForProposals yields the secrets with which an agent sends changes back to git, in addition to those of ForSync. Only pods that
// propose changes mount them, and no sync needs them.
func ForProposals(s *v1alpha1.GatewaySyncSpec) iter.Seq2[Field, v1alpha1.SecretKeyRef] {
	var uses []use
	if b := s.Bidirectional; b != nil && b.Signing != nil {
		uses = append(uses, use{ProposalSigning, &b.Signing.KeySecretRef})
	}
	if b := s.Bidirectional; b != nil && b.Auth != nil {
		a := b.Auth
		uses = append(uses, credentials(a.GitHubApp, ProposalApp, a.SSHKey, ProposalSSHKey, ProposalKnownHosts, a.Token, ProposalToken)...)
	}
	return present(uses)
}

// ForStorage yields the secrets of the object storage of snapshots. All agents mount them, and no sync needs them.
func ForStorage(s *v1alpha1.GatewaySyncSpec) iter.Seq2[Field, v1alpha1.SecretKeyRef] {
	var uses []use
	if o := s.Snapshots.ObjectStorage(); o != nil {
		for _, store := range o.Stores() {
			uses = append(uses, use{Field("spec.snapshots.storage." + string(store.Type)), store.SecretRef})
		}
	}
	return present(uses)
}

// use is a field of the spec and the key that it names; ref is nil if it names none.
type use struct {
	field Field
	ref   *v1alpha1.SecretKeyRef
}

// present yields the uses that name a key.
func present(uses []use) iter.Seq2[Field, v1alpha1.SecretKeyRef] {
	return func(yield func(Field, v1alpha1.SecretKeyRef) bool) {
		for _, u := range uses {
			if u.ref != nil && !yield(u.field, *u.ref) {
				return
			}
		}
	}
}

// credentials returns the uses of the credentials of a git host. Each of them may be nil, and is followed by its fields.
func credentials(app *v1alpha1.GitHubAppAuth, appField Field, key *v1alpha1.SSHKeyAuth, keyField, knownHostsField Field, token *v1alpha1.TokenAuth, tokenField Field) []use {
	var uses []use
	if app != nil {
		uses = append(uses, use{appField, &app.PrivateKeySecretRef})
	}
	if key != nil {
		uses = append(uses, use{keyField, &key.SecretRef})
		if key.KnownHosts != nil {
			uses = append(uses, use{knownHostsField, &key.KnownHosts.SecretRef})
		}
	}
	if token != nil {
		uses = append(uses, use{tokenField, &token.SecretRef})
	}
	return uses
}
