package lead

import (
	"encoding/json"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/gitserver"
)

func TestMain(m *testing.M) {
	// Most of these tests wait for locks and polls, so more of them can run in parallel than there are processors.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	kubetest.Main(m)
}

// tenfold bounds operations that usually take a tenth of it.
const tenfold = 30 * time.Second

// renewsOften lets a lead renew its lock every second, so that a test sees many renewals.
func renewsOften(c *Config) { c.Timing = DefaultTiming(); c.Timing.Renew = time.Second }

// expiresSoon also lets the lock expire soon. A lead that is not slowed down loses it after five seconds without a processor.
func expiresSoon(c *Config) {
	c.Timing = Timing{Lock: 6 * time.Second, SlowLock: 15 * time.Second, SlowFor: 6 * time.Second, Renew: time.Second, Deadline: 12 * time.Second}
}

// untilRenewed waits until the lead has renewed its lock n times.
func (s *site) untilRenewed(lead *candidate, n int) {
	s.t.Helper()
	before := lead.wire.count("PUT synctargets")
	require.Eventually(s.t, func() bool { return lead.wire.count("PUT synctargets")-before >= n }, time.Duration(n)*tenfold, 20*time.Millisecond)
}

// site is a namespace with a GatewaySync, its git repository, its gateways, and any number of agents that may lead.
type site struct {
	*gitserver.Repo
	t       *testing.T
	cluster *kubetest.Cluster
	ns      string
	admin   kube.Clients
	git     *gitserver.Server
	first   string        // commit
	ahead   time.Duration // offset of the API server's clock, as agents see it

	mu       sync.Mutex
	reported map[string]map[string]bool // gateway → commits that it reported
	statuses []v1alpha1.GatewaySyncStatus
}

// newSite creates a GatewaySync with n gateways on the cluster that the tests of this package share. It makes the test parallel.
func newSite(t *testing.T, n int, change ...func(*v1alpha1.GatewaySync)) *site {
	t.Helper()
	t.Parallel()
	return newSiteIn(t, kubetest.Objects(t), n, change...)
}

func newSiteIn(t *testing.T, cluster *kubetest.Cluster, n int, change ...func(*v1alpha1.GatewaySync)) *site {
	t.Helper()
	s := newUnwatchedSite(t, cluster, n, change...)
	s.record()
	return s
}

// newUnwatchedSite returns a site that does not compare statuses with the reports of gateways.
func newUnwatchedSite(t *testing.T, cluster *kubetest.Cluster, n int, change ...func(*v1alpha1.GatewaySync)) *site {
	t.Helper()
	s := &site{t: t, cluster: cluster, ns: cluster.Namespace(t), reported: map[string]map[string]bool{}}
	var err error
	s.admin, err = kube.ConnectTo(cluster.RESTConfig(), "test")
	require.NoError(t, err)
	root := t.TempDir()
	s.Repo = gitserver.NewRepo(t, filepath.Join(root, "site.git"))
	s.git, err = gitserver.Start(root, gitserver.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.git.Close()) })
	s.first = s.Commit("first", gitserver.Write("projects/a/project.json", "{}"))
	s.rights()

	gs := &v1alpha1.GatewaySync{}
	gs.Name, gs.Namespace = "site", s.ns
	gs.Spec.Git.Repo, gs.Spec.Git.Ref = s.git.URL("site.git"), "main"
	gs.Spec.Polling.Interval = "1s"
	gs.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{"default": {Mappings: []v1alpha1.Mapping{{Source: "projects", Destination: "projects"}}}}
	for _, c := range change {
		c(gs)
	}
	_, err = s.syncs().Create(t.Context(), gs, metav1.CreateOptions{})
	require.NoError(t, err)
	for i := range n {
		s.gateway(fmt.Sprintf("gw-%d", i))
	}
	return s
}

func (s *site) syncs() *kube.Objects[v1alpha1.GatewaySync] {
	return kube.GatewaySyncs(s.admin.Dynamic, s.ns)
}
func (s *site) targets() *kube.Objects[v1alpha1.SyncTarget] {
	return kube.SyncTargets(s.admin.Dynamic, s.ns)
}
func (s *site) reports() *kube.Objects[v1alpha1.SyncReport] {
	return kube.SyncReports(s.admin.Dynamic, s.ns)
}

