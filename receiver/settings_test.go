package main

import (
	"bytes"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/program"
	"stoker.io/stoker/test/reference"
)

func noEnv(string) string { return "" }

func someEnv(string) string { return "x" }

func TestCommandLineErrors(t *testing.T) {
	var out bytes.Buffer
	_, err := parse([]string{"--log-level=loud", "--log-format=xml", "--watch-namespace=A", "--watch-label-selector=a=b=c", "extra"}, noEnv, &out)
	require.ErrorIs(t, err, daemon.ErrUsage)
	for _, want := range []string{"loud", "xml", `"A"`, "--watch-label-selector", `"extra"`, "POD_NAMESPACE"} {
		assert.Contains(t, out.String(), want)
	}
}

func TestHelpAndVersion(t *testing.T) {
	var out bytes.Buffer
	assert.Equal(t, daemon.ExitDone, run(t.Context(), []string{"--help"}, noEnv, io.Discard, &out))
	assert.Contains(t, out.String(), "receiver turns HTTP calls of git hosts, Argo CD, Kargo and scripts into requests to GatewaySyncs and ConfigSyncs.")
	assert.Contains(t, out.String(), "-webhook-addr")
	assert.Equal(t, daemon.ExitDone, run(t.Context(), []string{"--version"}, noEnv, &out, io.Discard))
	assert.Equal(t, daemon.ExitUsage, run(t.Context(), []string{"--nonsense"}, noEnv, io.Discard, io.Discard))
	assert.Equal(t, daemon.ExitUsage, run(t.Context(), []string{"--install-secret-file="}, someEnv, io.Discard, io.Discard))
	assert.Equal(t, daemon.ExitUsage, run(t.Context(), []string{"check"}, noEnv, io.Discard, io.Discard))
	assert.Equal(t, daemon.ExitUsage, run(t.Context(), []string{"check", "--url=ftp://x"}, noEnv, io.Discard, io.Discard))
	assert.Equal(t, daemon.ExitDone, run(t.Context(), []string{"check", "--help"}, noEnv, io.Discard, io.Discard))
	assert.Equal(t, daemon.ExitFailed, run(t.Context(), []string{"--kubeconfig=/nowhere"}, someEnv, io.Discard, io.Discard))
	out = bytes.Buffer{}
	assert.Equal(t, daemon.ExitFailed, run(t.Context(), []string{"--install-secret-file=/nowhere"}, someEnv, io.Discard, &out))
	assert.Equal(t, "receiver: --install-secret-file: open /nowhere: no such file or directory\n", out.String())
}

func TestReferenceOfFlagsAndMetrics(t *testing.T) {
	var s settings
	reference.Flags(t, "../docs/reference/receiver.md", s.flags(io.Discard))
	reg := prometheus.NewRegistry()
	metrics.NewReceiver(reg, "v")
	reference.Metrics(t, "../docs/reference/receiver.md", reg)
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	assert.Empty(t, problems)
}

func TestShippedDeployment(t *testing.T) {
	deployment := &appsv1.Deployment{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(kubetest.Shipped(t, "../kustomize/components/receiver", "Deployment/*")), deployment))
	c := deployment.Spec.Template.Spec.Containers[0]
	env := func(name string) string {
		if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name }) {
			return "x"
		}
		return ""
	}
	s, err := parse(c.Args, env, io.Discard)
	require.NoError(t, err)
	for _, p := range c.Ports {
		addr := map[string]string{"webhook": s.WebhookAddr, "health": s.HealthAddr, "metrics": s.MetricsAddr}[p.Name]
		_, port, _ := strings.Cut(addr, ":")
		assert.Equal(t, strconv.Itoa(int(p.ContainerPort)), port, p.Name)
	}
	assert.Greater(t, *deployment.Spec.Template.Spec.TerminationGracePeriodSeconds, int64(drainTimeout.Seconds()))
}

// maxBinary is a ceiling, not a goal. Most of the size is client-go.
const maxBinary = 36 << 20

func TestReleaseBinarySize(t *testing.T) { program.Small(t, "receiver", maxBinary) }
