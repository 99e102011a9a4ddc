package v1alpha1

import (
	"cmp"
	"time"
)

// DeploymentSpec says in which order and at which times gateways may change.
type DeploymentSpec struct {
	// Stages of a rollout, in their order. A commit or a changed spec reaches a stage when all gateways of the earlier stages run it,
	// verified, and stayed healthy. A gateway belongs to the first stage that names it; gateways in no stage come last. A stage without
	// gateways holds the rollout until the stage is approved. A commit that already ran on every gateway (status.history) skips the stages.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Stages []Stage `json:"stages,omitempty"`
	// Order of the gateways within a stage, or of all gateways if there are no stages. A gateway belongs to the first entry that names it.
	// Gateways without an entry have weight 100.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=256
	SyncOrder []SyncOrderEntry `json:"syncOrder,omitempty"`
	// When commits are delivered. A gateway without a window of kind allow gets them at any time. A window of kind deny overrides those of
	// kind allow. Windows never delay drift repair, a rollback, a restored snapshot, a forced sync, the first sync of a gateway, or a commit
	// approved with "stoker approve --window". A sync that has begun is completed, even if its window ends.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Windows []MaintenanceWindow `json:"windows,omitempty"`
}

// Stage is a group of gateways that a rollout reaches at the same time.
type Stage struct {
	// Name of the stage, which approvals and messages show. It must not be window, which approvals
	// use for maintenance windows.
	// +required
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self != 'window'",message="stands for the maintenance windows in approvals: use another name"
	Name string `json:"name"`
	// Names of the gateways of this stage, or patterns with "*". Both nodes of a redundant pair belong in one stage.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[-.*A-Za-z0-9_]+$`
	Gateways []string `json:"gateways"`
	// How long the gateways of this stage must run the commit, healthy, before the next stage begins: a duration from 0s to 24h. Default: 0s.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^([0-9]{1,8}ms|[0-9]{1,5}(\.[0-9]{1,6})?[smh])+$') && duration(self) <= duration('24h')`,message="must be a duration from 0s to 24h: numbers with units, such as 30s or 2h"
	PostSyncWait string `json:"postSyncWait,omitempty"`
	// Request that must succeed before the next stage begins.
	// +optional
	HealthCheck *HealthCheck `json:"healthCheck,omitempty"`
	// If true, the stage begins when a user has approved it for the commit, with "stoker approve".
	// +optional
	RequireApproval bool `json:"requireApproval,omitempty"`
}

// HealthCheck is a GET request that the lead repeats from the time when the gateways of a stage have synced until postSyncWait is over.
// The lead follows no redirects, and refuses loopback and link-local addresses.
type HealthCheck struct {
	// URL to request, such as http://dev-gateway:8088/StatusPing.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^https?://[^/?#@\s\x00-\x1f\x7f-][^@\s\x00-\x1f\x7f]*$`
	URL string `json:"url"`
	// Status code of a healthy answer. Default: 200.
	// +optional
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=599
	ExpectedStatus int32 `json:"expectedStatus,omitempty"`
	// How long an answer may take: a duration from 1s to 60s. Default: 10s.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^([0-9]{1,8}ms|[0-9]{1,5}(\.[0-9]{1,6})?[smh])+$') && duration(self) >= duration('1s') && duration(self) <= duration('60s')`,message="must be a duration from 1s to 60s: numbers with units, such as 10s"
	Timeout string `json:"timeout,omitempty"`
	// Number of failed checks in a row that end the rollout. Default: 3.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
	// PEM certificates to trust for this URL, in addition to those of the system.
	// +optional
	// +kubebuilder:validation:MaxLength=16384
	CABundle string `json:"caBundle,omitempty"`
	// If true, the certificate of the server is not checked.
	// +optional
	InsecureSkipVerify bool `json:"insecureSkipVerify,omitempty"`
}