// rights grants the service account of the pods the permissions that the chart grants to agents.
func (s *site) rights() {
	s.t.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "stoker-agent"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"stoker.io"}, Resources: []string{"gatewaysyncs"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{"stoker.io"}, Resources: []string{"gatewaysyncs/status"}, Verbs: []string{"patch"}},
		{APIGroups: []string{"stoker.io"}, Resources: []string{"synctargets", "syncreports"}, Verbs: []string{"get", "list", "watch", "create", "patch", "update"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
	}}
	_, err := s.admin.Core.RbacV1().Roles(s.ns).Create(s.t.Context(), role, metav1.CreateOptions{})
	require.NoError(s.t, err)
	_, err = s.admin.Core.RbacV1().RoleBindings(s.ns).Create(s.t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "stoker-agent"},
		RoleRef:  rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: "stoker-agent"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "default", Namespace: s.ns}}}, metav1.CreateOptions{})
	require.NoError(s.t, err)
}

// gateway creates a pod with an agent container. Nothing runs in the pod: the test writes its reports.
func (s *site) gateway(name string, change ...func(*corev1.Pod)) {
	s.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelCRName: "site"},
		Annotations: map[string]string{v1alpha1.AnnotationInject: "true", v1alpha1.AnnotationCRName: "site", v1alpha1.AnnotationGatewayName: name}},
		Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Name: gatewaypod.AgentContainer, Image: "agent"}}, Containers: []corev1.Container{{Name: "gateway", Image: "gateway"}}}}
	for _, c := range change {
		c(p)
	}
	_, err := s.admin.Core.CoreV1().Pods(s.ns).Create(s.t.Context(), p, metav1.CreateOptions{})
	require.NoError(s.t, err)
}

// takes reports that the named gateways run the target.
func (s *site) takes(names ...string) {
	s.t.Helper()
	t := s.target()
	for _, name := range names {
		s.report(name, func(r *v1alpha1.SyncReportStatus) {
			at := metav1.Now().Rfc3339Copy()
			r.Phase, r.Reason, r.Message, r.Started, r.Duration = v1alpha1.GatewaySynced, v1alpha1.ReasonSynced, "", &at, "1s"
			r.Commit, r.Target, r.Ref, r.Revision, r.Generation, r.HandledRequest = t.Commit, t.Commit, t.Ref, t.Revision, t.Generation, t.RequestedAt
		})
	}
}

// takesAll calls takes once the target has the commit and the current generation.
func (s *site) takesAll(commit string, names ...string) {
	s.t.Helper()
	s.untilTarget(commit)
	s.takes(names...)
}

// runs makes the named gateways run a commit, and waits until the status says so.
func (s *site) runs(commit string, names ...string) *v1alpha1.GatewaySync {
	s.t.Helper()
	s.takesAll(commit, names...)
	return s.untilReady("True/Synced")
}

// report changes the report of a gateway, or creates it.
func (s *site) report(name string, change func(*v1alpha1.SyncReportStatus)) {
	s.t.Helper()
	ctx := s.t.Context()
	r, err := s.reports().Get(ctx, name)
	if err != nil {
		pod, err := s.admin.Core.CoreV1().Pods(s.ns).Get(ctx, name, metav1.GetOptions{})
		require.NoError(s.t, err)
		r = &v1alpha1.SyncReport{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.ns, Labels: map[string]string{v1alpha1.LabelCRName: "site"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: name, UID: pod.UID}}}}
		r.Status = v1alpha1.SyncReportStatus{Format: 1, Gateway: name, Profile: "default", Phase: v1alpha1.GatewayPending}
		change(&r.Status)
		s.note(name, r.Status)
		_, err = s.reports().Create(ctx, r, metav1.CreateOptions{})
		require.NoError(s.t, err)
		return
	}
	change(&r.Status)
	s.note(name, r.Status)
	_, err = s.reports().Update(ctx, r, metav1.UpdateOptions{})
	require.NoError(s.t, err)
}

