package v1alpha1

import (
	"slices"
)

// AlertingSpec configures the notifications that stoker notify sends about the gateways.
type AlertingSpec struct {
	// If false, no message is sent.
	// +optional
	Enabled bool `json:"enabled,omitempty"`
	// Receivers of the messages.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	Webhooks []AlertWebhook `json:"webhooks,omitempty"`
}

// AlertType is a protocol of notifications.
//
// +kubebuilder:validation:Enum=slack;pagerduty;teams;webhook;commit-status
type AlertType string

// The protocols.
const (
	AlertSlack        AlertType = "slack"
	AlertPagerDuty    AlertType = "pagerduty"
	AlertTeams        AlertType = "teams"
	AlertWebhookCE    AlertType = "webhook"
	AlertCommitStatus AlertType = "commit-status"
)

// AlertWebhook is one receiver of notifications. URLs and keys are in Secrets of the GatewaySync's namespace, because the URL of a Slack
// webhook is a credential.
//
// +kubebuilder:validation:XValidation:rule="self.type in ['pagerduty', 'commit-status'] || has(self.urlSecretRef)",message="urlSecretRef is required, except for pagerduty and commit-status"
// +kubebuilder:validation:XValidation:rule="(self.type in ['pagerduty', 'commit-status']) == has(self.integrationKeySecretRef)",message="integrationKeySecretRef is required for pagerduty and commit-status, and only used there"
// +kubebuilder:validation:XValidation:rule="self.type != 'commit-status' || !has(self.urlSecretRef) && (!has(self.topics) || size(self.topics) == 0)",message="commit-status uses neither urlSecretRef nor topics: the forge is that of git.repo, and each commit has one status"
// +kubebuilder:validation:XValidation:rule="self.type == 'webhook' || !has(self.signingSecretRef)",message="only messages of the type webhook are signed"
// +kubebuilder:validation:XValidation:rule="self.type != 'pagerduty' || !has(self.topics) || !self.topics.exists(w, w in ['Ready', 'RefUpdated', 'SyncCompleted', 'RollbackCompleted'])",message="a pagerduty incident cannot be about Ready, RefUpdated, SyncCompleted or RollbackCompleted: they happen once and have no end"
type AlertWebhook struct {
	// slack: an incoming webhook of Slack, or of a service with the same format. pagerduty: the Events API v2. teams: a workflow of
	// Microsoft Teams. webhook: a CloudEvent as JSON. commit-status: the status stoker/namespace/name of the desired commit at the forge of
	// git.repo. bidirectional.provider and apiBaseURL name another forge than that of the host.
	// +required
	Type AlertType `json:"type"`
	// The https URL to which messages are sent. Default for pagerduty: its public endpoint.
	// +optional
	URLSecretRef *SecretKeyRef `json:"urlSecretRef,omitempty"`
	// The integration key of a PagerDuty service, or a token of the forge that may set the status of commits.
	// +optional
	IntegrationKeySecretRef *SecretKeyRef `json:"integrationKeySecretRef,omitempty"`
	// The key with which messages of the type webhook are signed: X-Hub-Signature-256 has the HMAC-SHA-256 of the body.
	// +optional
	SigningSecretRef *SecretKeyRef `json:"signingSecretRef,omitempty"`
	// Certificates of authorities (PEM) that may have signed the certificate of the URL, in addition to those of the system.
	// +optional
	CASecretRef *SecretKeyRef `json:"caSecretRef,omitempty"`
	// The topics to send. Default: NotReady. ConfigSyncNotReady is about the ConfigSyncs of the namespace.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	Topics []AlertTopic `json:"topics,omitempty"`
}

// Wanted returns the topics to send.
func (w *AlertWebhook) Wanted() []AlertTopic {
	if len(w.Topics) == 0 {
		return []AlertTopic{"NotReady"}
	}
	return w.Topics
}

// AlertTopic is a state or an event that a notification can be about. docs/how-to/notifications.md lists what each means.
//
// +kubebuilder:validation:Enum=NotReady;AgentsAway;SyncFailed;SyncHeld;ScanFailed;RefResolutionFailed;ConflictDetected;DesignerSessionActive;MassDeletion;ApprovalNeeded;CanaryStageFailed;AutoRollbackPerformed;GatewayFilesModified;ChangesRefused;PausedForLong;ConfigSyncNotReady;Ready;RefUpdated;SyncCompleted;RollbackCompleted
type AlertTopic string

// Topics in alertStates begin and end. Topics in alertEvents happen once.
var (
	alertStates = []AlertTopic{"NotReady", "AgentsAway", "SyncFailed", "SyncHeld", "ScanFailed", "RefResolutionFailed", "ConflictDetected",
		"DesignerSessionActive", "MassDeletion", "ApprovalNeeded", "CanaryStageFailed", "AutoRollbackPerformed", "GatewayFilesModified", "ChangesRefused", "PausedForLong",
		"ConfigSyncNotReady"}
	alertEvents = []AlertTopic{"Ready", "RefUpdated", "SyncCompleted", "RollbackCompleted"}
)

// AlertTypes lists the protocols.
var AlertTypes = []AlertType{AlertSlack, AlertPagerDuty, AlertTeams, AlertWebhookCE, AlertCommitStatus}

// HappensOnce reports whether a topic has no end, so that it cannot be the topic of a PagerDuty incident.
func (t AlertTopic) HappensOnce() bool { return slices.Contains(alertEvents, t) }

// AlertTopics returns the values of AlertWebhook.Topics, states first.
func AlertTopics() []AlertTopic { return slices.Concat(alertStates, alertEvents) }
