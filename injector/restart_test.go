package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/podcase"
	"stoker.io/stoker/test/program"
	"stoker.io/stoker/test/reference"
)

// I13: the agent of a gateway that has to start once more to accept the agent's key ends with a code of its own. Its pod is evicted once, if its volume
// outlives it and its GatewaySync asks for such a key.
func TestRestartForKey(t *testing.T) {
	w := newWorld(t, kubetest.Controllers())
	in := w.start()
	w.install(in)
	plant, other := w.cluster.Namespace(t), w.cluster.Namespace(t)
	keeps := corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}
	managed := func(gs *v1alpha1.GatewaySync) { gs.Spec.Gateway.API = &v1alpha1.GatewayAPI{Managed: true} }
	w.gatewaySync(plant, managed)
	w.gatewaySync(other)
	w.seen(plant)
	w.seen(other)
	stays := statefulSet("stays", 1)
	stays.Spec.Template.Spec.Volumes = []corev1.Volume{keeps}
	w.stateful(plant, stays)
	w.stateful(plant, statefulSet("forgets", 1))
	own := statefulSet("own", 1)
	own.Spec.Template.Spec.Volumes = []corev1.Volume{keeps}
	w.stateful(other, own)

	ends := func(namespace, name string) types.UID {
		p, err := w.client.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		require.True(t, inject.Has(p))
		patch := fmt.Sprintf(`{"status":{"initContainerStatuses":[{"name":%q,"image":"i","imageID":"i","ready":true,"restartCount":1,"started":true,"state":{"running":{}},`+
			`"lastState":{"terminated":{"exitCode":%d}}}]}}`, inject.Container, gatewaypod.ExitRestartGateway)
		_, err = w.client.CoreV1().Pods(namespace).Patch(t.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		require.NoError(t, err)
		return p.UID
	}
	first := ends(plant, "stays-0")
	ends(plant, "forgets-0")
	kept := ends(other, "own-0")
	w.eventually("the pod is replaced", func() bool {
		uids, injected := w.pods(plant)
		return uids["stays-0"] != "" && uids["stays-0"] != first && injected == 2
	})
	w.eventually("Events report it", func() bool {
		events := w.events(plant)
		return events["PodEvictedForRepair Pod/stays-0"] == 1 && events["RepairStopped Pod/forgets-0"] == 1
	})
	w.startAgents(plant)
	again := ends(plant, "stays-0")
	w.looksAgain(in, plant)
	uids, _ := w.pods(plant)
	assert.Equal(t, again, uids["stays-0"], "a pod must be evicted only once")
	uids, _ = w.pods(other)
	assert.Equal(t, kept, uids["own-0"], "the GatewaySync asks for no such key")
	assert.Empty(t, w.events(other))
}

func TestReadyFor(t *testing.T) {
	now, ready := time.Unix(0, 0), false
	is := readyFor(func() bool { return ready }, 10*time.Second, func() time.Time { return now })
	assert.False(t, is())
	ready = true
	assert.False(t, is(), "the replica must stay ready for a time before it evicts pods")
	now = now.Add(9 * time.Second)
	assert.False(t, is())
	now = now.Add(time.Second)
	assert.True(t, is())
	ready = false
	assert.False(t, is())
	ready = true
	assert.False(t, is(), "the time must start again")
}

// I2: if there is no Service behind the shipped webhook configuration, pods start without an agent. Only those that require one do not start.
func TestMissingService(t *testing.T) {
	w := newWorld(t)
	w.cluster.ApplyYAML(t, "", shipped(t, "MutatingWebhookConfiguration/*"))
	plant := w.cluster.Namespace(t)
	w.gatewaySync(plant)
	required := gatewayPod("required")
	required.Annotations[v1alpha1.AnnotationRequire] = "true"
	w.eventually("the webhook configuration is in force", func() bool {
		_, err := w.client.CoreV1().Pods(plant).Create(t.Context(), required, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "require.pods.stoker.io")
	})
	begun, called := time.Now(), w.webhookCalls()
	assert.Positive(t, called)
	plain := gatewayPod("plain")
	plain.Annotations = nil
	w.pod(plant, plain)
	ours := gatewayPod("stoker-injector-x")
	ours.Annotations[v1alpha1.AnnotationRequire] = "true" // the strictest request that a pod can make
	made, err := w.client.CoreV1().Pods(system).Create(t.Context(), ours, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.NoError(t, err)
	assert.False(t, inject.Has(made))
	assert.Equal(t, called, w.webhookCalls(), "the API server must not call the webhook for these pods")
	assert.False(t, inject.Has(w.pod(plant, gatewayPod("gw"))), "the pod must start without an agent")
	assert.Greater(t, w.webhookCalls(), called)
	assert.Less(t, time.Since(begun), time.Minute, "the pod must start within the timeout of a request")
}

// webhookCalls returns how often the API server has called a webhook of the injector, including failed calls.
func (w *world) webhookCalls() (n int) {
	w.Helper()
	text, err := w.client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(w.Context())
	require.NoError(w, err)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "apiserver_admission_webhook_admission_duration_seconds_count{") && strings.Contains(line, `pods.stoker.io"`) {
			_, value, _ := strings.Cut(line, "} ")
			times, err := strconv.Atoi(strings.TrimSpace(value))
			require.NoError(w, err)
			n += times
		}
	}
	return n
}

