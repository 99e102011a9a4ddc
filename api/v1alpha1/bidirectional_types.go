package v1alpha1

import "time"

// BidirectionalSpec says which changes that users save on a gateway the agent proposes to git, as pull requests.
//
// +kubebuilder:validation:XValidation:rule=`!has(self.baseBranch) || !has(self.targetBranch) || self.baseBranch != self.targetBranch`,message="must differ from baseBranch",fieldPath=".targetBranch"
// +kubebuilder:validation:XValidation:rule=`!has(self.apiBaseURL) || self.apiBaseURL.matches(r'^https?://[^/\s\x00-\x1f\x7f-][^\s\x00-\x1f\x7f]*$')`,message="use https://host/path of the API",fieldPath=".apiBaseURL"
type BidirectionalSpec struct {
	// If true, agents propose changes. A profile can override it (sync.profiles.*.bidirectional).
	// +optional
	Enabled bool `json:"enabled,omitempty"`
	// Patterns of the paths in the data directory whose changes are proposed. Default: projects/** and the tags and tag types of
	// config/resources/core.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	WatchPaths []string `json:"watchPaths,omitempty"`
	// Branch to push to, a template with .Namespace, .GatewayName and .Profile. If it does not write .GatewayName as it is, the agent
	// appends /<gateway>, so that each gateway has a branch of its own.
	// +optional
	// +kubebuilder:default="gateway-changes/{{.Namespace}}"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	TargetBranch string `json:"targetBranch,omitempty"`
	// Branch to merge into. Default: git.ref if it is a branch. Required for a tag or a commit.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^[^-/\x00-\x20~^:?*\[\\\x7f][^\x00-\x20~^:?*\[\\\x7f]*$') && self != '@' && !self.contains('..') && !self.contains('//') && !self.contains('@{') && !self.contains('/.') && !self.startsWith('.') && !self.endsWith('/') && !self.endsWith('.') && !self.endsWith('.lock') && !self.contains('.lock/')`,message="must be the name of a branch"
	BaseBranch string `json:"baseBranch,omitempty"`
	// How long the agent waits after the last save before it proposes the changes. It waits at most ten minutes after the first save. A
	// duration from 1s to 10m.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^([0-9]{1,8}ms|[0-9]{1,5}(\.[0-9]{1,6})?[smh])+$') && duration(self) >= duration('1s') && duration(self) <= duration('10m')`,message="must be a duration from 1s to 10m: numbers with units, such as 30s or 1m30s"
	Debounce string `json:"debounce,omitempty"`
	// Labels of the pull request. Gitea ignores labels that the repository does not have, other forges create them, and Bitbucket has no
	// labels.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=50
	PRLabels []string `json:"prLabels,omitempty"`
	// What a sync does if both git and the gateway changed a watched file. It replaces conflictPolicy for watched paths. gitWins: the sync
	// waits until the change is pushed, and then writes git's version. gatewayWins: the sync waits until the pull request is merged or
	// closed. manual: the sync waits until stoker.io/force-sync is set or either side changes.
	// +optional
	// +kubebuilder:default=gitWins
	// +kubebuilder:validation:Enum=gitWins;gatewayWins;manual
	ConflictStrategy ConflictStrategy `json:"conflictStrategy,omitempty"`
	// Limits of a proposal. If a proposal exceeds one, the agent pushes nothing.
	// +optional
	// +kubebuilder:default={}
	Guardrails ProposalGuardrails `json:"guardrails,omitempty"`
	// Kind of the forge. Default: derived from the host of git.repo. none only pushes the branch.
	// +optional
	// +kubebuilder:validation:Enum=github;gitlab;gitea;bitbucket;azuredevops;none
	Provider string `json:"provider,omitempty"`
	// Base URL of the forge's API. Default: derived from the provider and the host.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	APIBaseURL string `json:"apiBaseURL,omitempty"`
	// Credentials for the push and the API: githubApp, or token with or without sshKey. Default: git.auth.
	// +optional
	Auth *Credential `json:"auth,omitempty"`
	// Authors of commits, "Name <mail>", by the name of the Ignition user.
	// +optional
	// +kubebuilder:validation:MaxProperties=256
	Authors map[string]Author `json:"authors,omitempty"`
	// Key with which the agent signs its commits. Default: they are not signed.
	// +optional
	Signing *CommitSigning `json:"signing,omitempty"`
	// What happens on the gateway if the pull request is closed without a merge. keep: nothing, and the same change is not proposed again.
	// repair: the sync writes git's version, and the gateway's goes to lost+found.
	// +optional
	// +kubebuilder:default=keep
	// +kubebuilder:validation:Enum=keep;repair
	OnClosed OnClosed `json:"onClosed,omitempty"`
}

// Author is the author of a commit, as "Name <mail@host>".
//
// +kubebuilder:validation:MaxLength=255
// +kubebuilder:validation:XValidation:rule=`self.matches(r'^[^<>\x00-\x1f\x7f]+ <[^<>\s\x00-\x1f\x7f]+@[^<>\s\x00-\x1f\x7f]+>$')`,message="must have the form: Name <mail@host>"
type Author string

// ConflictStrategy says what a sync does about a watched file that both git and the gateway changed.
type ConflictStrategy string

// The conflict strategies.
const (
	StrategyGitWins     ConflictStrategy = "gitWins"
	StrategyGatewayWins ConflictStrategy = "gatewayWins"
	StrategyManual      ConflictStrategy = "manual"
)

// OnClosed says what happens if a pull request is closed without a merge.
type OnClosed string

// The policies for closed pull requests.
const (
	OnClosedKeep   OnClosed = "keep"
	OnClosedRepair OnClosed = "repair"
)

