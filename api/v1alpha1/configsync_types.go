package v1alpha1

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KindConfigSync is the kind that applies Kubernetes objects from git.
const KindConfigSync = "ConfigSync"

// ConfigSync applies Kubernetes objects from git: configuration that is not in the data directory of a gateway. `stoker config` applies
// them with the rights of its caller, `stoker config run` with those of a ServiceAccount.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=configsyncs,singular=configsync,shortName=csync,scope=Namespaced,categories=stoker
// +kubebuilder:printcolumn:name="Revision",type=string,JSONPath=`.status.sourceRevisionShort`,description="Commit of the last run"
// +kubebuilder:printcolumn:name="Targets",type=string,JSONPath=`.status.targetsReady`,description="Ready objects and all objects of the commit"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Ref",type=string,JSONPath=`.status.sourceRef`,priority=1
// +kubebuilder:printcolumn:name="Path",type=string,JSONPath=`.status.sourcePath`,priority=1
// +kubebuilder:printcolumn:name="Last Sync",type=date,JSONPath=`.status.lastSyncedTime`,priority=1,description="Time of the last sync"
// +kubebuilder:printcolumn:name="Account",type=string,JSONPath=`.spec.serviceAccountName`,priority=1
// +kubebuilder:printcolumn:name="Repo",type=string,JSONPath=`.spec.source.git.repoURL`,priority=1
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 48",message="metadata.name must have at most 48 characters"
type ConfigSync struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Desired state.
	// +required
	Spec ConfigSyncSpec `json:"spec"`
	// What the last run did. Before the first run, observedGeneration is -1, so that no reader considers the object ready.
	// +optional
	// +kubebuilder:default:={"observedGeneration":-1}
	Status ConfigSyncStatus `json:"status,omitempty"`
}

// ConfigSyncList is a list of ConfigSyncs.
//
// +kubebuilder:object:root=true
type ConfigSyncList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ConfigSync `json:"items"`
}

// ConfigSyncSpec says which objects are applied, and how.
//
// +kubebuilder:validation:XValidation:rule="!has(self.rollbackOnFailure) || self.rollbackOnFailure == 'None' || (has(self.source.git) && (!has(self.apply) || !has(self.apply.wait) || self.apply.wait))",message="LastGood needs source.git, and apply.wait",fieldPath=".rollbackOnFailure"
type ConfigSyncSpec struct {
	// Source of the objects.
	// +required
	Source ConfigSource `json:"source"`
	// Objects to apply. Default: every object below the path. A target that selects nothing is an error (SourceMissing), so that a mistyped
	// name prunes nothing.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=500
	Targets []ConfigTarget `json:"targets,omitempty"`
	// How often stoker config run polls git and checks the objects. A duration from 5s to 24h, with a jitter of a tenth.
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^([0-9]{1,8}ms|[0-9]{1,5}(\.[0-9]{1,6})?[smh])+$') && duration(self) >= duration('5s') && duration(self) <= duration('24h')`,message="must be a duration from 5s to 24h: numbers with units, such as 30s, 5m or 1h30m"
	RefreshInterval string `json:"refreshInterval,omitempty"`
	// ServiceAccount of this namespace with whose rights stoker config run reads Secrets and applies objects.
	// +optional
	// +kubebuilder:default=stoker-config
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
	// The cluster in which objects are applied. Default: that of the ConfigSync.
	// +optional
	KubeConfig *ConfigCluster `json:"kubeConfig,omitempty"`
	// How manifests become objects.
	// +optional
	Render ConfigRender `json:"render,omitempty"`
	// How objects are applied.
	// +optional
	// +kubebuilder:default={}
	Apply ConfigApply `json:"apply,omitempty"`
	// What is deleted. owned: objects that this ConfigSync applied and git no longer has. none: nothing.
	// +optional
	// +kubebuilder:default=owned
	// +kubebuilder:validation:XValidation:rule="self != 'mirror'",message="use owned or none: a ConfigSync deletes only what it applied"
	Prune Prune `json:"prune,omitempty"`
	// What happens to the objects when the ConfigSync is deleted. Orphan keeps them. Delete makes stoker config run delete those that it
	// may prune, also with `prune: none` or while paused, and keeps the ConfigSync until then.
	// +optional
	// +kubebuilder:default=Orphan
	DeletionPolicy ConfigDeletionPolicy `json:"deletionPolicy,omitempty"`
	// How long a run waits for objects to become healthy. A duration such as 90s or 10m, from 1s to 24h.
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^([0-9]{1,8}ms|[0-9]{1,5}(\.[0-9]{1,6})?[smh])+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')`,message="must be a duration from 1s to 24h: numbers with units, such as 30s, 5m or 1h30m"
	ProgressDeadline string `json:"progressDeadline,omitempty"`
	// What happens if a commit is only partly applied, or does not become healthy before progressDeadline. None keeps it. LastGood requests
	// the last commit that was applied from this path with all objects healthy, as stoker rollback does, until the ref moves on.
	// +optional
	// +kubebuilder:default=None
	RollbackOnFailure ConfigRollback `json:"rollbackOnFailure,omitempty"`
	// Objects of this namespace that must be ready first, each at the commit of its own source. A dependency with the same repository and
	// ref, or the same GatewaySync, must be ready at the commit that this ConfigSync is about to apply.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	DependsOn []ConfigDependency `json:"dependsOn,omitempty"`
	// Which callers may make requests over HTTP: reports of a push, and requests for a ref.
	// +optional
	// +kubebuilder:default={}
	Webhook WebhookSpec `json:"webhook,omitempty"`
	// If true, nothing is applied or pruned. The annotation stoker.io/paused does the same without a change of the spec.
	// +optional
	Paused bool `json:"paused,omitempty"`
}

