package v1alpha1

// SyncSpec says what is synced. Without profiles, the agent works in service-path mode: the pod's annotation stoker.io/service-path names
// a folder with the folders projects, config and udts.
type SyncSpec struct {
	// Settings for all profiles and for service-path mode.
	// +optional
	Defaults SyncSettings `json:"defaults,omitempty"`
	// Named sets of mappings. A pod selects one with the annotation stoker.io/profile. Pods without the annotation get the profile named
	// default.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Profiles map[string]SyncProfile `json:"profiles,omitempty"`
}

// SyncSettings are settings for all gateways or, in a profile, for its gateways. A field that a profile leaves unset has the value of
// sync.defaults.
type SyncSettings struct {
	// Patterns of destination paths that are not synced. ** stands for any number of folders, and a trailing slash for a folder and all
	// below it. The patterns of sync.defaults, of the profile and of the pod are added up, with **/.git/, **/.gitkeep and **/.resources/**.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	ExcludePatterns []string `json:"excludePatterns,omitempty"`
	// Variables for templates: {{.Vars.name}} or {{.name}}. A variable of the profile overrides one of sync.defaults with the same name.
	// +optional
	// +kubebuilder:validation:MaxProperties=128
	Vars map[string]VarValue `json:"vars,omitempty"`
	// How often the agent checks for drift and checks its gateway, in seconds. It does not affect the polling of git. Default: 30.
	// +optional
	// +kubebuilder:validation:Minimum=5
	// +kubebuilder:validation:Maximum=3600
	SyncPeriod *int32 `json:"syncPeriod,omitempty"`
	// What a sync does while a Designer session is open: proceed ignores the session, wait holds the sync until it is closed, fail ends the
	// sync with an error. Default: proceed.
	// +optional
	DesignerSessionPolicy DesignerSessionPolicy `json:"designerSessionPolicy,omitempty"`
	// Which Designer sessions count: project, those on a project that would change; gateway, all of them. Default: project.
	// +optional
	DesignerSessionScope DesignerSessionScope `json:"designerSessionScope,omitempty"`
	// What happens to a file that both git and the gateway changed: gitWins writes git's version and moves the gateway's to lost+found,
	// hold waits for a user, gatewayWins keeps the gateway's version. Default: gitWins.
	// +optional
	ConflictPolicy ConflictPolicy `json:"conflictPolicy,omitempty"`
	// What happens to a file that was changed on the gateway and not in git: report reports it, repair restores git's version. Default:
	// report.
	// +optional
	DriftPolicy DriftPolicy `json:"driftPolicy,omitempty"`
	// What happens if a commit changes a file with an embedded secret, which every gateway with Ignition's default key can decrypt: warn
	// reports it, refuse refuses the commit. Default: warn.
	// +optional
	EmbeddedSecretPolicy EmbeddedSecretPolicy `json:"embeddedSecretPolicy,omitempty"`
	// What a sync deletes. owned: files that the agent wrote or found equal to git, and that git no longer has. mirror: also other files in
	// mapped folders, which go to lost+found. none: nothing. Default: owned.
	// +optional
	Prune Prune `json:"prune,omitempty"`
	// When a gateway starts whose data directory has a complete earlier sync: useExisting starts it at once, wait when the target commit is
	// written, or after progressDeadline. Only in a cluster. Default: useExisting.
	// +optional
	Startup Startup `json:"startup,omitempty"`
	// If true, the agent reports the plan and writes nothing. Default: false.
	// +optional
	DryRun *bool `json:"dryRun,omitempty"`
}