// note records a report before it is written.
func (s *site) note(name string, r v1alpha1.SyncReportStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reported[name] == nil {
		s.reported[name] = map[string]bool{}
	}
	s.reported[name][fmt.Sprint(r.Commit, r.Generation)] = r.Phase == v1alpha1.GatewaySynced || r.Phase == v1alpha1.GatewayStandby
}

// record watches every status until the test ends and checks that Ready is never ahead of the gateways.
func (s *site) record() {
	s.t.Helper()
	w, err := s.admin.Dynamic.Resource(kube.GatewaySync.Resource()).Namespace(s.ns).Watch(s.t.Context(), metav1.ListOptions{})
	require.NoError(s.t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			data, err := json.Marshal(e.Object)
			if err != nil {
				continue
			}
			var gs v1alpha1.GatewaySync
			if json.Unmarshal(data, &gs) != nil {
				continue
			}
			s.mu.Lock()
			s.statuses = append(s.statuses, gs.Status)
			if strings.HasPrefix(condition(&gs.Status, v1alpha1.ConditionReady), "True/") && len(gs.Status.Conditions) > 0 {
				for _, g := range gs.Status.DiscoveredGateways {
					if !s.reported[g.PodName][fmt.Sprint(gs.Status.Target.Commit, gs.Status.ObservedGeneration)] {
						s.t.Errorf("Ready is true, and %s has not reported %s", g.Name, gs.Status.Target.Commit)
					}
				}
			}
			s.mu.Unlock()
		}
	}()
	s.t.Cleanup(func() { w.Stop(); <-done })
}

func (s *site) target() v1alpha1.SyncTargetSpec {
	s.t.Helper()
	t, err := s.targets().Get(s.t.Context(), "site")
	require.NoError(s.t, err)
	return t.Spec
}

// newer creates the target that a lead of a newer version would write.
func (s *site) newer(spec v1alpha1.SyncTargetSpec) {
	s.t.Helper()
	spec.Format = v1alpha1.TargetFormat + 1
	t := &v1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: "site", Namespace: s.ns, OwnerReferences: []metav1.OwnerReference{{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindGatewaySync, Name: "site", UID: s.sync().UID}}}, Spec: spec}
	_, err := s.targets().Create(s.t.Context(), t, metav1.CreateOptions{})
	require.NoError(s.t, err)
}

// holders starts watching the lock. The returned function lists the holders seen so far; "" means that the lock was free.
func (s *site) holders() func() []string {
	s.t.Helper()
	w, err := s.admin.Dynamic.Resource(kube.SyncTarget.Resource()).Namespace(s.ns).Watch(s.t.Context(), metav1.ListOptions{})
	require.NoError(s.t, err)
	s.t.Cleanup(w.Stop)
	var seen []string
	return func() []string {
		last := s.target().Lead.Holder
		require.Eventually(s.t, func() bool {
			for {
				select {
				case e := <-w.ResultChan():
					u, ok := e.Object.(*unstructured.Unstructured)
					if !ok {
						return false // the watch ended
					}
					holder, _, _ := unstructured.NestedString(u.Object, "spec", "lead", "holder")
					seen = append(seen, holder)
				default:
					seen = slices.Compact(seen)
					return len(seen) > 1 && seen[len(seen)-1] == last
				}
			}
		}, tenfold, 10*time.Millisecond)
		return seen
	}
}

func (s *site) sync() *v1alpha1.GatewaySync {
	s.t.Helper()
	gs, err := s.syncs().Get(s.t.Context(), "site")
	require.NoError(s.t, err)
	return gs
}

// until waits for a status.
func (s *site) until(what string, ok func(*v1alpha1.GatewaySync) bool) *v1alpha1.GatewaySync {
	s.t.Helper()
	var last *v1alpha1.GatewaySync
	deadline := time.Now().Add(tenfold)
	for time.Now().Before(deadline) {
		if last = s.sync(); ok(last) {
			return last
		}
		time.Sleep(20 * time.Millisecond)
	}
	st, _ := json.MarshalIndent(last.Status, "", "  ")
	require.FailNow(s.t, "never: "+what, "%s", st)
	return nil
}

func (s *site) untilReady(want string) *v1alpha1.GatewaySync {
	s.t.Helper()
	return s.until("Ready "+want, func(gs *v1alpha1.GatewaySync) bool { return condition(&gs.Status, v1alpha1.ConditionReady) == want })
}