// ConfigCluster names another cluster.
type ConfigCluster struct {
	// Secret with a kubeconfig.
	// +required
	SecretRef ConfigKeyRef `json:"secretRef"`
}

// ConfigKeyRef names a key of a Secret in the ConfigSync's own namespace.
type ConfigKeyRef struct {
	ConfigObjectRef `json:",inline"`
	// Key within the Secret.
	// +optional
	// +kubebuilder:default=value
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	Key string `json:"key,omitempty"`
}

// ConfigDependency names a ConfigSync or a GatewaySync of the same namespace.
type ConfigDependency struct {
	// Kind of the object. Default: ConfigSync.
	// +optional
	Kind ConfigDependencyKind `json:"kind,omitempty"`
	// Name of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=48
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`
	Name string `json:"name"`
}

// ConfigDependencyKind is a kind that a ConfigSync can depend on.
//
// +kubebuilder:validation:Enum=ConfigSync;GatewaySync
type ConfigDependencyKind string

// The kinds of dependencies.
const (
	DependsOnConfigSync  ConfigDependencyKind = KindConfigSync
	DependsOnGatewaySync ConfigDependencyKind = KindGatewaySync
)

// EffectiveKind returns the kind of the dependency, with its default.
func (d *ConfigDependency) EffectiveKind() ConfigDependencyKind {
	return cmp.Or(d.Kind, DependsOnConfigSync)
}

// ConfigSource is either a repository, or the commit that the gateways of a GatewaySync run.
//
// +kubebuilder:validation:XValidation:rule="[has(self.git), has(self.gatewaySync)].filter(x, x).size() == 1",message="set one of git and gatewaySync"
type ConfigSource struct {
	// A repository and a ref.
	// +optional
	Git *ConfigGit `json:"git,omitempty"`
	// A GatewaySync whose repository, credentials and commit are used, so that objects and the files of gateways have one version.
	// +optional
	GatewaySync *ConfigFollow `json:"gatewaySync,omitempty"`
}

// ConfigGit names a repository, a ref and a path.
//
// +kubebuilder:validation:XValidation:rule=`self.repoURL.matches(r'^((https?|ssh)://[^/?#\s\x00-\x1f\x7f-][^?#\s\x00-\x1f\x7f]*|([A-Za-z0-9_][A-Za-z0-9._~-]*@)?([A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\]):(/?[^:/\s\x00-\x1f\x7f-][^\s\x00-\x1f\x7f]*))$')`,message="is not a URL that a ConfigSync reads: use https://host/path, ssh://host/path, user@host:path or http://host/path, without ? and #",fieldPath=".repoURL"
// +kubebuilder:validation:XValidation:rule="(!has(self.authMethod) || self.authMethod == 'none') == !has(self.authSecretRef)",message="authMethod and authSecretRef go together: set both, or neither"
// +kubebuilder:validation:XValidation:rule="!has(self.authMethod) || self.authMethod == 'none' || (self.authMethod == 'ssh') != (self.repoURL.startsWith('http://') || self.repoURL.startsWith('https://'))",message="authMethod must match repoURL: ssh for an ssh address, https or githubApp for an http address"
type ConfigGit struct {
	ConfigFiles `json:",inline"`
	// URL of the repository: https://, ssh://, user@host:path, or http:// (not encrypted). It must not have a query. Put credentials in
	// authSecretRef.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	RepoURL string `json:"repoURL"`
	// Branch to follow. Without branch and revision, it is HEAD of the repository.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^[^-/\x00-\x20~^:?*\[\\\x7f][^\x00-\x20~^:?*\[\\\x7f]*$')`,message="must not start with - or /, nor hold a space, a control character, a backslash, or one of ~ ^ : ? * ["
	// +kubebuilder:validation:XValidation:rule="self != '@' && !self.contains('..') && !self.contains('//') && !self.contains('@{') && !self.contains('/.') && !self.startsWith('.') && !self.endsWith('/') && !self.endsWith('.') && !self.endsWith('.lock') && !self.contains('.lock/')",message="must be a name that git allows for refs: no .. // /. @{ within, no . at the start, no / . or .lock at the end, and not @ alone"
	Branch string `json:"branch,omitempty"`
	// Commit, tag or branch. It overrides branch. If both are set, a commit must be in the history of the branch.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^[^-/\x00-\x20~^:?*\[\\\x7f][^\x00-\x20~^:?*\[\\\x7f]*$')`,message="must not start with - or /, nor hold a space, a control character, a backslash, or one of ~ ^ : ? * ["
	// +kubebuilder:validation:XValidation:rule="self != '@' && !self.contains('..') && !self.contains('//') && !self.contains('@{') && !self.contains('/.') && !self.startsWith('.') && !self.endsWith('/') && !self.endsWith('.') && !self.endsWith('.lock') && !self.contains('.lock/')",message="must be a name that git allows for refs: no .. // /. @{ within, no . at the start, no / . or .lock at the end, and not @ alone"
	Revision string `json:"revision,omitempty"`
	// Patterns of the refs that a request (annotation, command line, webhook) may name. With refs/ they match full names, otherwise names
	// of branches and tags. A requested commit must be reachable from one of these refs. Default: all branches and tags.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	AllowedRefs []string `json:"allowedRefs,omitempty"`
	// How to authenticate to the git host: ssh for an ssh address, https or githubApp for https:// and http://.
	// +optional
	// +kubebuilder:default=none
	AuthMethod ConfigAuthMethod `json:"authMethod,omitempty"`
	// Secret with the credentials. Keys for ssh: ssh-privatekey and known_hosts. For https: password or token, and username. For githubApp:
	// appId, installationId, privateKey and apiBaseURL. For all: ca.crt.
	// +optional
	AuthSecretRef *ConfigObjectRef `json:"authSecretRef,omitempty"`
}

