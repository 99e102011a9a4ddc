package v1alpha1

import "iter"

// SecretField is a field of the spec by which an agent gets a secret.
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

// Folder returns the folder, among those of the Secrets of a pod, that has the keys of what the field names. No Secret has the name of
// the folder of a ConfigMap.
func (f SecretField) Folder(name string) string {
	if f == ConfigMapGitKeys {
		return "configmap_" + name
	}
	return name
}

// FileVariables are the environment variables that name the file of a secret, for a pod that mounts it elsewhere.
var FileVariables = map[SecretField]string{
	SecretGatewayAPI: "API_KEY_FILE", SecretGitSSHKey: "GIT_SSH_KEY_FILE", SecretGitKnownHosts: "GIT_KNOWN_HOSTS_FILE",
	SecretGitToken: "GIT_TOKEN_FILE", SecretGitCA: "GIT_CA_FILE",
}

// Secrets yields the secrets that an agent needs, and a ConfigMap that it reads like one. The secret of the webhook is not among them: only
// the receiver reads it.
func (s *GatewaySyncSpec) Secrets() iter.Seq2[SecretField, SecretKeyRef] {
	return func(yield func(SecretField, SecretKeyRef) bool) {
		more := true
		add := func(field SecretField, ref *SecretKeyRef) {
			if more && ref != nil {
				more = yield(field, *ref)
			}
		}
		add(SecretGatewayAPI, s.Gateway.APIKey())
		if t := s.Gateway.TLSConfig; t != nil {
			add(SecretGatewayCA, t.CASecretRef)
		}
		if a := s.Git.Auth; a != nil {
			if a.GitHubApp != nil {
				add(SecretGitHubApp, &a.GitHubApp.PrivateKeySecretRef)
			}
			if a.SSHKey != nil {
				add(SecretGitSSHKey, &a.SSHKey.SecretRef)
				if a.SSHKey.KnownHosts != nil {
					add(SecretGitKnownHosts, &a.SSHKey.KnownHosts.SecretRef)
				}
			}
			if a.Token != nil {
				add(SecretGitToken, &a.Token.SecretRef)
			}
		}
		add(SecretGitCA, s.Git.CASecretRef)
		if v := s.Git.Verify; v != nil {
			add(SecretGitKeys, v.KeysSecretRef)
			add(ConfigMapGitKeys, v.KeysConfigMapRef)
		}
		if v := s.Validation; v != nil && v.Webhook != nil {
			add(SecretValidation, v.Webhook.SecretRef)
			add(SecretValidationCA, v.Webhook.CASecretRef)
		}
	}
}

// ProposalSecrets yields the secrets with which an agent sends changes back to git, in addition to those of Secrets. Only pods that
// propose changes mount them, and no sync needs them.
func (s *GatewaySyncSpec) ProposalSecrets() iter.Seq2[SecretField, SecretKeyRef] {
	return func(yield func(SecretField, SecretKeyRef) bool) {
		if s.Bidirectional == nil {
			return
		}
		more := true
		add := func(field SecretField, ref *SecretKeyRef) {
			if more && ref != nil {
				more = yield(field, *ref)
			}
		}
		if sign := s.Bidirectional.Signing; sign != nil {
			add(SecretProposalSigning, &sign.KeySecretRef)
		}
		a := s.Bidirectional.Auth
		if a == nil {
			return
		}
		if a.GitHubApp != nil {
			add(SecretProposalApp, &a.GitHubApp.PrivateKeySecretRef)
		}
		if a.SSHKey != nil {
			add(SecretProposalSSHKey, &a.SSHKey.SecretRef)
			if a.SSHKey.KnownHosts != nil {
				add(SecretProposalKnownHosts, &a.SSHKey.KnownHosts.SecretRef)
			}
		}
		if a.Token != nil {
			add(SecretProposalToken, &a.Token.SecretRef)
		}
	}
}

// StorageSecrets yields the secrets of the object storage of snapshots. All agents mount them, and no sync needs them.
func (s *GatewaySyncSpec) StorageSecrets() iter.Seq2[SecretField, SecretKeyRef] {
	return func(yield func(SecretField, SecretKeyRef) bool) {
		o := s.Snapshots.ObjectStorage()
		if o == nil {
			return
		}
		for _, b := range o.Stores() {
			if b.SecretRef != nil && !yield(b.SecretField, *b.SecretRef) {
				return
			}
		}
	}
}
