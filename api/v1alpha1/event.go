package v1alpha1

// Reasons of Events. Each is sent once per transition: on the GatewaySync, and on the pod where it is about one gateway.
const (
	// EventRefResolved: the desired ref was resolved to a commit, after it was not, or is another ref.
	EventRefResolved = "RefResolved"
	// EventRefUpdated: the desired ref moved to another commit, and is the same ref.
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
	// EventDesignerSessionActive: a Designer session holds a sync up.
	EventDesignerSessionActive = "DesignerSessionActive"
	// EventLeadElected: another agent leads.
	EventLeadElected = "LeadElected"
	// EventRollbackCompleted: the commit that a rollback asked for runs on all gateways, or is applied.
	EventRollbackCompleted = "RollbackCompleted"
	// EventRollbackRequested: a commit of a ConfigSync failed, and the last good one is requested, as spec.rollbackOnFailure says.
	EventRollbackRequested = "RollbackRequested"
	// EventAutoRollbackPerformed: a gateway went back by itself, because it could not load the target commit.
	EventAutoRollbackPerformed = "AutoRollbackPerformed"
	// EventStageOpened: the gateways of a stage may follow the target.
	EventStageOpened = "StageOpened"
	// EventCanaryStageFailed: a stage failed, and the rollout goes no further.
	EventCanaryStageFailed = "CanaryStageFailed"
	// EventPRCreated: the pull request with a gateway's changes is open.
	EventPRCreated = "PRCreated"
	// EventPRUpdated: newer changes of the gateway are in its open pull request.
	EventPRUpdated = "PRUpdated"
	// EventPRMerged: git has the changes of a gateway.
	EventPRMerged = "PRMerged"
	// EventPRClosed: the pull request with a gateway's changes was closed without a merge.
	EventPRClosed = "PRClosed"
	// EventChangesRefused: a gateway's changes are not proposed.
	EventChangesRefused = "ChangesRefused"
	// EventNotInjected: a pod that asks for an agent has none.
	EventNotInjected = "NotInjected"
	// EventPodEvictedForRepair: a young pod without its agent was evicted, so that it starts again with one.
	EventPodEvictedForRepair = "PodEvictedForRepair"
	// EventRepairStopped: the successor of a pod that was evicted does not come up, and no other pod of its GatewaySync is evicted.
	EventRepairStopped = "RepairStopped"
	// EventPruned: objects of a ConfigSync that git no longer has were deleted.
	EventPruned = "Pruned"
	// EventReleased: a ConfigSync is deleted, and the message lists the objects that stay.
	EventReleased = "Released"
	// EventDriftRepaired: objects of a ConfigSync that were changed in the cluster are as git has them again.
	EventDriftRepaired = "DriftRepaired"
)
