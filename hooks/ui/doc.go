// Package ui serves read-only pages that show which gateways are behind, why, and what to do about it. It runs on the user's own
// machine with the rights of the user's kubeconfig: there is no login, and no new component in a cluster. Nothing that it
// serves changes an object.
//
// Pages are complete without JavaScript. A small script keeps an open page current: when the server sends an event, the script
// loads the same address again and takes over the differences. For each site, which is a context of the kubeconfig, the server
// watches the GatewaySyncs and ConfigSyncs, and asks every ten seconds whether the API server answers. While one does not, pages
// show what was read of it last as not known; no page waits for it.
//
// The content of objects and the answers of agents may be hostile. html/template escapes them, clean removes control characters
// and cuts them, and every list has a bound. The pages show GatewaySyncs, SyncTargets, SyncReports, ConfigSyncs, pods, the
// state of agents and the text of files that they show, and never a Secret.
package ui
