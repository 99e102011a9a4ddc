package kubetest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"stoker.io/stoker/test/cluster/memory"
	"stoker.io/stoker/test/module"
)

// Objects returns what Control returns, but in go test -short an API server in memory. It is for tests that only read and write objects: rights,
// validation, admission, controllers and programs to stop need Control.
func Objects(t testing.TB) *Cluster {
	t.Helper()
	if !testing.Short() {
		return Control(t)
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if !shared.endedByMain {
		t.Fatal(errShared)
	}
	if shared.memory == nil {
		root, err := module.Root()
		if err != nil {
			t.Fatal(err)
		}
		server, err := memory.Start(filepath.Join(root, "charts", "stoker", "files", "crds"))
		if err != nil {
			t.Fatal(err)
		}
		dir, err := os.MkdirTemp("", "kubetest-")
		kubeconfig := filepath.Join(dir, "kubeconfig")
		err = errors.Join(err, WriteKubeconfig(server.RESTConfig(), kubeconfig, ""))
		if err != nil {
			t.Fatal(errors.Join(err, server.Close()))
		}
		end := func() error { return errors.Join(server.Close(), os.RemoveAll(dir)) }
		shared.memory = &Cluster{kubeconfig: kubeconfig, rest: server.RESTConfig(), memory: true, shared: true, close: end}
	}
	return shared.memory
}
