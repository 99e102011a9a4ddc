package main

import (
	"testing"

	"stoker.io/stoker/test/program"
)

// maxBinary is a ceiling, not a goal: the node of every gateway pulls and keeps the agent. Raise it only for a dependency that
// is worth it. About 29 MiB are client-go: leader election and events import the types of all of Kubernetes.
// S3 is 2 MiB; GCS, Azure and registries, without SDKs, are 0.1 MiB each.
const maxBinary = 60 << 20

func TestBinarySize(t *testing.T) { program.Small(t, "agent", maxBinary) }
