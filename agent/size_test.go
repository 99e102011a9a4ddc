package main

import (
	"testing"

	"stoker.io/stoker/test/program"
)

// maxBinary is a ceiling, not a goal: the node of every gateway pulls and keeps the agent. Raise it only for a dependency that
// is worth it. Most of the size is client-go, whose scheme has the types of all of Kubernetes; see kube.Core.
// S3 is 2 MiB; GCS, Azure and registries, without SDKs, are 0.1 MiB each.
const maxBinary = 53 << 20

func TestBinarySize(t *testing.T) { program.Small(t, "agent", maxBinary) }
