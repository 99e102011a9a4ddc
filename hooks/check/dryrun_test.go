package check

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/test/cluster/kubetest"
)

// The API server says in a dry run what no object shows: that it cannot call the injector, or does not, and what a quota refuses.
func TestCheckDryRun(t *testing.T) {
	cluster := kubetest.Control(t, kubetest.Private())
	namespace := cluster.Namespace(t)
	cluster.ApplyYAML(t, namespace, gateways+"---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: default}\n")
	configuration := func(selector string) string {
		_, text, _ := strings.Cut(strings.ReplaceAll(installed, `"CA"`, `"`+certificate(t, time.Now().Add(-time.Hour))+`"`), "apiVersion: admissionregistration")
		return strings.NewReplacer("failurePolicy: Ignore", "failurePolicy: Fail", "objectSelector: {matchLabels: {no: pod}}", selector).Replace("apiVersion: admissionregistration" + text)
	}
	l := checker(t, cluster.RESTConfig(), namespace)
	says := func(want string) {
		t.Helper()
		var found string
		require.Eventually(t, func() bool {
			found = look(t, l)[topicWebhook]
			return strings.Contains(found, want)
		}, 2*time.Minute, 100*time.Millisecond, "%s", want)
	}
	cluster.ApplyYAML(t, "", configuration("objectSelector: {matchLabels: {no: pod}}"))
	says("failed: the API server does not call the injector for namespace " + namespace)
	cluster.ApplyYAML(t, namespace, "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: pods}\nspec: {hard: {pods: 0}}\nstatus: {hard: {pods: 0}, used: {pods: 0}}\n")
	_, err := l.Core.CoreV1().ResourceQuotas(namespace).Patch(t.Context(), "pods", types.MergePatchType, []byte(`{"status":{"hard":{"pods":"0"},"used":{"pods":"0"}}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	says("warning: plant: the API server would refuse a gateway pod with an agent (dry run): pods \"stoker-check\" is forbidden: exceeded quota: pods")
	cluster.ApplyYAML(t, "", configuration("objectSelector: {}"))
	says("failed: the API server cannot call the injector, so pods start without agents: Internal error occurred: failed calling webhook")
	pods, err := l.Core.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, p := range pods.Items {
		assert.NotEqual(t, "stoker-check", p.Name, "a check changes nothing")
	}
}
