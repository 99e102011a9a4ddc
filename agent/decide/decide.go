// Package decide says what the agent of one gateway may do next, as functions from values to values: whether a target passes the gate of a
// rollout (Gate), and whether a delivery waits for a maintenance window or for the validation webhook (Delivery).
//
// Its callers read the objects, the disk and the clock. If only a newer GatewaySync could change an answer, the answer says so (Passage.Ask),
// and the caller reads the object and asks again.
package decide
