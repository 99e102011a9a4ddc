package v1alpha1

import "strings"

// SyncSpec says what is synced. Without any profile the agent works in service-path mode: the pod's annotation
// stoker.io/service-path names a folder, whose projects, config and udts go to where Ignition has them.
type SyncSpec struct {
	// Settings of all profiles and of service-path mode.
	// +optional
	// +kubebuilder:default={}
	Defaults SyncDefaults `json:"defaults,omitempty"`
	// Named sets of mappings. A pod picks one with the annotation stoker.io/profile; a pod that names none takes the one
	// that is called default.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Profiles map[string]SyncProfile `json:"profiles,omitempty"`
}

// SyncDefaults apply unless the pod or its profile overrides them.
type SyncDefaults struct {
	// Patterns of destination paths that are not synced; ** stands for any number of folders, a slash at the end for the
	// folder and all below it. Those of profile and pod are added to these, and the three of the default always count.
	// +optional
	// +listType=atomic
	// +kubebuilder:default={"**/.git/","**/.gitkeep","**/.resources/**"}
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	ExcludePatterns []string `json:"excludePatterns,omitempty"`
	// Variables for templates: {{.Vars.name}} or {{.name}}. Those of the profile win, name by name.
	// +optional
	// +kubebuilder:validation:MaxProperties=128
	Vars map[string]VarValue `json:"vars,omitempty"`
	// How often the agent checks for drift and checks its gateway, in seconds. It does not affect polling of git.
	// +optional
	// +kubebuilder:default=30
	// +kubebuilder:validation:Minimum=5
	// +kubebuilder:validation:Maximum=3600
	SyncPeriod *int32 `json:"syncPeriod,omitempty"`
	// What an open Designer session means: proceed syncs all the same, wait holds the sync until it is closed, fail ends
	// the sync with an error.
	// +optional
	// +kubebuilder:default=proceed
	DesignerSessionPolicy DesignerSessionPolicy `json:"designerSessionPolicy,omitempty"`
	// Which Designer sessions count: project, those on a project that would change; gateway, all of them.
	// +optional
	// +kubebuilder:default=project
	DesignerSessionScope DesignerSessionScope `json:"designerSessionScope,omitempty"`
	// What happens to a file that was changed on the gateway and that git wants otherwise: gitWins writes git's version
	// and moves the gateway's to lost+found, hold waits for a user, gatewayWins keeps the gateway's.
	// +optional
	// +kubebuilder:default=gitWins
	ConflictPolicy ConflictPolicy `json:"conflictPolicy,omitempty"`
	// What happens to a file that was changed on the gateway and not in git: it is reported, or repaired.
	// +optional
	// +kubebuilder:default=report
	DriftPolicy DriftPolicy `json:"driftPolicy,omitempty"`
	// What happens if a commit changes a file with an embedded secret, which every gateway with Ignition's default key can decrypt: the agent
	// warns, or refuses the commit. Default: warn.
	// +optional
	EmbeddedSecretPolicy EmbeddedSecretPolicy `json:"embeddedSecretPolicy,omitempty"`
	// What is deleted: owned, files that Stoker wrote and git has no longer; mirror, in mapped folders also files that git
	// never had (to lost+found first); none, nothing.
	// +optional
	// +kubebuilder:default=owned
	Prune Prune `json:"prune,omitempty"`
	// What a gateway does whose data directory holds a complete earlier sync: useExisting starts it at once, wait starts
	// it when the target commit is there, at the latest after progressDeadline. Only in a cluster.
	// +optional
	// +kubebuilder:default=useExisting
	Startup Startup `json:"startup,omitempty"`
	// If true, the agent reports the plan and writes nothing.
	// +optional
	DryRun bool `json:"dryRun,omitempty"`
	// If true, nothing is synced, unless a profile overrides it.
	// +optional
	Paused bool `json:"paused,omitempty"`
}

