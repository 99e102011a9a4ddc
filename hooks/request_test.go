package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/test/gitserver"
)

// The commands of a GatewaySync take a ConfigSync, too. The requests themselves are tested in internal/configsync.
func TestConfigSyncRequests(t *testing.T) {
	t.Parallel()
	s := newConfigScene(t)
	first := s.git.Commit("first", gitserver.Write("k8s/site.yaml", site))
	s.git.Tag("v1", first)
	s.git.Commit("second", gitserver.Write("k8s/site.yaml", site), gitserver.Write("k8s/more.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: more}}"))
	// sequence: each step starts with the state that the last one left
	for _, step := range []struct {
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{[]string{"wait", "configsync/plant", "--timeout=1ms"}, exit.Timeout, "", "no run has handled the spec and the request yet"},
		{[]string{"config", "apply", "plant"}, exit.Done, "3 to create", ""},
		{[]string{"wait", "configsync/plant"}, exit.Done, "3 objects of", ""},
		{[]string{"set-ref", "csync/plant", "v1"}, exit.Done, "configsync.stoker.io/plant desired ref set to v1\n", ""},
		{[]string{"wait", "csync/plant", "--timeout=1ms"}, exit.Timeout, "", "no run has handled"},
		{[]string{"config", "apply", "plant"}, exit.Done, "1 to prune", ""},
		{[]string{"wait", "configsync/plant", "--ref=v1"}, exit.Done, "2 objects of " + first[:7], ""},
		{[]string{"wait", "configsync/plant", "--ref=main"}, exit.Superseded, "", "the desired ref is v1 (requested by admin) and no longer main"},
		{[]string{"rollback", "configsync/plant"}, exit.Done, "unchanged", ""},
		{[]string{"rollback", "configsync/plant", "--if-needed"}, exit.Usage, "", "spec.rollbackOnFailure"},
		{[]string{"pause", "configsync/plant"}, exit.Done, "configsync.stoker.io/plant is paused", ""},
		{[]string{"config", "apply", "plant"}, exit.Held, "", "is paused"},
		{[]string{"resume", "configsync/plant", "-o", "name"}, exit.Done, "configsync.stoker.io/plant\n", ""},
		{[]string{"sync", "configsync/plant"}, exit.Done, "configsync.stoker.io/plant sync requested", ""},
		{[]string{"retry", "configsync/plant"}, exit.Usage, "", "is not a GatewaySync"},
		{[]string{"pause", "pod/plant"}, exit.Usage, "", "is not the name of an object"},
		{[]string{"set-ref", "configsync/nothing", "v1"}, exit.Failed, "", "there is no ConfigSync nothing in namespace"},
	} {
		code, out, talk := s.run(step.args...)
		assert.Equal(t, step.code, code, "%v: %s%s", step.args, out, talk)
		assert.Contains(t, out, step.stdout, step.args)
		assert.Contains(t, talk, step.stderr, step.args)
	}
	_, err := s.Client(t).CoreV1().ConfigMaps(s.namespace).Get(t.Context(), "more", metav1.GetOptions{})
	assert.Error(t, err)
}
