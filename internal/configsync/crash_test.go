package configsync_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

var errKilled = errors.New("killed")

// killed is a client that dies at its request number at. after means that the API server still gets that request.
type killed struct {
	http.RoundTripper
	at, count *atomic.Int64
	after     bool
}

func (k killed) RoundTrip(req *http.Request) (*http.Response, error) {
	n := k.count.Add(1)
	switch {
	case n > k.at.Load(), n == k.at.Load() && !k.after:
		return nil, errKilled
	case n == k.at.Load():
		resp, err := k.RoundTripper.RoundTrip(req)
		if err == nil {
			_ = resp.Body.Close() // the answer is lost
		}
		return nil, errKilled
	}
	return k.RoundTripper.RoundTrip(req)
}

// G3: a run that ends at any request, before or after the API server saw it, leaves nothing untracked; the next one completes it.
func TestKilledAtEachRequest(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]bool{"before": false, "after": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.commit("k8s/a.yaml", configMap("seed", "0"))
			w.create("")
			w.must()
			const most = 200
			total := int64(most)
			// sequence: each iteration continues with what the one before left behind.
			for at := int64(1); at < most; at++ {
				commit := w.commit("k8s/a.yaml", configMap(fmt.Sprintf("a%d", at), "1")+configMap(fmt.Sprintf("b%d", at), "1")+configMap("seed", fmt.Sprint(at)))
				count, last := &atomic.Int64{}, &atomic.Int64{}
				last.Store(at)
				config := w.RESTConfig()
				config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return killed{rt, last, count, after} })
				_, err := w.engine(config).Apply(t.Context(), w.get(), configsync.Options{Confirm: commit})
				w.tracked()
				if err == nil {
					total = at
					assert.Greater(t, at, int64(8), "the run must send enough requests to be interrupted")
					break
				}
				_, err = w.engine(w.RESTConfig()).Apply(t.Context(), w.get(), configsync.Options{Confirm: commit})
				require.NoError(t, err, "the next run must complete a run that ended at request %d", at)
				w.tracked()
				require.ElementsMatch(t, []string{"seed", fmt.Sprintf("a%d", at), fmt.Sprintf("b%d", at)}, w.ours())
			}
			require.Less(t, total, int64(most), "no run completed")
			w.tracked()
			assert.ElementsMatch(t, []string{"seed", fmt.Sprintf("a%d", total), fmt.Sprintf("b%d", total)}, w.ours())
		})
	}
}

// C3: a run that changes nothing costs one GET for each object, and writes nothing.
func TestUnchangedRunCosts(t *testing.T) {
	w := newWorld(t)
	var text strings.Builder
	for n := range 500 {
		text.WriteString(configMap(fmt.Sprintf("m%d", n), "1"))
	}
	w.commit("k8s/a.yaml", text.String())
	w.create("")
	w.must()
	w.must() // the rows of the status change from Created to Unchanged
	var reads, writes atomic.Int64
	config := w.watched(func(req *http.Request) {
		switch {
		case req.Method != http.MethodGet:
			writes.Add(1)
		case strings.Contains(req.URL.Path, "/configmaps/"):
			reads.Add(1)
		}
	})
	_, err := w.engine(config).Apply(t.Context(), w.get(), configsync.Options{})
	require.NoError(t, err)
	assert.Equal(t, int64(500), reads.Load())
	assert.Zero(t, writes.Load())
	assert.Len(t, w.get().Status.Targets, 500)
}

// as returns the configuration of an account of the namespace with rules.
func (w *world) as(rules ...rbacv1.PolicyRule) *rest.Config {
	w.t.Helper()
	w.account(w.namespace, "deployer", rules...)
	return w.As(w.t, w.namespace, "deployer", "")
}

func rule(groups, resources string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{groups}, Resources: strings.Split(resources, ","), Verbs: verbs}
}

