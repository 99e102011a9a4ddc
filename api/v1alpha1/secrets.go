package v1alpha1

import "iter"

// SecretField is the path of a field of the spec that names a key of a Secret or ConfigMap.
type SecretField string

// The fields, in the order of Secrets.
const (
	SecretGatewayAPI    SecretField = "spec.gateway.api"
	SecretGatewayCA     SecretField = "spec.gateway.tlsConfig.caSecretRef"
	SecretGitHubApp     SecretField = "spec.git.auth.githubApp"
	SecretGitSSHKey     SecretField = "spec.git.auth.sshKey"
	SecretGitKnownHosts SecretField = "spec.git.auth.sshKey.knownHosts"
	SecretGitToken      SecretField = "spec.git.auth.token"
	SecretGitCA         SecretField = "spec.git.caSecretRef"
	SecretGitKeys       SecretField = "spec.git.verify.keysSecretRef"
	ConfigMapGitKeys    SecretField = "spec.git.verify.keysConfigMapRef"

	SecretValidation   SecretField = "spec.validation.webhook.secretRef"
	SecretValidationCA SecretField = "spec.validation.webhook.caSecretRef"

	SecretProposalApp        SecretField = "spec.bidirectional.auth.githubApp"
	SecretProposalSSHKey     SecretField = "spec.bidirectional.auth.sshKey"
	SecretProposalKnownHosts SecretField = "spec.bidirectional.auth.sshKey.knownHosts"
	SecretProposalToken      SecretField = "spec.bidirectional.auth.token"
	SecretProposalSigning    SecretField = "spec.bidirectional.signing"

	SecretStorageS3    SecretField = "spec.snapshots.storage.s3"
	SecretStorageGCS   SecretField = "spec.snapshots.storage.gcs"
	SecretStorageAzure SecretField = "spec.snapshots.storage.azure"
)

// Kind returns the kind of object that the field names.
func (f SecretField) Kind() string {
	if f == ConfigMapGitKeys {
		return "ConfigMap"
	}
	return "Secret"
}

// Folder returns the name of the folder in which a pod mounts the keys of the object that the field names. The folder of a ConfigMap has
// a name that no Secret can have.
func (f SecretField) Folder(name string) string {
	if f == ConfigMapGitKeys {
		return "configmap_" + name
	}
	return name
}

// FileVariables are the environment variables with the file of a secret, for pods that do not mount it in its folder.
var FileVariables = map[SecretField]string{
	SecretGatewayAPI: "API_KEY_FILE", SecretGitSSHKey: "GIT_SSH_KEY_FILE", SecretGitKnownHosts: "GIT_KNOWN_HOSTS_FILE",
	SecretGitToken: "GIT_TOKEN_FILE", SecretGitCA: "GIT_CA_FILE",
}

// Secrets yields the secrets that an agent needs, and a ConfigMap that it reads like one. The secret of spec.webhook is not among them,
// because only the receiver reads it.
func (s *GatewaySyncSpec) Secrets() iter.Seq2[SecretField, SecretKeyRef] {
	uses := []secretUse{{SecretGatewayAPI, s.Gateway.APIKey()}}
	if t := s.Gateway.TLSConfig; t != nil {
		uses = append(uses, secretUse{SecretGatewayCA, t.CASecretRef})
	}
	if a := s.Git.Auth; a != nil {
		uses = append(uses, credentials(a.GitHubApp, SecretGitHubApp, a.SSHKey, SecretGitSSHKey, SecretGitKnownHosts, a.Token, SecretGitToken)...)
	}
	uses = append(uses, secretUse{SecretGitCA, s.Git.CASecretRef})
	if v := s.Git.Verify; v != nil {
		uses = append(uses, secretUse{SecretGitKeys, v.KeysSecretRef}, secretUse{ConfigMapGitKeys, v.KeysConfigMapRef})
	}
	if v := s.Validation; v != nil && v.Webhook != nil {
		uses = append(uses, secretUse{SecretValidation, v.Webhook.SecretRef}, secretUse{SecretValidationCA, v.Webhook.CASecretRef})
	}
	return present(uses)
}

// ProposalSecrets yields the secrets with which an agent sends changes back to git, in addition to those of Secrets. Only pods that
// propose changes mount them, and no sync needs them.
func (s *GatewaySyncSpec) ProposalSecrets() iter.Seq2[SecretField, SecretKeyRef] {
	var uses []secretUse
	if b := s.Bidirectional; b != nil && b.Signing != nil {
		uses = append(uses, secretUse{SecretProposalSigning, &b.Signing.KeySecretRef})
	}
	if b := s.Bidirectional; b != nil && b.Auth != nil {
		a := b.Auth
		uses = append(uses, credentials(a.GitHubApp, SecretProposalApp, a.SSHKey, SecretProposalSSHKey, SecretProposalKnownHosts, a.Token, SecretProposalToken)...)
	}
	return present(uses)
}

// StorageSecrets yields the secrets of the object storage of snapshots. All agents mount them, and no sync needs them.
func (s *GatewaySyncSpec) StorageSecrets() iter.Seq2[SecretField, SecretKeyRef] {
	var uses []secretUse
	if o := s.Snapshots.ObjectStorage(); o != nil {
		for _, store := range o.Stores() {
			uses = append(uses, secretUse{store.SecretField, store.SecretRef})
		}
	}
	return present(uses)
}

// secretUse is a field of the spec and the key that it names; ref is nil if it names none.
type secretUse struct {
	field SecretField
	ref   *SecretKeyRef
}

// present yields the uses that name a key.
func present(uses []secretUse) iter.Seq2[SecretField, SecretKeyRef] {
	return func(yield func(SecretField, SecretKeyRef) bool) {
		for _, u := range uses {
			if u.ref != nil && !yield(u.field, *u.ref) {
				return
			}
		}
	}
}

// credentials returns the uses of the credentials of a git host. Each of them may be nil, and is followed by its fields.
func credentials(app *GitHubAppAuth, appField SecretField, key *SSHKeyAuth, keyField, knownHostsField SecretField, token *TokenAuth, tokenField SecretField) []secretUse {
	var uses []secretUse
	if app != nil {
		uses = append(uses, secretUse{appField, &app.PrivateKeySecretRef})
	}
	if key != nil {
		uses = append(uses, secretUse{keyField, &key.SecretRef})
		if key.KnownHosts != nil {
			uses = append(uses, secretUse{knownHostsField, &key.KnownHosts.SecretRef})
		}
	}
	if token != nil {
		uses = append(uses, secretUse{tokenField, &token.SecretRef})
	}
	return uses
}
