package main

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
)

func (w *world) subjects(namespace string) []string {
	w.Helper()
	b, err := w.client.RbacV1().RoleBindings(namespace).Get(w.Context(), "stoker-agent", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(w, err)
	var names []string
	for _, s := range b.Subjects {
		names = append(names, s.Name)
	}
	return names
}

func TestRoleBindingOfGatewayServiceAccounts(t *testing.T) {
	w := newWorld(t)
	w.install(w.start())
	plant, other := w.cluster.Namespace(t), w.cluster.Namespace(t)
	for _, name := range []string{"press", "oven"} {
		_, err := w.client.CoreV1().ServiceAccounts(plant).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	w.gatewaySync(plant)
	w.gatewaySync(other)
	press := gatewayPod("press-0")
	press.Spec.ServiceAccountName = "press"
	w.pod(plant, press)
	w.pod(plant, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: gatewayPod("x").Spec})
	w.eventually("the ServiceAccount press is bound", func() bool { return slices.Equal(w.subjects(plant), []string{"press"}) })

	w.mayAs(plant, "press", true, authorizationv1.ResourceAttributes{Namespace: plant, Group: "stoker.io", Resource: "syncreports", Verb: "create"})

	oven := gatewayPod("oven-0")
	oven.Spec.ServiceAccountName = "oven"
	w.pod(plant, oven)
	w.eventually("the ServiceAccount oven is bound", func() bool { return slices.Equal(w.subjects(plant), []string{"oven", "press"}) })
	assert.Empty(t, w.subjects(other), "a namespace without pods that request an agent needs no binding")
}

func TestForeignRoleBindingIsKept(t *testing.T) {
	w := newWorld(t)
	plant := w.cluster.Namespace(t)
	_, err := w.client.RbacV1().RoleBindings(plant).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "stoker-agent"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "stoker-agent"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	w.install(w.start())
	w.gatewaySync(plant)
	w.pod(plant, gatewayPod("gw"))
	w.eventually("the reconciler has processed the namespace", func() bool { return w.status(plant)["Ready"] != "" })
	assert.Empty(t, w.subjects(plant))
}

func (w *world) metrics(in *injector) string {
	w.Helper()
	return get(w.T, "http://"+in.log.Address("metrics-addr")+"/metrics")
}

func TestStatusWithoutALead(t *testing.T) {
	w := newWorld(t)
	in := w.start()
	plant := w.cluster.Namespace(t)
	asked := "2026-11-20T09:00:00.5Z"
	w.gatewaySync(plant, func(gs *v1alpha1.GatewaySync) {
		gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedAt: asked}
	})
	w.eventually("Ready is NoGateways", func() bool { return w.status(plant)["Ready"] == "Unknown/NoGateways" })
	seen, err := kube.GatewaySyncs(w.dynamic, plant).Get(t.Context(), "line")
	require.NoError(t, err)
	assert.Equal(t, seen.Generation, seen.Status.ObservedGeneration)
	assert.Equal(t, asked, seen.Status.LastHandledRequest)

	// A lead takes the lock, writes the status and renews the lock.
	targets := kube.SyncTargets(w.dynamic, plant)
	target := &v1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Namespace: plant, Name: "line"}}
	target.Spec = v1alpha1.SyncTargetSpec{Format: 1, Lead: v1alpha1.LeadRecord{Holder: "gw-0_x", Renewed: new(metav1.NowMicro()), DurationSeconds: 15}}
	_, err = targets.Create(t.Context(), target, metav1.CreateOptions{})
	require.NoError(t, err)
	leads, end := context.WithCancel(t.Context())
	var renewing sync.WaitGroup
	leave := func() { end(); renewing.Wait() }
	defer leave()
	renewing.Go(func() {
		for leads.Err() == nil {
			renewed := fmt.Appendf(nil, `{"spec":{"lead":{"renewed":%q}}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
			_, err := targets.Patch(t.Context(), "line", types.MergePatchType, renewed, metav1.PatchOptions{})
			assert.NoError(t, err)
			select {
			case <-leads.Done():
			case <-time.After(5 * time.Second):
			}
		}
	})
	led := `{"status":{"gatewaysReady":"1/1","discoveredGateways":[{"name":"gw"}],"conditions":[{"type":"Ready","status":"True","reason":"Synced","message":"m","lastTransitionTime":"2026-11-20T09:00:00Z"}]}}`
	_, err = kube.GatewaySyncs(w.dynamic, plant).Patch(t.Context(), "line", types.MergePatchType, []byte(led), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	w.pod(plant, gatewayPod("gw")) // makes the reconciler process the namespace
	w.eventually("the reconciler has processed the namespace", func() bool { return w.events(plant)["NotInjected Pod/gw"] == 1 })
	w.looksAgain(in, plant)
	assert.Equal(t, map[string]string{"Ready": "True/Synced"}, w.status(plant))
	alone := func() bool { // other tests leave GatewaySyncs, too
		return strings.Contains(w.metrics(in), fmt.Sprintf("stoker_fleets_without_agents{gatewaysync=\"line\",namespace=%q} 1\n", plant))
	}
	require.False(t, alone())

	// The lead releases the lock and leaves.
	leave()
	_, err = targets.Patch(t.Context(), "line", types.MergePatchType, []byte(`{"spec":{"lead":{"holder":""}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	w.eventually("Ready is AgentsAway", func() bool { return w.status(plant)["Ready"] == "Unknown/AgentsAway" })
	assert.Equal(t, "True/AgentsAway", w.status(plant)["Reconciling"])
	w.eventually("the metrics name it", alone)
}

// The reconciler must not repeat what it has already reported.
func TestReconcilerWritesNothingWhenIdle(t *testing.T) {
	w := newWorld(t)
	in := w.start()
	plant := w.cluster.Namespace(t)
	w.gatewaySync(plant)
	w.pod(plant, gatewayPod("gw"))
	// The reconciler writes the status last.
	w.eventually("the reconciler has processed the namespace", func() bool { return w.status(plant)["SidecarInjected"] == "False/MissingSidecar" })
	versions := func() string {
		gs, err := kube.GatewaySyncs(w.dynamic, plant).Get(t.Context(), "line")
		require.NoError(t, err)
		return gs.ResourceVersion + fmt.Sprint(w.events(plant), w.subjects(plant))
	}
	before, looks, n := versions(), w.looks(in), 0
	w.eventually("the reconciler processes each change of the pod", func() bool {
		n++
		_, err := w.client.CoreV1().Pods(plant).Patch(t.Context(), "gw", types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"x":"%d"}}}`, n), metav1.PatchOptions{})
		require.NoError(t, err)
		return w.looks(in) >= looks+10
	})
	assert.Equal(t, before, versions())
}

// looks returns how often the reconciler has processed a namespace.
func (w *world) looks(in *injector) int {
	w.Helper()
	found := regexp.MustCompile(`stoker_reconcile_total\{loop="namespace",result="done"\} (\d+)`).FindStringSubmatch(w.metrics(in))
	if found == nil {
		return 0
	}
	n, err := strconv.Atoi(found[1])
	require.NoError(w, err)
	return n
}

// looksAgain waits until a replica would have evicted another pod of a namespace if it could: the pods are older than reconcile.minPodAge, its
// webhook counts as ready, and it has processed the pods again.
func (w *world) looksAgain(in *injector, namespace string) {
	w.Helper()
	began, looks, n := time.Now(), w.looks(in), 0
	w.eventually("the reconciler processes the pods again", func() bool {
		list, err := w.client.CoreV1().Pods(namespace).List(w.Context(), metav1.ListOptions{})
		require.NoError(w, err)
		n++
		now, old := w.looks(in), time.Since(began) > 2*settled
		// setup: a change of a pod makes the reconciler process the namespace.
		for _, p := range list.Items {
			old = old && time.Since(p.CreationTimestamp.Time) > 2*time.Second
			_, err := w.client.CoreV1().Pods(namespace).Patch(w.Context(), p.Name, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"x":"%d"}}}`, n), metav1.PatchOptions{})
			if !apierrors.IsNotFound(err) {
				require.NoError(w, err)
			}
		}
		if !old {
			looks = now
		}
		return now >= looks+3 // the first of them may have begun before
	})
}

