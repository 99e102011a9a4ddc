// Package simulator is a stand-in for an Ignition 8.3 gateway, for tests and demonstrations: its data directory, its
// states, tokens, scans, scan locks and REST routes, as far as they are known from the vendor's documentation and from
// what was seen on live gateways. It shares no code with the agent, so that each is a check on the other.
//
// What the gateway knows, it knows from its last scan: the snapshot. Writing a file changes nothing until a scan reads
// it, and a scan reads the tree as it is at that moment, half-written files included; these become load errors and lines
// of the log. What is not known of the real gateway is a switch in Unknowns.
//
// With a Version before 8.3 it has no REST interface but that of the third-party project-scan module, and its projects are
// signed as 8.1 signs them. Two gateways make a redundant Pair.
package simulator

const (
	projectsDir  = "projects"
	blobDir      = projectsDir + "/.resources"
	resourcesDir = "config/resources"
	seedMarker   = ".ignition-seed-complete"
)