// ProposalGuardrails are the limits of a proposal.
type ProposalGuardrails struct {
	// Maximum size of a file, a quantity such as 10Mi.
	// +optional
	// +kubebuilder:default="10Mi"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{0,8}(Ki|Mi)?$`
	MaxFileSize string `json:"maxFileSize,omitempty"`
	// Maximum size of all files together.
	// +optional
	// +kubebuilder:default="32Mi"
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{0,8}(Ki|Mi)?$`
	MaxTotalSize string `json:"maxTotalSize,omitempty"`
	// Maximum number of files.
	// +optional
	// +kubebuilder:default=100
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxFilesPerPR int32 `json:"maxFilesPerPR,omitempty"`
	// Patterns of paths that are never proposed, in addition to the built-in ones.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:default={"**/.resources/**","**/secrets/**","**/*.jar"}
	ExcludePatterns []string `json:"excludePatterns,omitempty"`
}

// CommitSigning is a key that signs commits. A signature proves that an agent with this key made the commit, not which user made the change.
type CommitSigning struct {
	// Format of the key and of the signatures, as in git's gpg.format.
	// +required
	// +kubebuilder:validation:Enum=ssh;openpgp
	Format SigningFormat `json:"format"`
	// The private key, without a passphrase: in PEM or OpenSSH form for ssh, armored for openpgp.
	// +required
	KeySecretRef SecretKeyRef `json:"keySecretRef"`
}

// SigningFormat is a format of signatures.
type SigningFormat string

// The formats of signatures.
const (
	SigningSSH     SigningFormat = "ssh"
	SigningOpenPGP SigningFormat = "openpgp"
)

// Proposal is the branch and the pull request with which an agent sends changes of its gateway back to git.
type Proposal struct {
	// State of the proposal.
	// +required
	State ProposalState `json:"state"`
	// Branch that the agent pushes to.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Branch string `json:"branch,omitempty"`
	// Tip of the branch.
	// +optional
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{40})?$`
	Commit string `json:"commit,omitempty"`
	// Number of the pull request.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Number int64 `json:"number,omitempty"`
	// URL of the pull request.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	URL string `json:"url,omitempty"`
	// Number of changed files that are proposed.
	// +optional
	Files int32 `json:"files,omitempty"`
	// Number of changed files that are refused.
	// +optional
	Refused int32 `json:"refused,omitempty"`
	// Why the changes are not proposed. Empty if they are.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason Reason `json:"reason,omitempty"`
	// Explanation of the reason.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`
}

// ProposalState is the state of a proposal.
type ProposalState string

// The states of a proposal.
const (
	ProposalSettling  ProposalState = "Settling"  // the agent waits for the end of debounce
	ProposalRefused   ProposalState = "Refused"   // a change must not leave the gateway, or cannot be expressed in git
	ProposalPushing   ProposalState = "Pushing"   // the agent pushes the branch or creates the pull request
	ProposalPushed    ProposalState = "Pushed"    // the branch is pushed, and provider is none
	ProposalOpen      ProposalState = "Open"      // the pull request is open
	ProposalForeign   ProposalState = "Foreign"   // another author committed to the branch, so the agent stopped pushing
	ProposalMerged    ProposalState = "Merged"    // the pull request was merged
	ProposalClosed    ProposalState = "Closed"    // the pull request was closed without a merge
	ProposalWithdrawn ProposalState = "Withdrawn" // a user undid the change on the gateway
)

// Defaults of spec.bidirectional.
const (
	DefaultTargetBranch  = "gateway-changes/{{.Namespace}}"
	DefaultDebounce      = "30s"
	MaxDebounce          = 10 * time.Minute
	DefaultMaxFileSize   = "10Mi"
	DefaultMaxTotalSize  = "32Mi"
	DefaultMaxFilesPerPR = int32(100)
)

// DefaultWatchPaths returns the default of spec.bidirectional.watchPaths. Of the configuration it has only tags, because other resources
// may contain secrets.
func DefaultWatchPaths() []string {
	return []string{
		"projects/**",
		"config/resources/core/ignition/tag-definition/**",
		"config/resources/core/ignition/tag-type-definition/**",
	}
}

// DefaultProposalExcludes returns the default of spec.bidirectional.guardrails.excludePatterns.
func DefaultProposalExcludes() []string {
	return []string{"**/.resources/**", "**/secrets/**", "**/*.jar"}
}

// Providers returns the values of spec.bidirectional.provider.
func Providers() []string {
	return []string{"github", "gitlab", "gitea", "bitbucket", "azuredevops", "none"}
}

// Provider returns the kind of forge that the spec names, or "" if the host of the repository decides.
func (s *GatewaySyncSpec) Provider() string {
	if b := s.Bidirectional; b != nil && b.Provider != "none" {
		return b.Provider
	}
	return ""
}

// Proposes reports whether changes on a gateway are proposed for any profile, or in service-path mode.
func (gs *GatewaySync) Proposes() bool {
	b, profiles := gs.Spec.Bidirectional, gs.Spec.Sync.Profiles
	if b == nil || len(profiles) == 0 {
		return b != nil && b.Enabled
	}
	for _, p := range profiles {
		if b.EnabledFor(&p) {
			return true
		}
	}
	return false
}

// EnabledFor reports whether changes on the gateways of a profile are proposed. b may be nil.
func (b *BidirectionalSpec) EnabledFor(p *SyncProfile) bool {
	switch {
	case b == nil:
		return false
	case p.Bidirectional != nil:
		return *p.Bidirectional
	}
	return b.Enabled
}