// SyncProfile has the mappings and settings of one kind of gateway.
type SyncProfile struct {
	SyncSettings `json:",inline"`
	// Mappings from the repository to the data directory. A later mapping overlays an earlier one.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Mappings []Mapping `json:"mappings"`
	// If true, the gateways of this profile are not synced. spec.paused does the same for all gateways.
	// +optional
	Paused bool `json:"paused,omitempty"`
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
	// Destination, relative to the gateway's data directory. A Go template. A trailing slash makes no difference.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.contains('//') && !self.contains('/../') && !self.contains('/./') && !self.startsWith('../') && !self.endsWith('/..') && !self.endsWith('/.') && self != '..'",message="must be a path below its root: leave out a / at the start, .. and . between slashes, and empty parts"
	// +kubebuilder:validation:XValidation:rule=`!self.matches(r'[\\\x00-\x1f\x7f]')`,message="must have folders separated by /, no backslashes and no control characters"
	Destination string `json:"destination"`
	// Whether the source must be a folder or a file. Default: either.
	// +optional
	Type MappingType `json:"type,omitempty"`
	// If true, a source that is not in the commit fails the sync (SourceMissing). Otherwise it is skipped.
	// +optional
	Required bool `json:"required,omitempty"`
	// If true, the content of text files is a Go template.
	// +optional
	Template bool `json:"template,omitempty"`
	// Changes of single JSON values, made after the template is rendered.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Patches []Patch `json:"patches,omitempty"`
}

// Patch sets values of JSON files. It keeps the order and the layout of a file.
type Patch struct {
	// Pattern of file paths, relative to the mapping's destination. ** stands for any number of folders. Unset for a file mapping. A
	// pattern that matches nothing is an error (PatchFailed).
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^(([^./\\\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.[^./\\\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.\.[^/\\\x00-\x1f\x7f]+)/)*([^./\\\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.[^./\\\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.\.[^/\\\x00-\x1f\x7f]+)$`
	File string `json:"file,omitempty"`
	// Maps the path of a value to its new value. A path has members joined by dots, and \. for a dot in a name. The new value
	// is a Go template, and gets the JSON type of the value that it replaces. A new member is a JSON literal if the text is one, otherwise
	// a string.
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

// MappingType is the type of a mapping's source.
//
// +kubebuilder:validation:Enum=dir;file
type MappingType string

// The types of a source. If the type is empty, the source may be either.
const (
	MappingDir  MappingType = "dir"
	MappingFile MappingType = "file"
)

// DesignerSessionPolicy says what a sync does while a Designer session is open.
//
// +kubebuilder:validation:Enum=proceed;wait;fail
type DesignerSessionPolicy string

// The policies for Designer sessions.
const (
	DesignerProceed DesignerSessionPolicy = "proceed"
	DesignerWait    DesignerSessionPolicy = "wait"
	DesignerFail    DesignerSessionPolicy = "fail"
)

// DesignerSessionScope says which Designer sessions count.
//
// +kubebuilder:validation:Enum=project;gateway
type DesignerSessionScope string

// The scopes for Designer sessions.
const (
	DesignerScopeProject DesignerSessionScope = "project"
	DesignerScopeGateway DesignerSessionScope = "gateway"
)

// ConflictPolicy says what happens to a file that both git and the gateway changed.
//
// +kubebuilder:validation:Enum=gitWins;hold;gatewayWins
type ConflictPolicy string

// The policies for conflicts.
const (
	ConflictGitWins     ConflictPolicy = "gitWins"
	ConflictHold        ConflictPolicy = "hold"
	ConflictGatewayWins ConflictPolicy = "gatewayWins"
)

// DriftPolicy says what happens to a file that only the gateway changed.
//
// +kubebuilder:validation:Enum=report;repair
type DriftPolicy string

// The policies for drift.
const (
	DriftReport DriftPolicy = "report"
	DriftRepair DriftPolicy = "repair"
)

// EmbeddedSecretPolicy says what happens to a commit with embedded secrets.
//
// +kubebuilder:validation:Enum=warn;refuse
type EmbeddedSecretPolicy string

// The policies for embedded secrets.
const (
	EmbeddedSecretWarn   EmbeddedSecretPolicy = "warn"
	EmbeddedSecretRefuse EmbeddedSecretPolicy = "refuse"
)

// Prune says what a sync deletes.
//
// +kubebuilder:validation:Enum=owned;mirror;none
type Prune string

// The ways to prune.
const (
	PruneOwned  Prune = "owned"
	PruneMirror Prune = "mirror"
	PruneNone   Prune = "none"
)

// Startup says when a gateway starts.
//
// +kubebuilder:validation:Enum=useExisting;wait
type Startup string

// The ways to start.
const (
	StartupUseExisting Startup = "useExisting"
	StartupWait        Startup = "wait"
)
