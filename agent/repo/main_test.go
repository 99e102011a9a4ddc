package repo

import (
	"testing"

	"stoker.io/stoker/agent/repo/repotest"
)

func TestMain(m *testing.M) { repotest.Main(m) }
