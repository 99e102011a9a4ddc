package v1alpha1

// GitSpec names the repository and the ref.
//
// +kubebuilder:validation:XValidation:rule=`!has(self.repo) || self.repo.matches(r'^((https?|ssh)://[^/?#\s\x00-\x1f\x7f-][^?#\s\x00-\x1f\x7f]*|oci(\+http)?://[^/?#@\s\x00-\x1f\x7f-][^/?#@\s\x00-\x1f\x7f]*(/[a-z0-9]+((\.|__?|-+)[a-z0-9]+)*)+|(file:///|/)[^/\x00-\x1f\x7f][^\x00-\x1f\x7f]*|([A-Za-z0-9_][A-Za-z0-9._~-]*@)?([A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\]):(/?[^:/\s\x00-\x1f\x7f-][^\s\x00-\x1f\x7f]*))$')`,message="is not a URL that Stoker reads: use https://host/path, ssh://host/path, user@host:path, oci://host/path, http://, file:///path or an absolute path, without ? and #",fieldPath=".repo"
// +kubebuilder:validation:XValidation:rule="!has(self.repo) || !self.repo.startsWith('oci://') && !self.repo.startsWith('oci+http://') || !has(self.verify) || self.verify.mode != 'Tag'",message="git.repo is a registry, whose tags have no signatures: use the mode Head",fieldPath=".verify"
// +kubebuilder:validation:XValidation:rule="!has(self.repo) || !self.repo.startsWith('oci://') && !self.repo.startsWith('oci+http://') || !has(self.auth) || !has(self.auth.sshKey) && !has(self.auth.githubApp)",message="git.repo is a registry, which takes only token",fieldPath=".auth"
type GitSpec struct {
	// URL of the repository: https://, ssh://, user@host:path, or http:// (not encrypted, with a warning). Or oci://host/path for the
	// artifacts of a registry (oci+http:// without encryption). For the standalone agent also file:// or the absolute path of a folder. It
	// must not have a query. Put credentials in auth.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	Repo string `json:"repo"`
	// The ref to sync: a branch, a tag, a full name (refs/…), or a commit of 40 hex digits. A name that is both a branch and a tag is
	// refused (AmbiguousRef): write refs/heads/… or refs/tags/…. For a registry, it is a tag or a digest (sha256: and 64 hex digits).
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^(sha256:[0-9a-f]{64}|[^-/\x00-\x20~^:?*\[\\\x7f][^\x00-\x20~^:?*\[\\\x7f]*)$')`,message="must not start with - or /, nor hold a space, a control character, a backslash, or one of ~ ^ : ? * ["
	// +kubebuilder:validation:XValidation:rule="self != '@' && !self.contains('..') && !self.contains('//') && !self.contains('@{') && !self.contains('/.') && !self.startsWith('.') && !self.endsWith('/') && !self.endsWith('.') && !self.endsWith('.lock') && !self.contains('.lock/')",message="must be a name that git allows for refs: no .. // /. @{ within, no . at the start, no / . or .lock at the end, and not @ alone"
	Ref string `json:"ref"`
	// Credentials, of one kind. Public repositories need none.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.sshKey) || !has(self.token)",message="at most one of sshKey, token and githubApp"
	Auth *Credential `json:"auth,omitempty"`
	// PEM certificates to trust for the git host, in addition to those of the system.
	// +optional
	CASecretRef *SecretKeyRef `json:"caSecretRef,omitempty"`
	// Patterns of the refs that a request (webhook, annotation, command line) may name. With refs/ they match full names, otherwise names
	// of branches and tags. A requested commit must be reachable from one of these refs, because git hosts also serve commits of forks.
	// Default: all branches and tags. Only in a cluster.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	AllowedRefs []string `json:"allowedRefs,omitempty"`
	// If set, only signed commits are delivered. If a signature does not verify, the gateways keep the commit that they run.
	// +optional
	Verify *GitVerify `json:"verify,omitempty"`
}

// GitVerify says which signatures a commit needs. It also applies to the commit of a rollback.
//
// +kubebuilder:validation:XValidation:rule="has(self.keysSecretRef) != has(self.keysConfigMapRef)",message="name the keys in one of keysSecretRef and keysConfigMapRef"
type GitVerify struct {
	// Head: the commit must be signed; the artifact of a registry, with cosign. Tag: git.ref, or the requested ref, must name an annotated tag that is signed.
	// +optional
	// +kubebuilder:default=Head
	Mode VerifyMode `json:"mode,omitempty"`
	// Public keys that may sign: OpenSSH keys, one per line as in authorized_keys or allowed_signers, armored OpenPGP keys, and those of cosign.
	// +optional
	KeysSecretRef *SecretKeyRef `json:"keysSecretRef,omitempty"`
	// The same keys, in a ConfigMap.
	// +optional
	KeysConfigMapRef *SecretKeyRef `json:"keysConfigMapRef,omitempty"`
	// Accepted formats of signatures. Default: both.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:Enum=ssh;openpgp
	Formats []SigningFormat `json:"formats,omitempty"`
}

// VerifyMode says what must be signed.
//
// +kubebuilder:validation:Enum=Head;Tag
type VerifyMode string

// The modes.
const (
	VerifyHead VerifyMode = "Head"
	VerifyTag  VerifyMode = "Tag"
)

// Credential is what an agent presents to a git host.
//
// +kubebuilder:validation:XValidation:rule="!has(self.githubApp) || !has(self.sshKey) && !has(self.token)",message="githubApp goes alone: remove sshKey and token"
type Credential struct {
	// An ssh key. The API of a forge needs a token, too.
	// +optional
	SSHKey *SSHKeyAuth `json:"sshKey,omitempty"`
	// A token or password for https, for a registry, and for the API of a forge.
	// +optional
	Token *TokenAuth `json:"token,omitempty"`
	// A GitHub App. To propose changes, it needs the permissions Contents: Write and Pull requests: Write.
	// +optional
	GitHubApp *GitHubAppAuth `json:"githubApp,omitempty"`
}

// ConfigAuthMethod is the kind of Credential that the Secret of a ConfigSync has.
//
// +kubebuilder:validation:Enum=none;ssh;https;githubApp
type ConfigAuthMethod string

// The methods.
const (
	ConfigAuthNone      ConfigAuthMethod = "none"
	ConfigAuthSSH       ConfigAuthMethod = "ssh"
	ConfigAuthHTTPS     ConfigAuthMethod = "https"
	ConfigAuthGitHubApp ConfigAuthMethod = "githubApp"
)

// ConfigAuthMethods lists the methods.
var ConfigAuthMethods = []ConfigAuthMethod{ConfigAuthNone, ConfigAuthSSH, ConfigAuthHTTPS, ConfigAuthGitHubApp}

// SSHKeyAuth is a private ssh key and the trusted host keys.
type SSHKeyAuth struct {
	// The private key, in PEM or OpenSSH form, without a passphrase.
	// +required
	SecretRef SecretKeyRef `json:"secretRef"`
	// Host keys in the format of known_hosts. Default: the built-in keys of public git hosts. An unknown host is refused, and the
	// message has its fingerprint.
	// +optional
	KnownHosts *SecretSource `json:"knownHosts,omitempty"`
	// If true, any host key is accepted. A third party on the network can then read and change what is synced.
	// +optional
	InsecureIgnoreHostKey bool `json:"insecureIgnoreHostKey,omitempty"`
}

// TokenAuth is a token for basic authentication.
type TokenAuth struct {
	// The token or password. For a registry also the key .dockerconfigjson of a Secret of the type kubernetes.io/dockerconfigjson.
	// +required
	SecretRef SecretKeyRef `json:"secretRef"`
	// User name that goes with the token.
	// +optional
	// +kubebuilder:default="git"
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[^:\x00-\x1f\x7f]+$`
	Username string `json:"username,omitempty"`
}

// GitHubAppAuth is an installation of a GitHub App. Its tokens are limited to this repository, and renewed before they expire.
//
// +kubebuilder:validation:XValidation:rule=`!has(self.apiBaseURL) || self.apiBaseURL.matches(r'^https?://[^/\s\x00-\x1f\x7f-][^\s\x00-\x1f\x7f]*$')`,message="use https://host/path of the API",fieldPath=".apiBaseURL"
type GitHubAppAuth struct {
	// ID of the app.
	// +required
	// +kubebuilder:validation:Minimum=1
	AppID int64 `json:"appId"`
	// ID of the installation.
	// +required
	// +kubebuilder:validation:Minimum=1
	InstallationID int64 `json:"installationId"`
	// PEM private key of the app.
	// +required
	PrivateKeySecretRef SecretKeyRef `json:"privateKeySecretRef"`
	// Base URL of the API of GitHub Enterprise. Default: the API of github.com.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	APIBaseURL string `json:"apiBaseURL,omitempty"`
}
