// Package simulator simulates an Ignition 8.3 gateway for tests and demonstrations: its data directory, states, tokens,
// scans, scan locks and REST routes, as far as they are known from the vendor's documentation and from live gateways.
// It shares no code with the agent, so that each is a check on the other.
//
// The simulated gateway knows only the snapshot of its last scan: writing a file has no effect until a scan reads it. A
// scan reads the tree as it is at that moment. Half-written files become load errors and log lines. Unknown behavior of
// the real gateway is a switch in Unknowns.
//
// The fields of a Gateway are its subjects: Scans, Locks, Designers, Data and others. Each has its routes, its state, and the
// methods with which a test controls it. What needs no running gateway is in packages below this one.
//
// With a Version before 8.3 the gateway has no REST interface except that of the third-party project-scan module, and
// signs its projects like 8.1. Two gateways make a redundant Pair.
package simulator