// untilTarget waits until the target has the commit and the current generation.
func (s *site) untilTarget(commit string) v1alpha1.SyncTargetSpec {
	s.t.Helper()
	var t v1alpha1.SyncTargetSpec
	require.Eventually(s.t, func() bool {
		got, err := s.targets().Get(s.t.Context(), "site")
		if err != nil {
			return false
		}
		t = got.Spec
		return t.Commit == commit && t.Generation == s.sync().Generation
	}, tenfold, 20*time.Millisecond, "the target never is %s", commit)
	return t
}

// annotate sets annotations of the GatewaySync. An empty value removes the annotation.
func (s *site) annotate(pairs ...string) {
	s.t.Helper()
	a := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		a[pairs[i]] = pairs[i+1]
		if pairs[i+1] == "" {
			a[pairs[i]] = nil
		}
	}
	s.patch(map[string]any{"metadata": map[string]any{"annotations": a}})
}

func (s *site) patch(change map[string]any) {
	s.t.Helper()
	data, err := json.Marshal(change)
	require.NoError(s.t, err)
	_, err = s.admin.Dynamic.Resource(kube.GatewaySync.Resource()).Namespace(s.ns).Patch(s.t.Context(), "site", types.MergePatchType, data, metav1.PatchOptions{FieldManager: "stoker-request"})
	require.NoError(s.t, err)
}

// events counts the Events by "object:reason".
func (s *site) events() map[string]int {
	s.t.Helper()
	out := map[string]int{}
	for _, e := range s.eventList() {
		out[strings.ToLower(e.Regarding.Kind[:1])+":"+e.Regarding.Name+":"+e.Reason]++
	}
	return out
}

// untilEvents waits for the given number of each Event. Events are sent independently of the status and may arrive after it.
func (s *site) untilEvents(want map[string]int) {
	s.t.Helper()
	require.EventuallyWithT(s.t, func(t *assert.CollectT) {
		got := s.events()
		for what, n := range want {
			assert.Equal(t, n, got[what], what)
		}
	}, tenfold, 50*time.Millisecond)
}

func (s *site) eventList() []eventsv1.Event {
	s.t.Helper()
	list, err := s.admin.Core.EventsV1().Events(s.ns).List(s.t.Context(), metav1.ListOptions{})
	require.NoError(s.t, err)
	return list.Items
}

// delete removes the GatewaySync. If collect is set, it also removes the target, as the garbage collector would.
func (s *site) delete(collect bool) {
	s.t.Helper()
	require.NoError(s.t, s.syncs().Delete(s.t.Context(), "site", metav1.DeleteOptions{}))
	if collect {
		s.deleteTarget()
	}
}

func (s *site) deleteTarget() {
	s.t.Helper()
	err := s.targets().Delete(s.t.Context(), "site", metav1.DeleteOptions{})
	if err != nil {
		require.ErrorContains(s.t, err, "not found")
	}
}

// create creates the GatewaySync again.
func (s *site) create(ref string) {
	s.t.Helper()
	gs := &v1alpha1.GatewaySync{}
	gs.Name, gs.Namespace = "site", s.ns
	gs.Spec.Git.Repo, gs.Spec.Git.Ref = s.git.URL("site.git"), ref
	gs.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{"default": {Mappings: []v1alpha1.Mapping{{Source: "projects", Destination: "projects"}}}}
	_, err := s.syncs().Create(s.t.Context(), gs, metav1.CreateOptions{})
	require.NoError(s.t, err)
}

// addCondition adds a condition with another field manager. It retries, because a lead may write the status concurrently.
func (s *site) addCondition(condition string) {
	s.t.Helper()
	require.NoError(s.t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		gs := s.sync()
		gs.Status.Conditions = append(gs.Status.Conditions, metav1.Condition{Type: condition, Status: metav1.ConditionTrue, Reason: "ByBob", LastTransitionTime: metav1.Now()})
		_, err := s.syncs().Update(s.t.Context(), gs, metav1.UpdateOptions{FieldManager: "bob"}, "status")
		return err
	}))
}
