// Package decide says what the agent of one gateway does next, as functions from values to values:
//
//	Next                    what happens to the order in force, by SyncTarget, GatewaySync, volume and rollout
//	Closed, Pause           what a closed gate allows, and when a pause begins and ends
//	RolloutRollback         what a rollback of a rollout reports
//	Delivery                whether a sync waits for a maintenance window, or for the validation webhook
//	Restore                 whether a snapshot replaces the target
//	Failures                when a gateway that cannot load the target rolls back automatically
//	Wait, Proposal, Drift   when a sync replaces or repairs changes that were made on the gateway
//	Schedule                what happens next to a proposal of these changes, and when
//
// Its callers read the objects, the disk and the clock, and obey. If only a newer GatewaySync could change a step, the step says so (Step.Ask),
// and the caller reads the object and asks again.
package decide
