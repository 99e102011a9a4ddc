package v1alpha1

import (
	"cmp"
	"time"
)

// ValidationSpec says what is checked before gateways change.
type ValidationSpec struct {
	// If true, every gateway plans, renders and validates a commit before the first one changes. If it fails on one of them, none changes.
	// +optional
	DryRunBefore bool `json:"dryRunBefore,omitempty"`
	// What happens if files of a commit name what neither it nor the gateway has, such as a view or a UDT type. warn adds a note to the
	// status of the gateway; refuse keeps the last commit; ignore checks nothing.
	// +optional
	// +kubebuilder:default=warn
	References ReferencePolicy `json:"references,omitempty"`
	// A service that allows or denies the planned changes of a gateway.
	// +optional
	Webhook *ValidationWebhook `json:"webhook,omitempty"`
}

// ReferencePolicy says what happens to a commit whose files name something that does not exist. The value is named ignore and not off,
// because YAML reads off as false.
//
// +kubebuilder:validation:Enum=ignore;warn;refuse
type ReferencePolicy string

// The policies for references.
const (
	ReferencesIgnore ReferencePolicy = "ignore"
	ReferencesWarn   ReferencePolicy = "warn"
	ReferencesRefuse ReferencePolicy = "refuse"
)

// ValidationWebhook is a service that allows or denies the plan of a gateway. The agent sends the commit and the names of the files that
// would change, never their content. It does not ask before the first sync of a gateway, for a repair of the delivered commit, for a
// rollback, or for a restored snapshot.
type ValidationWebhook struct {
	// URL that the agents POST to: https, without credentials. Agents follow no redirects, and refuse loopback and link-local addresses.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^https://[^/?#@\s\x00-\x1f\x7f-][^#@\s\x00-\x1f\x7f]*$')`,message="use https://host/path, without credentials"
	URL string `json:"url"`
	// How long an answer may take: a duration from 1s to 60s.
	// +optional
	// +kubebuilder:default="10s"
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^([0-9]{1,8}ms|[0-9]{1,5}(\.[0-9]{1,6})?[smh])+$') && duration(self) >= duration('1s') && duration(self) <= duration('60s')`,message="must be a duration from 1s to 60s: a number with a unit, such as 10s"
	Timeout string `json:"timeout,omitempty"`
	// Secret that signs every request: the header X-Hub-Signature-256 has the HMAC-SHA-256 of the body. If the secret has several lines,
	// the first one is used.
	// +optional
	SecretRef *SecretKeyRef `json:"secretRef,omitempty"`
	// PEM certificates to trust for the service, in addition to those of the system.
	// +optional
	CASecretRef *SecretKeyRef `json:"caSecretRef,omitempty"`
	// What happens if the service does not answer, or its answer is invalid. Fail: the gateway does not change, and the agent asks again.
	// Ignore: the gateway changes, and its status has a note.
	// +optional
	// +kubebuilder:default=Fail
	FailurePolicy FailurePolicy `json:"failurePolicy,omitempty"`
}

// FailurePolicy says what happens if a service does not answer.
//
// +kubebuilder:validation:Enum=Fail;Ignore
type FailurePolicy string

// The failure policies.
const (
	FailurePolicyFail   FailurePolicy = "Fail"
	FailurePolicyIgnore FailurePolicy = "Ignore"
)

// The default and the bound of spec.validation.webhook.timeout.
const (
	DefaultValidationTimeout = 10 * time.Second
	MaxValidationTimeout     = time.Minute
)

// ReferencePolicy returns spec.validation.references, or its default.
func (gs *GatewaySync) ReferencePolicy() ReferencePolicy {
	if gs.Spec.Validation == nil {
		return ReferencesWarn
	}
	return cmp.Or(gs.Spec.Validation.References, ReferencesWarn)
}
