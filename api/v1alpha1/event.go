package v1alpha1

// Reasons of Events. An Event is sent once per transition, about a GatewaySync, a ConfigSync or the pod of a gateway. Warnings about
// gateways are sent about their GatewaySync, too: one Event for all gateways with the same reason.
const (
	// EventRefResolved means that the desired ref was resolved to a commit, after it could not be resolved or after it changed.
	EventRefResolved = "RefResolved"
	// EventRefUpdated means that the desired ref moved to another commit.
	EventRefUpdated = "RefUpdated"
	// EventRefResolutionFailed means that the desired ref could not be resolved.
	EventRefResolutionFailed = "RefResolutionFailed"
	// EventSyncCompleted means that a gateway, or all of them, run the target commit, verified, or that a run of a ConfigSync succeeded.
	EventSyncCompleted = "SyncCompleted"
	// EventSyncFailed means that a gateway's sync or a run of a ConfigSync failed, a GatewaySync is invalid, or its progressDeadline
	// has passed.
	EventSyncFailed = "SyncFailed"
	// EventSyncHeld means that a gateway's sync, a rollout or a run of a ConfigSync waits for a user or a policy.
	EventSyncHeld = "SyncHeld"
	// EventConflictDetected means that a gateway's sync waits, because git brings files that have other content on the gateway.
	EventConflictDetected = "ConflictDetected"
	// EventGatewayFilesModified means that files were changed on the gateway since they were written.
	EventGatewayFilesModified = "GatewayFilesModified"
	// EventGatewayFilesReplaced means that a sync replaced files that a user had changed; lost+found has the user's version.
	EventGatewayFilesReplaced = "GatewayFilesReplaced"
	// EventDesignerSessionActive means that a gateway's sync waits for the end of a Designer session.
	EventDesignerSessionActive = "DesignerSessionActive"
	// EventLeadElected means that an agent became the lead: the first of a GatewaySync, or another one than before.
	EventLeadElected = "LeadElected"
	// EventRollbackCompleted means that the commit of a rollback runs on all gateways, or a run of a ConfigSync applied it.
	EventRollbackCompleted = "RollbackCompleted"
	// EventRollbackRequested means that a commit of a ConfigSync failed, and spec.rollbackOnFailure requested the last good one.
	EventRollbackRequested = "RollbackRequested"
	// EventAutoRollbackPerformed means that a gateway could not load the target commit, and was rolled back.
	EventAutoRollbackPerformed = "AutoRollbackPerformed"
	// EventStageOpened means that a rollout reached a stage, whose gateways may now follow the target.
	EventStageOpened = "StageOpened"
	// EventCanaryStageFailed means that a stage failed, and the rollout stopped. Any stage can fail, not only a canary.
	EventCanaryStageFailed = "CanaryStageFailed"
	// EventPRCreated means that the pull request with a gateway's changes is open.
	EventPRCreated = "PRCreated"
	// EventPRUpdated means that newer changes of the gateway were added to its open pull request.
	EventPRUpdated = "PRUpdated"
	// EventPRMerged means that the pull request with a gateway's changes was merged.
	EventPRMerged = "PRMerged"
	// EventPRClosed means that the pull request with a gateway's changes was closed without a merge.
	EventPRClosed = "PRClosed"
	// EventChangesRefused means that a gateway's changes are not proposed, because they must not leave it or cannot be expressed in git.
	EventChangesRefused = "ChangesRefused"
	// EventNotInjected means that a pod that asks for an agent has none.
	EventNotInjected = "NotInjected"
	// EventPodEvictedForRepair means that a pod was evicted, so that its successor has an agent, or accepts the agent's API key.
	EventPodEvictedForRepair = "PodEvictedForRepair"
	// EventRepairStopped means that the successor of an evicted pod does not start, so no other pod of its GatewaySync is evicted; or that the
	// injector does not evict a pod whose gateway has to start again to accept the agent's API key. The message says which.
	EventRepairStopped = "RepairStopped"
	// EventPruned means that objects of a ConfigSync that git no longer has were deleted.
	EventPruned = "Pruned"
	// EventReleased means that a ConfigSync with deletionPolicy Delete was deleted. The message names the objects that stay.
	EventReleased = "Released"
	// EventDriftRepaired means that objects of a ConfigSync that were changed in the cluster were restored.
	EventDriftRepaired = "DriftRepaired"
)
