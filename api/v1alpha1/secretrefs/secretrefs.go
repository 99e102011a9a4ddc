// Package secretrefs lists the keys of Secrets and ConfigMaps that the spec of a GatewaySync names, for the agent and the injector.
package secretrefs

import (
	"iter"

	"stoker.io/stoker/api/v1alpha1"
)

// Field is the path of a field of the spec that names a key of a Secret or ConfigMap.
type Field string

// The fields.
const (
	GatewayAPI       Field = "spec.gateway.api"
	GatewayCA        Field = "spec.gateway.tlsConfig.caSecretRef"
	GitAuth          Field = "spec.git.auth"
	GitSSHKey              = GitAuth + SSHKey
	GitKnownHosts          = GitAuth + KnownHosts
	GitToken               = GitAuth + Token
	GitCA            Field = "spec.git.caSecretRef"
	GitKeys          Field = "spec.git.verify.keysSecretRef"
	GitKeysConfigMap Field = "spec.git.verify.keysConfigMapRef"

	Validation   Field = "spec.validation.webhook.secretRef"
	ValidationCA Field = "spec.validation.webhook.caSecretRef"

	ProposalAuth    Field = "spec.bidirectional.auth"
	ProposalSigning Field = "spec.bidirectional.signing"

	Storage Field = "spec.snapshots.storage"
)

// The secrets of a credential, below the field that holds it.
const (
	SSHKey     Field = ".sshKey"
	KnownHosts Field = ".sshKey.knownHosts"
	Token      Field = ".token"
	GitHubApp  Field = ".githubApp"
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

// ForSync yields the secrets that a sync needs, and a ConfigMap that the agent reads like one. The secret of spec.webhook is not among
// them, because only the receiver reads it.
func ForSync(s *v1alpha1.GatewaySyncSpec) iter.Seq2[Field, v1alpha1.SecretKeyRef] {
	uses := []use{{GatewayAPI, s.Gateway.APIKey()}}
	if t := s.Gateway.TLSConfig; t != nil {
		uses = append(uses, use{GatewayCA, t.CASecretRef})
	}
	uses = append(uses, credential(GitAuth, s.Git.Auth)...)
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
	if b := s.Bidirectional; b != nil {
		if b.Signing != nil {
			uses = append(uses, use{ProposalSigning, &b.Signing.KeySecretRef})
		}
		uses = append(uses, credential(ProposalAuth, b.Auth)...)
	}
	return present(uses)
}

// ForStorage yields the secrets of the object storage of snapshots. All agents mount them, and no sync needs them.
func ForStorage(s *v1alpha1.GatewaySyncSpec) iter.Seq2[Field, v1alpha1.SecretKeyRef] {
	var uses []use
	if o := s.Snapshots.ObjectStorage(); o != nil {
		uses = append(uses, use{Storage, o.SecretRef})
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

// ForCredential yields the secrets of a credential, which is in a field of the spec.
func ForCredential(in Field, c *v1alpha1.Credential) iter.Seq2[Field, v1alpha1.SecretKeyRef] {
	return present(credential(in, c))
}

func credential(in Field, c *v1alpha1.Credential) []use {
	if c == nil {
		return nil
	}
	var uses []use
	if c.GitHubApp != nil {
		uses = append(uses, use{in + GitHubApp, &c.GitHubApp.PrivateKeySecretRef})
	}
	if c.SSHKey != nil {
		uses = append(uses, use{in + SSHKey, &c.SSHKey.SecretRef})
		if c.SSHKey.KnownHosts != nil {
			uses = append(uses, use{in + KnownHosts, &c.SSHKey.KnownHosts.SecretRef})
		}
	}
	if c.Token != nil {
		uses = append(uses, use{in + Token, &c.Token.SecretRef})
	}
	return uses
}
