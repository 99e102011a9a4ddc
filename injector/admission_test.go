package main

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/podcase"
)

func TestPodsAreInjected(t *testing.T) {
	w := newWorld(t)
	w.install(w.start())
	plant := w.cluster.Namespace(t)
	w.gatewaySync(plant)
	p := w.pod(plant, gatewayPod("gw-0"))
	require.True(t, inject.Has(p))
	agent := agentOf(t, p)
	assert.Equal(t, corev1.ContainerRestartPolicyAlways, *agent.RestartPolicy)
	assert.Equal(t, "line", p.Labels[v1alpha1.LabelCRName])
	token := slices.IndexFunc(agent.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/var/run/secrets/kubernetes.io/serviceaccount" })
	require.NotEqual(t, -1, token, "the agent needs a token")
	assert.Equal(t, "stoker-token", agent.VolumeMounts[token].Name, "the API server must not mount its own token at this path")

	generated := gatewayPod("")
	generated.GenerateName = "gw-"
	delete(generated.Annotations, v1alpha1.AnnotationCRName)
	p = w.pod(plant, generated)
	require.True(t, inject.Has(p))
	assert.Equal(t, "line", p.Annotations[v1alpha1.AnnotationCRName], "the only GatewaySync of the namespace must be used")
	agent = agentOf(t, p)
	name := slices.IndexFunc(agent.Env, func(e corev1.EnvVar) bool { return e.Name == "GATEWAY_NAME" })
	require.NotEqual(t, -1, name, "the agent needs the name of its gateway")
	assert.Equal(t, "metadata.name", agent.Env[name].ValueFrom.FieldRef.FieldPath)

	// The annotations of the older prefix work, too (docs/how-to/migration.md).
	older := gatewayPod("gw-older")
	older.Annotations = map[string]string{"ignition-sync.io/inject": "true", "ignition-sync.io/cr-name": "line"}
	assert.True(t, inject.Has(w.pod(plant, older)))
}

// agentOf returns the agent of an injected pod.
func agentOf(t *testing.T, p *corev1.Pod) corev1.Container {
	t.Helper()
	i := slices.IndexFunc(p.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == inject.Container })
	require.NotEqual(t, -1, i)
	return p.Spec.InitContainers[i]
}

// Every injected pod of inject/testdata must pass the validation of the API server.
func TestInjectedPodsAreValid(t *testing.T) {
	w := newWorld(t)
	w.install(w.start("--allow-agent-image=registry.example.com/trusted"))
	plant := w.cluster.Namespace(t)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "site-a"}}
	_, err := w.client.CoreV1().ServiceAccounts(plant).Create(t.Context(), account, metav1.CreateOptions{})
	require.NoError(t, err)
	for _, c := range podcase.All(t, "inject/testdata") {
		pod := c.Pod
		pod.Namespace = ""                 // the request names plant
		pod.Spec.EphemeralContainers = nil // only allowed after creation
		require.NoError(t, w.dynamic.Resource(kube.GatewaySync.Resource()).Namespace(plant).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
		for _, gs := range c.GatewaySyncs {
			gs.Namespace = plant
			if m := gs.Spec.Sync.Profiles["default"].Mappings; m != nil && strings.Contains(m[0].Source, "..") {
				m[0].Source = "projects" // the API server would reject the invalid path
			}
			_, err := kube.GatewaySyncs(w.dynamic, plant).Create(t.Context(), gs, metav1.CreateOptions{})
			require.NoError(t, err)
		}
		// The injector sees a new GatewaySync a moment after its creation.
		w.eventually(c.Name+" is injected", func() bool {
			made, err := w.client.CoreV1().Pods(plant).Create(t.Context(), pod.DeepCopy(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			require.NoError(t, err, c.Name)
			return inject.Has(made)
		})
	}
}

// I2: without an injector, every pod starts without a long delay, except a pod that requires its agent.
func TestPodsStartWithoutAnInjector(t *testing.T) {
	w := newWorld(t)
	in := w.start()
	w.install(in)
	plant := w.cluster.Namespace(t)
	w.gatewaySync(plant)
	in.stop()

	called := w.webhookCalls()
	w.pod(plant, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "plain"}, Spec: gatewayPod("x").Spec})
	w.pod(system, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "in-the-injectors-namespace", Annotations: gatewayPod("x").Annotations}, Spec: gatewayPod("x").Spec})
	assert.Equal(t, called, w.webhookCalls(), "the API server must not call the webhook for these pods")
	t.Cleanup(func() {
		assert.NoError(t, w.client.CoreV1().Pods(system).Delete(context.Background(), "in-the-injectors-namespace", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	})
	assert.False(t, inject.Has(w.pod(plant, gatewayPod("gw"))))

	required := gatewayPod("required")
	required.Annotations[v1alpha1.AnnotationRequire] = "true"
	_, err := w.client.CoreV1().Pods(plant).Create(t.Context(), required, metav1.CreateOptions{})
	require.Error(t, err)
	assert.ErrorContains(t, err, "require.pods.stoker.io")
	_, err = w.client.CoreV1().Pods(plant).Get(t.Context(), "required", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err))
}