// SyncProfile is what one kind of gateway gets. What it leaves out comes from sync.defaults.
type SyncProfile struct {
	// From the repository to the data directory, in this order: a later mapping overlays an earlier one.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Mappings []Mapping `json:"mappings"`
	// Patterns that are added to those of sync.defaults.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	ExcludePatterns []string `json:"excludePatterns,omitempty"`
	// Variables that are added to those of sync.defaults, and win over them.
	// +optional
	// +kubebuilder:validation:MaxProperties=128
	Vars map[string]VarValue `json:"vars,omitempty"`
	// Overrides sync.defaults.syncPeriod, in seconds.
	// +optional
	// +kubebuilder:validation:Minimum=5
	// +kubebuilder:validation:Maximum=3600
	SyncPeriod *int32 `json:"syncPeriod,omitempty"`
	// Overrides sync.defaults.designerSessionPolicy.
	// +optional
	DesignerSessionPolicy DesignerSessionPolicy `json:"designerSessionPolicy,omitempty"`
	// Overrides sync.defaults.designerSessionScope.
	// +optional
	DesignerSessionScope DesignerSessionScope `json:"designerSessionScope,omitempty"`
	// Overrides sync.defaults.conflictPolicy.
	// +optional
	ConflictPolicy ConflictPolicy `json:"conflictPolicy,omitempty"`
	// Overrides sync.defaults.driftPolicy.
	// +optional
	DriftPolicy DriftPolicy `json:"driftPolicy,omitempty"`
	// Overrides sync.defaults.embeddedSecretPolicy.
	// +optional
	EmbeddedSecretPolicy EmbeddedSecretPolicy `json:"embeddedSecretPolicy,omitempty"`
	// Overrides sync.defaults.prune.
	// +optional
	Prune Prune `json:"prune,omitempty"`
	// Overrides sync.defaults.startup. Only in a cluster.
	// +optional
	Startup Startup `json:"startup,omitempty"`
	// Overrides sync.defaults.dryRun.
	// +optional
	DryRun *bool `json:"dryRun,omitempty"`
	// Overrides sync.defaults.paused.
	// +optional
	Paused *bool `json:"paused,omitempty"`
	// Overrides spec.bidirectional.enabled. True without spec.bidirectional has no effect.
	// +optional
	Bidirectional *bool `json:"bidirectional,omitempty"`
}

// Mapping brings one folder or file of the repository into the data directory.
//
// +kubebuilder:validation:XValidation:rule="!(self.destination in ['.stoker', './.stoker']) && !self.destination.startsWith('.stoker/') && !self.destination.startsWith('./.stoker/')",message="destination must not lie in .stoker: that folder is the agent's own"
// +kubebuilder:validation:XValidation:rule="!(has(self.type) && self.type == 'file') || !(self.destination in ['.', './'])",message="the destination of a file mapping must name the file"
// +kubebuilder:validation:XValidation:rule="!(has(self.type) && self.type == 'file') || !has(self.patches) || self.patches.all(p, !has(p.file))",message="a patch of a file mapping names no file: it is the mapped one"
// +kubebuilder:validation:XValidation:rule="!(has(self.type) && self.type == 'dir') || !has(self.patches) || self.patches.all(p, has(p.file))",message="a patch of a folder mapping must name its files"
type Mapping struct {
	// Folder or file in the repository, relative to its root. A Go template.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.contains('//') && !self.contains('/../') && !self.contains('/./') && !self.startsWith('../') && !self.endsWith('/..') && !self.endsWith('/.') && self != '..'",message="must be a path below its root: leave out a / at the start, .. and . between slashes, and empty parts"
	// +kubebuilder:validation:XValidation:rule=`!self.matches(r'[\\\x00-\x1f\x7f]')`,message="must have folders separated by /, no backslashes and no control characters"
	Source string `json:"source"`
	// Where it goes, relative to the gateway's data directory. A Go template. With or without a slash at the end is the same.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.contains('//') && !self.contains('/../') && !self.contains('/./') && !self.startsWith('../') && !self.endsWith('/..') && !self.endsWith('/.') && self != '..'",message="must be a path below its root: leave out a / at the start, .. and . between slashes, and empty parts"
	// +kubebuilder:validation:XValidation:rule=`!self.matches(r'[\\\x00-\x1f\x7f]')`,message="must have folders separated by /, no backslashes and no control characters"
	Destination string `json:"destination"`
	// Whether source is a folder or a file. Default: what it is in the repository.
	// +optional
	Type MappingType `json:"type,omitempty"`
	// If true, a source that is not in the commit fails the sync (SourceMissing). Otherwise it is skipped.
	// +optional
	Required bool `json:"required,omitempty"`
	// If true, the content of text files is a Go template.
	// +optional
	Template bool `json:"template,omitempty"`
	// Changes of single JSON values, after the template.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Patches []Patch `json:"patches,omitempty"`
}

