package main

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/admission"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/test/reference"
)

func noEnv(string) string { return "" }

func TestUsageErrors(t *testing.T) {
	var out bytes.Buffer
	_, err := parse([]string{"--repair=never", "--log-level=loud", "--watch-namespace=A", "--watch-label-selector=a=b=c",
		"--agent-resources={\"limit\":1}", "--agent-image-pull-policy=Sometimes", "extra"}, noEnv, &out)
	require.ErrorIs(t, err, daemon.ErrUsage)
	for _, want := range []string{"--repair", "loud", `"A"`, "--watch-label-selector", "--agent-resources", "Sometimes", `"extra"`, "--agent-image:", "POD_NAMESPACE"} {
		assert.Contains(t, out.String(), want)
	}
}

func TestHelpAndVersion(t *testing.T) {
	var out bytes.Buffer
	assert.Equal(t, daemon.ExitDone, run(t.Context(), []string{"--help"}, noEnv, io.Discard, &out))
	assert.Contains(t, out.String(), "--agent-image")
	assert.Equal(t, daemon.ExitDone, run(t.Context(), []string{"--version"}, noEnv, &out, io.Discard))
	assert.Equal(t, daemon.ExitUsage, run(t.Context(), []string{"--nonsense"}, noEnv, io.Discard, io.Discard))
	assert.Equal(t, daemon.ExitFailed, run(t.Context(), []string{"--agent-image=a:1", "--namespace=x", "--kubeconfig=/nowhere"}, noEnv, io.Discard, io.Discard))
}

func TestParseImage(t *testing.T) {
	digest := "sha256:" + strings.Repeat("ab", 32)
	for text, want := range map[string]v1alpha1.AgentImage{
		"ghcr.io/stoker-io/agent:1.2":             {Repository: "ghcr.io/stoker-io/agent", Tag: "1.2"},
		"localhost:5000/agent:1":                  {Repository: "localhost:5000/agent", Tag: "1"},
		"localhost:5000/agent@" + digest:          {Repository: "localhost:5000/agent", Digest: digest},
		"ghcr.io/stoker-io/agent:1.2.3@" + digest: {Repository: "ghcr.io/stoker-io/agent", Digest: digest},
		"agent:latest":                            {Repository: "agent", Tag: "latest"},
	} {
		t.Run(strings.ReplaceAll(text, digest, "digest"), func(t *testing.T) {
			got, err := parseImage(text)
			require.NoError(t, err)
			assert.Equal(t, want, got)
		})
	}
	for _, text := range []string{"", "agent", "localhost:5000/agent", ":1", "agent:", "agent@sha256:12", "agent:1@", "agent:a b", "a//b:1", "a//b@" + digest} {
		t.Run(strings.ReplaceAll(text, digest, "digest"), func(t *testing.T) {
			_, err := parseImage(text)
			assert.Error(t, err)
		})
	}
}

func TestShippedDeployment(t *testing.T) {
	deployment := &appsv1.Deployment{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(shipped(t, "Deployment/*")), deployment))
	c := deployment.Spec.Template.Spec.Containers[0]
	env := func(name string) string {
		if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name }) {
			return "x"
		}
		return ""
	}
	image := deployment.Spec.Template.Annotations["stoker.io/image-of-agents"]
	args := slices.Clone(c.Args)
	for i := range args { // expands the variable as the kubelet does
		args[i] = strings.ReplaceAll(args[i], "$(AGENT_IMAGE)", image)
	}
	s, err := parse(args, env, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, "x", s.Pod)
	assert.Equal(t, image, s.image.Repository+":"+s.image.Tag)
	for _, p := range c.Ports {
		addr := map[string]string{"webhook": s.WebhookAddr, "health": s.HealthAddr, "metrics": s.MetricsAddr}[p.Name]
		_, port, _ := strings.Cut(addr, ":")
		assert.Equal(t, strconv.Itoa(int(p.ContainerPort)), port, p.Name)
	}
}

// The tests with a real API server use the webhook configuration of kustomize, and so hold what its entries do.
func TestShippedWebhookConfiguration(t *testing.T) {
	got := &admissionregv1.MutatingWebhookConfiguration{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(shipped(t, "MutatingWebhookConfiguration/*")), got))
	assert.Equal(t, admission.ConfigurationName, got.Name)
	require.Len(t, got.Webhooks, 2)
	for i, name := range []string{"pods.stoker.io", "require.pods.stoker.io"} {
		t.Run(name, func(t *testing.T) {
			w := got.Webhooks[i]
			assert.Equal(t, name, w.Name)
			assert.Equal(t, &admissionregv1.ServiceReference{Name: "stoker-injector", Namespace: system, Path: new(admission.Path), Port: new(int32(443))}, w.ClientConfig.Service)
			for _, annotation := range []string{v1alpha1.AnnotationInject, v1alpha1.AnnotationRequire} {
				assert.Contains(t, fmt.Sprint(w.MatchConditions), "annotations['"+annotation+"']")
			}
			assert.Contains(t, fmt.Sprint(w.NamespaceSelector), v1alpha1.LabelInjection)
			assert.Contains(t, fmt.Sprint(w.ObjectSelector), v1alpha1.LabelInjection)
		})
	}
}

func TestReferenceOfFlags(t *testing.T) {
	var s settings
	reference.Flags(t, "../docs/reference/injector.md", s.flags(io.Discard))
}

func TestReferenceOfMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	metrics.NewInjector(reg, "v")
	reference.Metrics(t, "../docs/reference/injector.md", reg)
}

// The page about pods must link every reason against injection, and list every annotation.
func TestPodsPageIsComplete(t *testing.T) {
	page := readFile(t, "../docs/how-to/pods.md")
	for _, r := range v1alpha1.Reasons {
		if r.Class == v1alpha1.ClassNotInjected {
			assert.Contains(t, page, "["+string(r.Reason)+"](troubleshooting.md#"+strings.ToLower(string(r.Reason))+")")
		}
	}
	for _, a := range []string{v1alpha1.AnnotationInject, v1alpha1.AnnotationCRName, v1alpha1.AnnotationGatewayName, v1alpha1.AnnotationProfile,
		v1alpha1.AnnotationDataVolume, v1alpha1.AnnotationRequire, v1alpha1.AnnotationAgentImage} {
		assert.Contains(t, page, "| `"+a+"` |")
	}
}
