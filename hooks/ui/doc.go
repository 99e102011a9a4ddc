// Package ui serves a read-only page that shows which gateways are behind, why, and what to do about it. It runs on the user's own machine
// with the rights of the user's kubeconfig: there is no login, no new component in the cluster, and nothing that it could change.
//
// Pages are complete without JavaScript. A small script keeps an open page current: a watch of the API server tells it that something
// changed, it loads the same address again, and takes over the differences.
//
// All content of objects and everything that an agent answers is hostile. html/template escapes it, clean removes control characters and
// cuts it, and every list has a bound. The page reads GatewaySyncs, SyncTargets, pods and the state of agents, and never a Secret.
package ui
