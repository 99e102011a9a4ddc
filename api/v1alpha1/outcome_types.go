package v1alpha1

// OutcomePhase is how far the gateways, or the objects of a ConfigSync, are with the desired ref.
//
// +kubebuilder:validation:Enum=Progressing;Succeeded;Failed;Held;Paused
type OutcomePhase string

// The phases of an outcome.
const (
	// OutcomeProgressing means that work is under way, or that there is no gateway yet.
	OutcomeProgressing OutcomePhase = "Progressing"
	// OutcomeSucceeded means that every gateway runs the commit and has handled the request, or that the last run of the ConfigSync succeeded.
	OutcomeSucceeded OutcomePhase = "Succeeded"
	// OutcomeFailed means that no retry succeeds until the spec, the request, the commit or a gateway changes.
	OutcomeFailed OutcomePhase = "Failed"
	// OutcomeHeld means that all gateways that do not run the commit wait for a user, for example to close a Designer, or that the last run of
	// the ConfigSync waits for one.
	OutcomeHeld OutcomePhase = "Held"
	// OutcomePaused means that all gateways that do not run the commit are paused or make dry runs only, or that the ConfigSync is paused or
	// makes dry runs only.
	OutcomePaused OutcomePhase = "Paused"
)

// Outcome says how far the gateways, or the objects of a ConfigSync, are with the desired ref. It is valid for the spec and the request that
// the status observed. That of a GatewaySync is valid while the status is confirmed.
type Outcome struct {
	// How far the gateways or the objects are: Progressing, Succeeded, Failed, Held or Paused.
	// +required
	Phase OutcomePhase `json:"phase"`
	// Desired ref. Empty if the request names no valid ref.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Ref string `json:"ref,omitempty"`
	// Commit that the desired ref resolves to. Empty until git was polled for the request.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	Commit string `json:"commit,omitempty"`
	// Number of gateways. A ConfigSync has none.
	// +optional
	Total int32 `json:"total,omitempty"`
	// Number of gateways that run the commit.
	// +optional
	Synced int32 `json:"synced,omitempty"`
	// Number of gateways that failed, and that a retry does not help.
	// +optional
	Failed int32 `json:"failed,omitempty"`
	// Reason for the phase.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason Reason `json:"reason,omitempty"`
	// Explanation of the phase in one line.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// Approval is what an approval would approve now.
type Approval struct {
	// Commit to approve: that of the desired ref.
	// +required
	// +kubebuilder:validation:MaxLength=40
	Commit string `json:"commit"`
	// Stage that waits for an approval. Empty if none does.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Stage string `json:"stage,omitempty"`
	// Whether an approval can let the commit through the maintenance windows: there are some, and a gateway does not run the commit.
	// +optional
	Window bool `json:"window,omitempty"`
}

// Rollback is what a rollback would request now.
type Rollback struct {
	// Last good commit (status.lastGood). Empty if it is the desired commit.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	Commit string `json:"commit,omitempty"`
	// Commit that the ref of the spec resolves to now. The rollback lapses when the ref moves to another commit. Empty if a request led
	// to the desired commit.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	Unless string `json:"unless,omitempty"`
	// The commit, an @ and the ref of the spec: the annotation stoker.io/requested-over of the rollback, without its time. Empty if commit
	// is.
	// +optional
	// +kubebuilder:validation:MaxLength=296
	Over string `json:"over,omitempty"`
}