// C6: in other namespaces, the injector reads, writes and injects nothing, by its permissions as well as by its settings. If a
// watched namespace was recreated and its permissions are gone, the others must not be affected.
func TestWatchedNamespaces(t *testing.T) {
	w := newWorld(t, kubetest.Controllers())
	plant, other, recreated := w.cluster.Namespace(t), w.cluster.Namespace(t), w.cluster.Namespace(t)
	w.narrow(plant)
	one, two := w.start("--watch-namespace="+plant, "--watch-namespace="+recreated), w.start("--watch-namespace="+plant, "--watch-namespace="+recreated)
	one.without, two.without = recreated, recreated
	// As if the operator had forgotten the selector of the webhook configuration.
	w.install(one, func(h *admissionregv1.MutatingWebhook) { h.NamespaceSelector = nil })
	w.gatewaySync(plant)
	w.gatewaySync(other)
	assert.True(t, inject.Has(w.pod(plant, gatewayPod("gw"))))
	assert.False(t, inject.Has(w.pod(other, gatewayPod("gw"))))
	w.stateful(other, statefulSet("site", 1))
	uids, _ := w.pods(other)
	w.eventually("the watched namespace is reconciled", func() bool {
		return w.status(plant)["Ready"] == "Unknown/AgentsAway" && slices.Equal(w.subjects(plant), []string{"default"})
	})
	for _, in := range []*injector{one, two} {
		w.eventually("the injector is ready", in.ready)
		assert.Regexp(t, "watching GatewaySyncs failed.*namespace .{0,3}"+recreated, in.log.String(), "the log must name the namespace")
	}
	time.Sleep(time.Second)
	assert.Empty(t, w.status(other))
	assert.Empty(t, w.subjects(other))
	assert.Empty(t, w.events(other))
	later, _ := w.pods(other)
	assert.Equal(t, uids, later)
	for _, in := range []*injector{one, two} {
		assert.NotContains(t, in.log.String(), "reconciling a namespace failed")
	}
}

