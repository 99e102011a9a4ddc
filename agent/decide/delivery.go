package decide

// Delivery is what is known about a sync before it changes the gateway. Package record knows the earlier deliveries.
type Delivery struct {
	// First reports that no sync was ever completed on this gateway.
	First bool
	// DryRun reports that nothing will be written.
	DryRun bool
	// Repair reports that the sync only restores what was delivered.
	Repair bool
	// Rollback reports that an operator requested to go back to the target, which ran here before.
	Rollback bool
	// Approved reports that a user approved the target for delivery outside the maintenance windows.
	Approved bool
	// Forced reports a force-sync request that is new.
	Forced bool
	// AccessChanged reports that a node of a redundant pair got or lost the access to its configuration.
	AccessChanged bool
	// SameCommit and SameRules report that the target, and the rules of the spec (plan.Rules: mappings, policies, …), are those of the last delivery.
	SameCommit, SameRules bool
	// LacksFiles reports that the volume may lack files of the last delivery: its manifest is incomplete, and the gateway starts only after
	// this sync or its volume is new. It is false if the volume has files of another commit than package record names: that name may come from
	// the status of the GatewaySync, which can be forged.
	LacksFiles bool
	// Recorded reports that the target is the commit that package record has as delivered last. Without a record (standalone) it is true.
	Recorded bool
}

// WaitsForWindow reports whether the delivery waits while the maintenance windows are closed. It does not wait if it
//
//	is the first one of this gateway, or only a dry run
//	repairs what was delivered, or delivers it again to a new volume
//	goes back on request, has a commit that a user approved for it, or is forced by a user
//	follows a change of the node's config access in a redundant pair
func (d Delivery) WaitsForWindow() bool {
	switch {
	case d.First, d.DryRun, d.Repair, d.Rollback, d.Approved, d.Forced, d.AccessChanged:
		return false
	case d.LacksFiles && d.Recorded:
		return false
	}
	return true
}

// NeedsReview reports whether the validation webhook must allow the delivery. It need not allow
//
//	the first one of this gateway
//	a rollback that an operator requested
//	the commit that was delivered last: under the same rules, or to a volume that lacks files of it
func (d Delivery) NeedsReview() bool {
	switch {
	case d.First, d.Rollback:
		return false
	case d.SameCommit && (d.SameRules || d.LacksFiles):
		return false
	}
	return true
}