// SyncOrderEntry says when gateways change, relative to the others of their stage.
type SyncOrderEntry struct {
	// Name of the gateway, or a pattern with "*".
	// +required
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-.*A-Za-z0-9_]+$`
	Name string `json:"name"`
	// Gateways with a higher weight change first, those with the same weight at the same time. Default: 100.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Weight *int32 `json:"weight,omitempty"`
}

// WindowKind says what a maintenance window does.
//
// +kubebuilder:validation:Enum=allow;deny
type WindowKind string

// The kinds of maintenance windows.
const (
	WindowAllow WindowKind = "allow"
	WindowDeny  WindowKind = "deny"
)

// MaintenanceWindow is a recurring time in which commits are delivered, or are not.
type MaintenanceWindow struct {
	// Name of the window, which messages show.
	// +required
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// Whether commits are delivered in this time, or are not. Default: allow.
	// +optional
	Kind WindowKind `json:"kind,omitempty"`
	// When the window begins: minute, hour, day, month and day of the week, as in a crontab, such as "0 22 * * 1-5".
	// +required
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[-0-9A-Za-z*/,?]+( +[-0-9A-Za-z*/,?]+){4}$`
	Schedule string `json:"schedule"`
	// How long the window lasts: a duration such as 90m or 8h, from 1m to 168h.
	// +required
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^([0-9]{1,8}ms|[0-9]{1,5}(\.[0-9]{1,6})?[smh])+$') && duration(self) >= duration('1m') && duration(self) <= duration('168h')`,message="must be a duration from 1m to 168h: numbers with units, such as 30m or 8h"
	Duration string `json:"duration"`
	// Time zone of the schedule, such as Europe/Berlin. Default: UTC.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][-+_/A-Za-z0-9]*$`
	TimeZone string `json:"timeZone,omitempty"`
	// Names of the gateways that the window is for, or patterns with "*". Default: all gateways.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[-.*A-Za-z0-9_]+$`
	Gateways []string `json:"gateways,omitempty"`
}

// Defaults and bounds of spec.deployment.
const (
	DefaultWeight              = 100
	DefaultExpectedStatus      = 200
	DefaultHealthCheckTimeout  = 10 * time.Second
	DefaultHealthCheckFailures = 3
	MaxStages                  = 16
	MaxSoak                    = 24 * time.Hour
	MaxHealthCheckTimeout      = time.Minute
)

// Soak returns PostSyncWait, at most MaxSoak; 0 if it is unset or invalid.
func (s *Stage) Soak() time.Duration {
	d, err := time.ParseDuration(s.PostSyncWait)
	if err != nil { // empty or invalid
		return 0
	}
	return min(max(d, 0), MaxSoak)
}

// Check returns the health check of the stage, with the defaults of ExpectedStatus and FailureThreshold; nil if there is none.
func (s *Stage) Check() *HealthCheck {
	if s.HealthCheck == nil {
		return nil
	}
	c := *s.HealthCheck
	c.ExpectedStatus, c.FailureThreshold = cmp.Or(c.ExpectedStatus, DefaultExpectedStatus), cmp.Or(c.FailureThreshold, DefaultHealthCheckFailures)
	return &c
}

// TimeoutDuration returns how long an answer may take: Timeout, at most MaxHealthCheckTimeout, or the default if it is less than a second.
func (c *HealthCheck) TimeoutDuration() time.Duration {
	d, err := time.ParseDuration(c.Timeout)
	if err != nil || d < time.Second { // empty, invalid or too short
		return DefaultHealthCheckTimeout
	}
	return min(d, MaxHealthCheckTimeout)
}

// InSteps reports whether gateways do not all follow a new commit at once.
func (gs *GatewaySync) InSteps() bool {
	return gs.DryRunBefore() || len(gs.Stages()) > 0 || gs.Spec.Deployment != nil && len(gs.Spec.Deployment.SyncOrder) > 0
}

// DryRunBefore reports whether every gateway makes a dry run before the first one changes.
func (gs *GatewaySync) DryRunBefore() bool {
	return gs.Spec.Validation != nil && gs.Spec.Validation.DryRunBefore
}

// Stages returns spec.deployment.stages.
func (gs *GatewaySync) Stages() []Stage {
	if gs.Spec.Deployment == nil {
		return nil
	}
	return gs.Spec.Deployment.Stages
}

// StageNames returns the names of spec.deployment.stages.
func (gs *GatewaySync) StageNames() (names []string) {
	if d := gs.Spec.Deployment; d != nil {
		for i := range d.Stages {
			names = append(names, d.Stages[i].Name)
		}
	}
	return names
}

// MaintenanceWindows returns spec.deployment.windows.
func (gs *GatewaySync) MaintenanceWindows() []MaintenanceWindow {
	if gs.Spec.Deployment == nil {
		return nil
	}
	return gs.Spec.Deployment.Windows
}