// narrow replaces the injector's permissions by those of kustomize/overlays/namespaced for one namespace.
func (w *world) narrow(namespace string) {
	w.Helper()
	all, err := w.client.RbacV1().ClusterRoles().Get(w.Context(), "stoker-injector", metav1.GetOptions{})
	require.NoError(w, err)
	all.Rules = slices.DeleteFunc(all.Rules, func(r rbacv1.PolicyRule) bool {
		return !slices.Contains(r.Resources, "mutatingwebhookconfigurations")
	})
	_, err = w.client.RbacV1().ClusterRoles().Update(w.Context(), all, metav1.UpdateOptions{})
	require.NoError(w, err)
	w.Cleanup(func() { w.cluster.ApplyYAML(w, "", shipped(w, injectorRights)) })
	w.cluster.ApplyYAML(w, "", strings.ReplaceAll(kubetest.Shipped(w, "../kustomize/overlays/namespaced", "*/*"), "ignition", namespace))
	watch := authorizationv1.ResourceAttributes{Group: "stoker.io", Resource: "gatewaysyncs", Verb: "watch"}
	w.may(false, watch)
	watch.Namespace = namespace
	w.may(true, watch)
}

// I8: replicas that start before there is a certificate share the one that the kubelets deliver, and each becomes ready.
func TestReplicasShareOneCertificate(t *testing.T) {
	w := newWorld(t)
	replicas := make([]*injector, 3)
	for i := range replicas {
		replicas[i] = w.start()
	}
	w.install(replicas[0])
	served := map[string]bool{}
	for _, in := range replicas {
		w.eventually("the injector is ready", in.ready)
		served[serial(t, in.webhook)] = true
	}
	assert.Len(t, served, 1)
	begun := func() (n int) {
		for _, in := range replicas {
			n += strings.Count(in.log.String(), "reconciler started")
		}
		return n
	}
	w.eventually("one replica runs the reconciler", func() bool { return begun() > 0 })
	assert.Equal(t, 1, begun(), "only one replica may run the reconciler")

	// The replica that runs the reconciler stops, and another one takes over.
	for _, in := range replicas {
		if strings.Contains(in.log.String(), "reconciler started") {
			in.stop()
			break // another replica may already have taken over
		}
	}
	w.eventually("another replica runs the reconciler", func() bool { return begun() >= 2 })
}

// C1: a pod with odd annotations affects only itself. That holds for an injector that sees the pods appear, and for one that lists
// them at its start.
func TestInvalidAnnotationsAffectOnePodOnly(t *testing.T) {
	w := newWorld(t)
	first := w.start()
	w.install(first)
	plant := w.cluster.Namespace(t)
	w.gatewaySync(plant)
	keys := []string{v1alpha1.AnnotationCRName, v1alpha1.AnnotationProfile, v1alpha1.AnnotationGatewayName, v1alpha1.AnnotationDataVolume,
		v1alpha1.AnnotationSyncPeriod, v1alpha1.AnnotationExcludePatterns, v1alpha1.AnnotationServicePath, v1alpha1.AnnotationAgentImage}
	values := []string{"", " ", "..", "/", "a/b", "~0~1", "\x7f", "{", "[", "$(x)", "%s%n", "-", "ä", strings.Repeat("x", 5000), `"`, `\`, "\n", "null", "0", "1e99", "line\nother", "$((", "{{.x}}", "https://x", "sha256:x"}
	n := 0
	for _, k := range keys {
		for _, v := range values {
			p := gatewayPod(fmt.Sprintf("odd-%d", n))
			p.Annotations[k] = v
			w.pod(plant, p)
			n++
		}
	}
	require.GreaterOrEqual(t, n, 200)
	begun := time.Now()
	assert.True(t, inject.Has(w.pod(plant, gatewayPod("good"))))
	assert.Less(t, time.Since(begun), reviewed)
	w.eventually("the reconciler has processed the namespace", func() bool { return w.status(plant)["SidecarInjected"] == "False/MissingSidecar" })

	first.stop()
	_, err := kube.GatewaySyncs(w.dynamic, plant).Patch(t.Context(), "line", types.MergePatchType, []byte(`{"status":{"conditions":null}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	err = w.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(t.Context(), "stoker-injector", metav1.DeleteOptions{})
	require.NoError(t, err)
	again := w.start()
	w.install(again)
	assert.True(t, inject.Has(w.pod(plant, gatewayPod("good-again"))))
	w.eventually("the reconciler has processed the namespace again", func() bool { return w.status(plant)["SidecarInjected"] == "False/MissingSidecar" })
	assert.True(t, again.ready(), "the restarted injector must be ready")
}

func (in *injector) ready() bool {
	res, err := http.Get("http://" + in.health + "/readyz")
	if err != nil {
		return false
	}
	defer res.Body.Close()
	return res.StatusCode == http.StatusOK
}

func serial(t *testing.T, address string) string {
	t.Helper()
	return leaf(t, address).SerialNumber.String()
}
