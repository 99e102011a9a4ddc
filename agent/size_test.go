package main

import (
	"testing"

	"stoker.io/stoker/test/program"
)

// maxBinary is a ceiling, not a goal: every gateway's node pulls and keeps the agent. Raise it only for a dependency that
// is worth it. Some 29 MiB of it are client-go: its leader election and its events bring the types of all of Kubernetes.
const maxBinary = 56 << 20

func TestTheReleaseBinaryStaysSmall(t *testing.T) { program.Small(t, "agent", maxBinary) }