func TestRequireAnnotation(t *testing.T) {
	w := newWorld(t)
	w.install(w.start())
	plant := w.cluster.Namespace(t)
	w.gatewaySync(plant)
	required := gatewayPod("gw")
	required.Annotations[v1alpha1.AnnotationRequire] = "true"
	assert.True(t, inject.Has(w.pod(plant, required)), "the pod must get an agent")

	required.Name = "gw-root"
	required.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(0))}
	_, err := w.client.CoreV1().Pods(plant).Create(t.Context(), required, metav1.CreateOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	assert.ErrorContains(t, err, string(v1alpha1.ReasonGatewayRunsAsRoot))

	delete(required.Annotations, v1alpha1.AnnotationRequire)
	assert.False(t, inject.Has(w.pod(plant, required)), "without the annotation, the pod must start without an agent")
}

// A label that disables injection overrides the annotation. docs/how-to/pods.md documents this, and an Event reports it.
func TestInjectionLabelOverridesRequire(t *testing.T) {
	w := newWorld(t)
	w.install(w.start())
	plant := w.cluster.Namespace(t)
	w.gatewaySync(plant)
	required := gatewayPod("gw")
	required.Annotations[v1alpha1.AnnotationRequire] = "true"
	required.Labels = map[string]string{v1alpha1.LabelInjection: "disabled"}
	assert.False(t, inject.Has(w.pod(plant, required)), "the label of the pod must apply")

	_, err := w.client.CoreV1().Namespaces().Patch(t.Context(), plant, types.MergePatchType, []byte(`{"metadata":{"labels":{"stoker.io/injection":"disabled"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	required.Name, required.Labels = "gw-of-the-namespace", nil
	w.eventually("the API server applies the label", func() bool {
		made, err := w.client.CoreV1().Pods(plant).Create(t.Context(), required, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		require.NoError(t, err)
		return !inject.Has(made)
	})
	assert.False(t, inject.Has(w.pod(plant, required)))
	w.eventually("an Event reports the pod", func() bool { return w.events(plant)["NotInjected Pod/gw-of-the-namespace"] == 1 })
	assert.Zero(t, w.events(plant)["NotInjected Pod/gw"], "a pod that opts out must not be reported")
}

// I3: a dry run writes nothing.
func TestDryRunChangesNothing(t *testing.T) {
	w := newWorld(t)
	w.install(w.start())
	plant := w.cluster.Namespace(t)
	w.gatewaySync(plant)
	made, err := w.client.CoreV1().Pods(plant).Create(t.Context(), gatewayPod("gw"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.NoError(t, err)
	assert.True(t, inject.Has(made))
	broken := gatewayPod("broken")
	broken.Annotations[v1alpha1.AnnotationCRName] = "nowhere"
	_, err = w.client.CoreV1().Pods(plant).Create(t.Context(), broken, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.NoError(t, err)

	// The reconciler reports NoGateways only after it has seen the namespace.
	w.eventually("the reconciler has processed the namespace", func() bool { return w.status(plant)["Ready"] == "Unknown/NoGateways" })
	assert.Empty(t, w.events(plant))
	_, err = w.client.RbacV1().RoleBindings(plant).Get(t.Context(), "stoker-agent", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "%v", err)
}
