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

	SecretProposalApp        SecretField = "spec.bidirectional.auth.githubApp"
	SecretProposalSSHKey     SecretField = "spec.bidirectional.auth.sshKey"
	SecretProposalKnownHosts SecretField = "spec.bidirectional.auth.sshKey.knownHosts"
	SecretProposalToken      SecretField = "spec.bidirectional.auth.token"
	SecretProposalSigning    SecretField = "spec.bidirectional.signing"
)

// FileVariables are the environment variables that name the file of a secret, for a pod that mounts it elsewhere.
var FileVariables = map[SecretField]string{
	SecretGatewayAPI: "API_KEY_FILE", SecretGitSSHKey: "GIT_SSH_KEY_FILE", SecretGitKnownHosts: "GIT_KNOWN_HOSTS_FILE",
	SecretGitToken: "GIT_TOKEN_FILE", SecretGitCA: "GIT_CA_FILE",
}

// Secrets yields the secrets that an agent needs. That of the webhook is not among them: only the receiver reads it.
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
