package v1alpha1

// Reasons of Events. An Event is sent once per transition, about the GatewaySync, and also about the pod if it concerns one gateway.
const (
	// EventRefResolved: the desired ref was resolved to a commit, after it could not be resolved or after it changed.
	EventRefResolved = "RefResolved"
	// EventRefUpdated: the desired ref moved to another commit.
	EventRefUpdated = "RefUpdated"
	// EventRefResolutionFailed: the desired ref could not be resolved.
	EventRefResolutionFailed = "RefResolutionFailed"
	// EventSyncCompleted: a gateway, or all of them, run the target commit, verified.
	EventSyncCompleted = "SyncCompleted"
	// EventSyncFailed: a gateway's sync failed.
	EventSyncFailed = "SyncFailed"
	// EventSyncHeld: a gateway's sync waits for a user or a policy.
	EventSyncHeld = "SyncHeld"
	// EventConflictDetected: a file was changed on the gateway and in git.
	EventConflictDetected = "ConflictDetected"
	// EventGatewayFilesModified: files were changed on the gateway since they were written.
	EventGatewayFilesModified = "GatewayFilesModified"
	// EventGatewayFilesReplaced: a sync replaced files that a user had changed; lost+found has the user's version.
	EventGatewayFilesReplaced = "GatewayFilesReplaced"
	// EventDesignerSessionActive: a sync waits for the end of a Designer session.
	EventDesignerSessionActive = "DesignerSessionActive"
	// EventLeadElected: another agent became the lead.
	EventLeadElected = "LeadElected"
	// EventRollbackCompleted: the commit of a rollback runs on all gateways, or is applied.
	EventRollbackCompleted = "RollbackCompleted"
	// EventRollbackRequested: a commit of a ConfigSync failed, and the last good one is requested, as spec.rollbackOnFailure says.
	EventRollbackRequested = "RollbackRequested"
	// EventAutoRollbackPerformed: a gateway could not load the target commit, and was rolled back.
	EventAutoRollbackPerformed = "AutoRollbackPerformed"
	// EventStageOpened: a rollout reached a stage, whose gateways may now follow the target.
	EventStageOpened = "StageOpened"
	// EventCanaryStageFailed: a stage failed, and the rollout stopped.
	EventCanaryStageFailed = "CanaryStageFailed"
	// EventPRCreated: the pull request with a gateway's changes is open.
	EventPRCreated = "PRCreated"
	// EventPRUpdated: newer changes of the gateway were added to its open pull request.
	EventPRUpdated = "PRUpdated"
	// EventPRMerged: the pull request with a gateway's changes was merged.
	EventPRMerged = "PRMerged"
	// EventPRClosed: the pull request with a gateway's changes was closed without a merge.
	EventPRClosed = "PRClosed"
	// EventChangesRefused: a gateway's changes are not proposed.
	EventChangesRefused = "ChangesRefused"
	// EventNotInjected: a pod that asks for an agent has none.
	EventNotInjected = "NotInjected"
	// EventPodEvictedForRepair: a new pod without its agent was evicted, so that it is created again with one.
	EventPodEvictedForRepair = "PodEvictedForRepair"
	// EventRepairStopped: the successor of an evicted pod does not start, so no other pod of its GatewaySync is evicted.
	EventRepairStopped = "RepairStopped"
	// EventPruned: objects of a ConfigSync that git no longer has were deleted.
	EventPruned = "Pruned"
	// EventReleased: a ConfigSync was deleted, and the objects in the message were kept.
	EventReleased = "Released"
	// EventDriftRepaired: objects of a ConfigSync that were changed in the cluster were restored.
	EventDriftRepaired = "DriftRepaired"
)