// ConfigFollow names a GatewaySync of the same namespace, whose commit is applied.
type ConfigFollow struct {
	ConfigFiles `json:",inline"`
	// Name of the GatewaySync.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=48
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`
	Name string `json:"name"`
}

// ConfigFiles says which files of the repository are read.
type ConfigFiles struct {
	// One file, or a folder and all below it, relative to the root of the repository. A Go template.
	// +optional
	// +kubebuilder:default="."
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.contains('//') && !self.contains('/../') && !self.contains('/./') && !self.startsWith('../') && !self.endsWith('/..') && !self.endsWith('/.') && self != '..'",message="must be a path below its root: leave out a / at the start, .. and . between slashes, and empty parts"
	// +kubebuilder:validation:XValidation:rule=`!self.matches(r'[\\\x00-\x1f\x7f]')`,message="must have folders separated by /, no backslashes and no control characters"
	Path string `json:"path,omitempty"`
	// More files or folders, in this order: an object of a later one replaces the object of the same kind, namespace and name.
	// Go templates.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Overlays []ConfigPath `json:"overlays,omitempty"`
	// Patterns of paths below the root that are not read, except by kustomize, Helm and Jsonnet. ** stands for any number of folders, a trailing
	// slash for a folder and all below it. Never read as manifests: names that begin with a dot, values.yaml,
	// values.schema.json, tsconfig.json, and files of npm and compose.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	Excludes []string `json:"excludes,omitempty"`
}

// ConfigPath is a path of the repository, relative to its root.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=1024
// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.contains('//') && !self.contains('/../') && !self.contains('/./') && !self.startsWith('../') && !self.endsWith('/..') && !self.endsWith('/.') && self != '..'",message="must be a path below its root: leave out a / at the start, .. and . between slashes, and empty parts"
// +kubebuilder:validation:XValidation:rule=`!self.matches(r'[\\\x00-\x1f\x7f]')`,message="must have folders separated by /, no backslashes and no control characters"
type ConfigPath string

// ConfigObjectRef names a Secret or a ConfigMap in the ConfigSync's own namespace.
type ConfigObjectRef struct {
	// Name of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`
	Name string `json:"name"`
}