// G2: a run has the rights of its caller and no others. If they do not suffice, nothing is changed.
func TestRightsOfCaller(t *testing.T) {
	t.Parallel()
	status := rule("stoker.io", "configsyncs,configsyncs/status", "get", "update")
	own := rule("", "configmaps", "get", "create", "patch", "delete")
	for name, c := range map[string]struct {
		rules  []rbacv1.PolicyRule
		text   string
		reason v1alpha1.Reason
	}{
		"all":               {[]rbacv1.PolicyRule{status, own}, configMap("a", "1"), ""},
		"no Secrets":        {[]rbacv1.PolicyRule{status, own}, configMap("a", "1") + "{apiVersion: v1, kind: Secret, metadata: {name: s}}", v1alpha1.ReasonApplyForbidden},
		"no status":         {[]rbacv1.PolicyRule{rule("stoker.io", "configsyncs", "get"), own}, configMap("a", "1"), v1alpha1.ReasonApplyForbidden},
		"only reading":      {[]rbacv1.PolicyRule{status, rule("", "configmaps", "get")}, configMap("a", "1"), v1alpha1.ReasonApplyForbidden},
		"another namespace": {[]rbacv1.PolicyRule{status, own}, configMap("a", "1") + "{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: kube-system}}", v1alpha1.ReasonApplyForbidden},
		"cluster":           {[]rbacv1.PolicyRule{status, own}, configMap("a", "1") + "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: x}}", v1alpha1.ReasonApplyForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.commit("k8s/a.yaml", c.text)
			w.create("")
			_, err := w.engine(w.as(c.rules...)).Apply(t.Context(), w.get(), configsync.Options{})
			require.Equal(t, c.reason, failure.Reason(err, ""), "%v", err)
			if c.reason != "" {
				assert.Empty(t, w.ours())
				return
			}
			assert.Equal(t, []string{"a"}, w.ours())
		})
	}
}

// An object that the caller may not read fails the run only if the run would delete it, and it may exist.
func TestPruneOfUnreadableObject(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prune, kind, namespace string
		program                bool // the run has StatusClients, which may read namespaces
		reason                 v1alpha1.Reason
		owned                  int // entries of the inventory after the run
	}{
		"owned":                    {"owned", "ConfigMap", "kube-system", true, v1alpha1.ReasonPruneFailed, 2},
		"none":                     {"none", "ConfigMap", "kube-system", false, "", 2},
		"never pruned":             {"owned", "PersistentVolumeClaim", "kube-system", false, "", 2},
		"namespace is gone":        {"owned", "ConfigMap", "gone", true, "", 1},
		"namespace cannot be read": {"owned", "ConfigMap", "gone", false, v1alpha1.ReasonPruneFailed, 2},
		"namespace is gone, none":  {"none", "ConfigMap", "gone", true, "", 1},
		"cluster-scoped":           {"owned", "Node", "", true, v1alpha1.ReasonPruneFailed, 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.commit("k8s/a.yaml", configMap("a", "1"))
			w.create("prune: " + c.prune)
			w.must()
			cs := w.get()
			cs.Status.Inventory = append(cs.Status.Inventory, manifest.Entry{ID: manifest.ID{Kind: c.kind, Namespace: c.namespace, Name: "b"}, UID: "1"}.String())
			_, err := kube.ConfigSyncs(w.admin.Dynamic, w.namespace).Update(t.Context(), cs, metav1.UpdateOptions{}, "status")
			require.NoError(t, err)
			engine := w.engine(w.as(rule("", "configmaps", "get"), rule("stoker.io", "configsyncs,configsyncs/status", "get", "update")))
			if c.program {
				engine.StatusClients = &w.admin
			}
			_, err = engine.Apply(t.Context(), w.get(), configsync.Options{})
			assert.Equal(t, c.reason, failure.Reason(err, ""), "%v", err)
			assert.Len(t, w.get().Status.Inventory, c.owned)
			if c.reason == "" {
				assert.NotEqual(t, v1alpha1.ConfigFailed, w.get().Status.Targets[0].State)
			}
		})
	}
}