// Patch sets values of JSON files. Their order and layout stay as they are.
type Patch struct {
	// Pattern of file paths, relative to the mapping's destination; ** stands for any number of folders. Left out for a
	// file mapping. A pattern that matches nothing is an error (PatchFailed).
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^(([^./\\\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.[^./\\\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.\.[^/\\\x00-\x1f\x7f]+)/)*([^./\\\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.[^./\\\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.\.[^/\\\x00-\x1f\x7f]+)$`
	File string `json:"file,omitempty"`
	// From the path of a value (members joined by dots, a dot in a name written as \.) to the new value. The value is a Go
	// template; it gets the JSON type of the value that it replaces. A new member takes a JSON literal where it is one.
	// +required
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=64
	Set map[string]PatchValue `json:"set"`
}

// VarValue is the value of a template variable.
//
// +kubebuilder:validation:MaxLength=4096
type VarValue string

// PatchValue is a Go template for a JSON value.
//
// +kubebuilder:validation:MaxLength=4096
type PatchValue string

// MappingType is what a mapping's source is.
//
// +kubebuilder:validation:Enum=dir;file
type MappingType string

// The kinds of a source; "" means that the repository tells.
const (
	MappingDir  MappingType = "dir"
	MappingFile MappingType = "file"
)

// DesignerSessionPolicy is what an open Designer session means.
//
// +kubebuilder:validation:Enum=proceed;wait;fail
type DesignerSessionPolicy string

// The policies for Designer sessions.
const (
	DesignerProceed DesignerSessionPolicy = "proceed"
	DesignerWait    DesignerSessionPolicy = "wait"
	DesignerFail    DesignerSessionPolicy = "fail"
)

// DesignerSessionScope is which Designer sessions count.
//
// +kubebuilder:validation:Enum=project;gateway
type DesignerSessionScope string

// The scopes for Designer sessions.
const (
	DesignerScopeProject DesignerSessionScope = "project"
	DesignerScopeGateway DesignerSessionScope = "gateway"
)

// ConflictPolicy is who wins where gateway and git changed one file.
//
// +kubebuilder:validation:Enum=gitWins;hold;gatewayWins
type ConflictPolicy string

// The policies for conflicts.
const (
	ConflictGitWins     ConflictPolicy = "gitWins"
	ConflictHold        ConflictPolicy = "hold"
	ConflictGatewayWins ConflictPolicy = "gatewayWins"
)

// DriftPolicy is what happens to a file that only the gateway changed.
//
// +kubebuilder:validation:Enum=report;repair
type DriftPolicy string

// The policies for drift.
const (
	DriftReport DriftPolicy = "report"
	DriftRepair DriftPolicy = "repair"
)

// EmbeddedSecretPolicy is what happens to a commit with embedded secrets.
//
// +kubebuilder:validation:Enum=warn;refuse
type EmbeddedSecretPolicy string

// The policies for embedded secrets.
const (
	EmbeddedSecretWarn   EmbeddedSecretPolicy = "warn"
	EmbeddedSecretRefuse EmbeddedSecretPolicy = "refuse"
)

// Prune is what a sync may delete.
//
// +kubebuilder:validation:Enum=owned;mirror;none
type Prune string

// The ways to prune.
const (
	PruneOwned  Prune = "owned"
	PruneMirror Prune = "mirror"
	PruneNone   Prune = "none"
)

// Startup is what a gateway waits for when it starts.
//
// +kubebuilder:validation:Enum=useExisting;wait
type Startup string

// The ways to start.
const (
	StartupUseExisting Startup = "useExisting"
	StartupWait        Startup = "wait"
)

// NormalPath returns a path without "./" before it and without "/" after it. It does not change the inside of templates.
func NormalPath(p string) string {
	if rest, ok := strings.CutPrefix(p, "./"); ok && rest != "" {
		p = rest
	}
	return strings.TrimSuffix(p, "/")
}