// ConfigTarget selects objects, or makes one from files.
//
// +kubebuilder:validation:XValidation:rule="!has(self.fromFiles) || (self.type in ['ConfigMap', 'Secret'] && has(self.name))",message="fromFiles makes a ConfigMap or a Secret with a name"
type ConfigTarget struct {
	// Kind of the objects, or Kind.group such as StatefulSet.apps.
	// +required
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^[A-Z][A-Za-z0-9]{0,62}(\.[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?$`
	Type string `json:"type"`
	// Namespace of the objects. Default: any. With fromFiles: the namespace of the ConfigSync.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`
	Namespace string `json:"namespace,omitempty"`
	// Name of the object. Default: all objects of the type.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([A-Za-z0-9:._-]*[A-Za-z0-9])?$`
	Name string `json:"name,omitempty"`
	// Files that become the data of a ConfigMap or a Secret, at most 1 MiB in total.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	FromFiles []ConfigFile `json:"fromFiles,omitempty"`
}

// ConfigFile is a file that becomes a key of an object.
type ConfigFile struct {
	// File of the repository, relative to its root.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^(([^./\\\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.[^./\\\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.\.[^/\\\x00-\x1f\x7f]+)/)*([^./\\\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.[^./\\\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.\.[^/\\\x00-\x1f\x7f]+)$`
	Path string `json:"path"`
	// Key in the data. Default: the name of the file.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	Key string `json:"key,omitempty"`
}

// ConfigRender says how manifests become objects.
type ConfigRender struct {
	// If true, manifests are Go templates with .CRName, .Namespace, .Ref, .Commit, .Path and .Vars.
	// +optional
	Template bool `json:"template,omitempty"`
	// Variables for templates: {{.Vars.name}} or {{.name}}.
	// +optional
	// +kubebuilder:validation:MaxProperties=128
	Vars map[string]VarValue `json:"vars,omitempty"`
	// ConfigMaps and Secrets whose keys are variables, too, such as those that differ between clusters. A later object overrides an earlier
	// one, and vars overrides all. Values of Secrets are available in manifests, but not in paths.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	VarsFrom []ConfigVars `json:"varsFrom,omitempty"`
	// What happens to a folder with a kustomization. Auto builds it, Never refuses it.
	// +optional
	// +kubebuilder:default=Auto
	Kustomize ConfigKustomize `json:"kustomize,omitempty"`
	// Files of values for Helm charts, relative to the root of the repository; a later one overrides an earlier one. Go templates.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	ValuesFiles []ConfigPath `json:"valuesFiles,omitempty"`
	// Name of the release that charts see. Default: the name of the ConfigSync.
	// +optional
	// +kubebuilder:validation:MaxLength=53
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`
	ReleaseName string `json:"releaseName,omitempty"`
}

// ConfigVars names an object whose keys are variables.
//
// +kubebuilder:validation:XValidation:rule="has(self.configMapRef) != has(self.secretRef)",message="set one of configMapRef and secretRef"
type ConfigVars struct {
	// A ConfigMap.
	// +optional
	ConfigMapRef *ConfigObjectRef `json:"configMapRef,omitempty"`
	// A Secret.
	// +optional
	SecretRef *ConfigObjectRef `json:"secretRef,omitempty"`
	// If true, the object may be missing.
	// +optional
	Optional bool `json:"optional,omitempty"`
}

// ConfigApply says how objects are applied.
type ConfigApply struct {
	// What happens if another manager owns fields that git sets. gitWins takes them over, hold changes nothing and waits for a user.
	// +optional
	// +kubebuilder:default=gitWins
	ConflictPolicy ConfigConflictPolicy `json:"conflictPolicy,omitempty"`
	// What happens to an object that was changed in the cluster and not in git. repair restores it; report lists the fields that differ,
	// and does not change the object until git does. An object that was deleted is created again in both cases.
	// +optional
	// +kubebuilder:default=repair
	DriftPolicy ConfigDriftPolicy `json:"driftPolicy,omitempty"`
	// Which existing objects this ConfigSync takes over. equal: those that are equal to git. always: all that no other ConfigSync owns.
	// +optional
	// +kubebuilder:default=equal
	AdoptPolicy ConfigAdoptPolicy `json:"adoptPolicy,omitempty"`
	// If false, a run does not wait until the objects are healthy.
	// +optional
	// +kubebuilder:default=true
	Wait *bool `json:"wait,omitempty"`
	// If true, a run reports its plan and changes nothing.
	// +optional
	DryRun bool `json:"dryRun,omitempty"`
}

// ConfigKustomize says whether kustomizations are built.
//
// +kubebuilder:validation:Enum=Auto;Never
type ConfigKustomize string

// The policies for kustomizations.
const (
	ConfigKustomizeAuto  ConfigKustomize = "Auto"
	ConfigKustomizeNever ConfigKustomize = "Never"
)

// ConfigConflictPolicy says what happens if another manager owns a field that git sets.
//
// +kubebuilder:validation:Enum=gitWins;hold
type ConfigConflictPolicy string

// The policies for conflicts.
const (
	ConfigGitWins ConfigConflictPolicy = "gitWins"
	ConfigHold    ConfigConflictPolicy = "hold"
)

// ConfigDriftPolicy says what happens to an object that was changed in the cluster.
//
// +kubebuilder:validation:Enum=repair;report
type ConfigDriftPolicy string

// The policies for drift.
const (
	ConfigDriftRepair ConfigDriftPolicy = "repair"
	ConfigDriftReport ConfigDriftPolicy = "report"
)

// ConfigDeletionPolicy says what happens to the objects of a ConfigSync that is deleted.
//
// +kubebuilder:validation:Enum=Orphan;Delete
type ConfigDeletionPolicy string

// The policies for deletion.
const (
	ConfigOrphan ConfigDeletionPolicy = "Orphan"
	ConfigDelete ConfigDeletionPolicy = "Delete"
)

// ConfigAdoptPolicy says which existing objects a ConfigSync takes over.
//
// +kubebuilder:validation:Enum=equal;always
type ConfigAdoptPolicy string

// The policies for adoption.
const (
	ConfigAdoptEqual  ConfigAdoptPolicy = "equal"
	ConfigAdoptAlways ConfigAdoptPolicy = "always"
)

// ConfigRollback says what happens if a commit cannot be applied or does not become healthy.
//
// +kubebuilder:validation:Enum=None;LastGood
type ConfigRollback string

// The policies for commits that fail.
const (
	ConfigRollbackNone     ConfigRollback = "None"
	ConfigRollbackLastGood ConfigRollback = "LastGood"
)

// FinalizerConfigSync keeps a ConfigSync with deletionPolicy Delete until its objects are deleted.
const FinalizerConfigSync = "stoker.io/configsync"

// Annotations of objects that a ConfigSync applies.
const (
	// AnnotationConfigSync marks an object with the namespace and the name of the ConfigSync that owns it, with / between them.
	AnnotationConfigSync = "stoker.io/configsync"
	// AnnotationConfigDigest is a digest of the manifest that was applied last. An object with the same digest and the same
	// fields needs no dry run.
	AnnotationConfigDigest = "stoker.io/configsync-digest"
	// AnnotationConfigPrune with the value disabled keeps an object that git no longer has. The ConfigSync gives it up.
	AnnotationConfigPrune = "stoker.io/prune"
	// AnnotationConfigRecreate with the value enabled deletes the object and creates it again if git changes a field that cannot be
	// changed. Its pods stop. Namespaces, CustomResourceDefinitions and PersistentVolumeClaims are never recreated.
	AnnotationConfigRecreate = "stoker.io/recreate"
	// AnnotationConfigWait with the value disabled means that no run waits for the object to become healthy.
	AnnotationConfigWait = "stoker.io/wait"
)