func TestInjectorSurvivesAPIServerOutage(t *testing.T) {
	w := newWorld(t, kubetest.Private())
	in := w.start()
	w.install(in)
	plant := w.cluster.Namespace(t)
	w.gatewaySync(plant)
	assert.True(t, inject.Has(w.pod(plant, gatewayPod("before"))))
	in.restarted = true
	w.cluster.Kill(t, kubetest.APIServer)
	w.cluster.Start(t, kubetest.APIServer)
	w.eventually("pods get agents again", func() bool {
		made, err := w.client.CoreV1().Pods(plant).Create(t.Context(), gatewayPod("after"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && inject.Has(made)
	})
	other := w.cluster.Namespace(t)
	w.gatewaySync(other)
	w.eventually("the reconciler continues", func() bool { return w.status(other)["Ready"] == "Unknown/NoGateways" })
}

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

// added returns the agent's container and the volumes that the injector adds to the pod of a case.
func added(t *testing.T, c podcase.Case) (agent corev1.Container, volumes []corev1.Volume) {
	t.Helper()
	gs, _ := inject.Choose(c.Pod, inject.Candidates{Readable: c.GatewaySyncs})
	ops, decision := inject.Patch(c.Pod, gs, inject.Defaults{Image: v1alpha1.AgentImage{Repository: "ghcr.io/stoker-io/agent", Tag: "1.2.3"}})
	require.True(t, decision.Injected, decision.Message)
	for _, op := range ops {
		switch value := op.Value.(type) {
		case corev1.Container:
			agent = value
		case []corev1.Container:
			agent = value[0]
		case corev1.Volume:
			volumes = append(volumes, value)
		case []corev1.Volume:
			volumes = append(volumes, value...)
		}
	}
	require.Equal(t, inject.Container, agent.Name)
	return agent, volumes
}

// The injector must set only variables that the agent documents, and all required ones.
func TestAgentEnvironmentIsDocumented(t *testing.T) {
	_, section, _ := strings.Cut(readFile(t, "../docs/reference/agent.md"), "\n### Environment\n")
	section, _, _ = strings.Cut(section, "\n### ")
	rows := reference.Rows(section, 2)
	require.NotEmpty(t, rows)
	written := map[string]bool{}
	for _, c := range podcase.All(t, "inject/testdata") {
		t.Run(c.Name, func(t *testing.T) {
			agent, _ := added(t, c)
			own := map[string]bool{}
			for _, v := range agent.Env {
				own[v.Name], written[v.Name] = true, true
				if !strings.HasPrefix(v.Name, "STOKER_SUBPATH_") { // referenced by a subPathExpr of the pod
					assert.Contains(t, rows, v.Name, "docs/reference/agent.md does not list it")
				}
			}
			for name, row := range rows {
				if row[0] == "required" {
					assert.True(t, own[name], "the agent needs %s", name)
				}
			}
		})
	}
	for name := range rows {
		assert.True(t, written[name], "the injector never sets %s", name)
	}
}

// SECRETS must list exactly the mounted keys, because the agent treats all other keys as unavailable.
func TestSecretsVariable(t *testing.T) {
	several := false
	for _, c := range podcase.All(t, "inject/testdata") {
		t.Run(c.Name, func(t *testing.T) {
			agent, volumes := added(t, c)
			var keys []string
			for _, v := range volumes {
				if m := v.ConfigMap; m != nil && strings.HasPrefix(v.Name, "stoker-secret-") {
					for _, item := range m.Items {
						assert.Equal(t, item.Key, item.Path)
						keys = append(keys, "configmap_"+m.Name+"/"+item.Key)
					}
				}
				if v.Secret == nil {
					continue
				}
				for _, item := range v.Secret.Items {
					assert.Equal(t, item.Key, item.Path)
					keys = append(keys, v.Secret.SecretName+"/"+item.Key)
				}
			}
			env := map[string]string{}
			for _, v := range agent.Env {
				env[v.Name] = v.Value
			}
			assert.Equal(t, strings.Join(keys, ","), env["SECRETS"])
			several = several || len(keys) > 2
			for _, id := range keys {
				name, _, _ := strings.Cut(id, "/")
				assert.True(t, slices.ContainsFunc(agent.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == env["SECRETS_DIR"]+"/"+name }), id)
			}
		})
	}
	assert.True(t, several, "at least one case must mount several keys")
}

// maxBinary is a ceiling, not a goal. Most of the size is client-go.
const maxBinary = 40 << 20

func TestReleaseBinarySize(t *testing.T) { program.Small(t, "injector", maxBinary) }