// changes matches the requests of a method whose URL does not ask for a dry run.
func changes(method string) func(*http.Request) bool {
	return func(req *http.Request) bool { return req.Method == method && !req.URL.Query().Has("dryRun") }
}

// G2: if an object changes while the run is under way, the run reads it again and decides again whether to delete it.
func TestPruneOfChangedObject(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		patch string
		gone  bool
	}{
		"field of another writer":           {`{"data":{"more":"x"}}`, true},
		"mark removed":                      {`{"metadata":{"annotations":{"stoker.io/configsync":null}}}`, true},
		"prune disabled on the object only": {`{"metadata":{"annotations":{"stoker.io/prune":"disabled"}}}`, true},
		"nothing of a run left":             {`{"data":null,"metadata":{"annotations":null}}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.commit("k8s/a.yaml", configMap("a", "1")+configMap("b", "1"))
			w.create("")
			w.must()
			w.commit("k8s/a.yaml", configMap("a", "1"))
			config := w.meanwhile(changes(http.MethodDelete), func() {
				_, err := w.core.CoreV1().ConfigMaps(w.namespace).Patch(t.Context(), "b", types.MergePatchType, []byte(c.patch), metav1.PatchOptions{})
				assert.NoError(t, err)
			})
			_, err := w.engine(config).Apply(t.Context(), w.get(), configsync.Options{})
			if c.gone {
				require.NoError(t, err)
				assert.Nil(t, w.data("b"))
				return
			}
			assert.True(t, failure.Is(err, v1alpha1.ReasonPruneFailed), "%v", err)
			assert.NotNil(t, w.data("b"))
			assert.Len(t, w.get().Status.Inventory, 2)
		})
	}
}

// G2: an object that gets the name of a planned one while the run is under way is not changed, and not pruned later. If the planned object is
// only deleted meanwhile, the run creates it again.
func TestApplySparesReplacement(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first, second  string
		drift, deleted bool
	}{
		"create":    {first: configMap("a", "1"), second: configMap("x", "1")},
		"configure": {first: configMap("x", "1"), second: configMap("x", "2")},
		"repair":    {first: configMap("x", "1"), second: configMap("x", "1"), drift: true},
		"recreate":  {first: sealed("x", "1", recreate), second: sealed("x", "2", recreate)},
		"deleted":   {first: configMap("x", "1"), second: configMap("x", "2"), deleted: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			maps := w.core.CoreV1().ConfigMaps(w.namespace)
			w.commit("k8s/a.yaml", c.first, "k8s/b.yaml", configMap("b", "1"))
			w.create("")
			w.must()
			if c.drift {
				_, err := maps.Patch(t.Context(), "x", types.MergePatchType, []byte(`{"data":{"a":"edited"}}`), metav1.PatchOptions{FieldManager: "kubectl-edit"})
				require.NoError(t, err)
			}
			w.commit("k8s/a.yaml", c.second)
			config := w.meanwhile(changes(http.MethodPatch), func() {
				_ = maps.Delete(t.Context(), "x", metav1.DeleteOptions{})
				if !c.deleted {
					w.ApplyYAML(t, w.namespace, configMap("x", "theirs"))
				}
			})
			_, err := w.engine(config).Apply(t.Context(), w.get(), configsync.Options{})
			if c.deleted {
				require.NoError(t, err)
				assert.Equal(t, map[string]string{"a": "2"}, w.data("x"))
				return
			}
			assert.True(t, failure.Is(err, v1alpha1.ReasonNotOwned), "%v", err)
			assert.Equal(t, map[string]string{"a": "theirs"}, w.data("x"))
			w.commit("k8s/a.yaml", "")
			w.must()
			assert.Equal(t, map[string]string{"a": "theirs"}, w.data("x"), "the object of another user must not be pruned")
		})
	}
}

// C4: a run does not report success if its ConfigSync was deleted and created again.
func TestRunOfRecreatedConfigSync(t *testing.T) {
	w := newWorld(t)
	w.commit("k8s/a.yaml", configMap("a", "1"))
	w.create("")
	w.must()
	stale := w.get()
	require.NoError(t, w.admin.Dynamic.Resource(kube.ConfigSync.Resource()).Namespace(w.namespace).Delete(t.Context(), "plant", metav1.DeleteOptions{}))
	w.create("")
	_, err := w.engine(w.RESTConfig()).Apply(t.Context(), stale, configsync.Options{})
	require.ErrorIs(t, err, configsync.ErrConcurrentChange)
	w.must()
	w.tracked()
}

// C4: a run that read the ConfigSync before another run wrote its status changes nothing, so the inventory keeps what the other one applied.
func TestRunOfStaleConfigSync(t *testing.T) {
	w := newWorld(t)
	w.commit("k8s/a.yaml", configMap("a", "1"))
	w.create("")
	stale := w.get()
	w.must()
	w.commit("k8s/a.yaml", configMap("a", "1")+configMap("b", "1"))
	_, err := w.engine(w.RESTConfig()).Apply(t.Context(), stale, configsync.Options{})
	require.ErrorIs(t, err, configsync.ErrConcurrentChange)
	w.tracked()
	assert.Equal(t, []string{"a"}, w.ours())
}

// C4: a run that another one overtook prunes nothing that the other needs, and does not replace its status.
func TestRunOvertakenByAnother(t *testing.T) {
	t.Parallel()
	const account = "{apiVersion: v1, kind: ServiceAccount, metadata: {name: x}}\n---\n"
	for name, c := range map[string]struct {
		before, then string // what the first run goes from and to
		changes      func(*http.Request) bool
		fails        v1alpha1.Reason // of the first run
	}{
		"while it applies":     {configMap("a", "1") + configMap("x", "1") + account, configMap("a", "2"), changes(http.MethodPatch), ""},
		"without a prune":      {configMap("a", "1"), configMap("a", "2") + configMap("z", "1"), changes(http.MethodPatch), ""},
		"by a run that fails":  {configMap("a", "1"), configMap("a", "2") + broken, changes(http.MethodPatch), v1alpha1.ReasonProgressDeadlineExceeded},
		"while it only checks": {configMap("a", "1"), "# changed\n" + configMap("a", "1"), func(req *http.Request) bool { return strings.HasSuffix(req.URL.Path, "/configmaps/a") }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.commit("k8s/a.yaml", c.before)
			w.create("{progressDeadline: 2s, rollbackOnFailure: LastGood}")
			w.must()
			w.commit("k8s/a.yaml", c.then)
			var newest string
			config := w.meanwhile(c.changes, func() {
				newest = w.commit("k8s/a.yaml", c.before, "k8s/b.yaml", configMap("b", "1"))
				assert.NoError(t, w.run("plant"))
			})
			_, err := w.engine(config).Apply(t.Context(), w.get(), configsync.Options{})
			if c.fails == "" {
				require.ErrorIs(t, err, configsync.ErrConcurrentChange)
			} else {
				require.True(t, failure.Is(err, c.fails), "%v", err)
			}
			assert.Equal(t, newest, w.get().Status.SourceRevision)
			assert.Equal(t, metav1.ConditionTrue, w.condition(v1alpha1.ConditionReady).Status)
			assert.Empty(t, w.get().Annotations, "a run that was overtaken must not request a rollback")
			w.tracked()
			if strings.Contains(c.before, account) {
				assert.NotNil(t, w.data("x"))
				_, err := w.core.CoreV1().ServiceAccounts(w.namespace).Get(t.Context(), "x", metav1.GetOptions{})
				require.NoError(t, err)
			}
			w.must()
			w.tracked()
			assert.Equal(t, "1", w.data("a")["a"])
			assert.Nil(t, w.data("z"))
		})
	}
}
