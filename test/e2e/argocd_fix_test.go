//go:build linux

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/e2e/argocd"
	"stoker.io/stoker/test/gitserver"
)

// What Argo CD reports for a sync that hangs.
const (
	forGateways    = "waiting for healthy state of apps/StatefulSet/line"
	forGatewaySync = "waiting for healthy state of stoker.io/GatewaySync/line"
)

// nowhere is an image that cannot be pulled.
const nowhere = "registry.invalid/gateway:" + imageTag

// The GatewaySync does not change together with the gateways, so the sync of the fix does not wait for it.
func aCommitFixesGatewaysThatCannotStart(t *testing.T, w *world) {
	p := w.plant(t)
	name := p.namespace + "-deployment.git"
	d := p.deploy("plain", gitserver.NewRepo(t, filepath.Join(w.gitRoot, name)), name, "plain")
	d.waitForFirstSync(d.repo.Head())
	d.checkRuns(p.head())
	generation := d.get().Generation

	stuck := d.commitManifests("an image that does not exist", gateways(nowhere))
	d.waitUntilHangs(stuck, forGateways)
	d.cannotStart("line-1")
	d.eventually(t, "the GatewaySync of the first wave is not Healthy", func() string {
		return missingFrom(d.get().Status.GatewaysReady, "1/2")
	})
	d.sees("kubectl get application ", "Running: "+forGateways)
	d.sees("stoker status ", "1 of 2", "line-1")
	d.sees("stoker check ", "line")
	d.sees("kubectl get jobs,pods ", "line-1", "stoker-wait", "Image")
	fixed := d.commitManifests("the image that there is")
	d.isBehind(fixed, stuck)
	d.terminate(stuck)
	app := d.waitForSync(fixed, "Succeeded")
	d.checkRuns(p.head())
	assert.Equal(t, generation, d.get().Generation)
	assert.Equal(t, []string{"StatefulSet/line"}, applied(app), "the sync must not apply the unchanged GatewaySync")
	assert.Contains(t, hooks(app), "Job/stoker-wait", "the sync must run hooks")
}

// The chart writes the revision to the GatewaySync. Every commit therefore changes it, and the sync waits
// for it.
func aChartsGatewaysAreFixedAlone(t *testing.T, w *world) {
	p := w.plant(t)
	d := p.deploy("helm", p.repo, p.repoName, "helm")
	first := p.head()
	d.waitForFirstSync(first)
	d.checkWaves()
	d.checkRuns(first)

	second := p.push("second")
	d.waitForSync(second, "Succeeded")
	d.checkRuns(second)
	assert.Equal(t, second, d.get().Spec.Git.Ref, "the chart must receive the revision")

	stuck := d.commitManifests("an image that does not exist", gateways(nowhere))
	d.waitUntilHangs(stuck, forGateways)
	d.cannotStart("line-1")
	fixed := d.commitManifests("the image that there is")
	d.isBehind(fixed, stuck)
	d.terminate(stuck)
	d.waitUntilHangs(fixed, forGatewaySync)
	d.cannotStart("line-1")
	d.terminate(fixed)
	d.syncGatewaysAlone(fixed)
	d.ready(2)
	d.synced(fixed, 2)
	d.shows("the Application is Synced and Healthy", "Synced Healthy")
	assert.Equal(t, fixed, d.get().Spec.Git.Ref)
}

// gateways sets the image of the gateways.
func gateways(image string) change {
	return func(u *unstructured.Unstructured) {
		switch u.GetKind() {
		case chartValues:
			set(u, image, "images", "gateway")
		case "StatefulSet":
			containers(ensureMap(u.Object, "spec", "template", "spec"), image)
		}
	}
}

// waitUntilHangs waits until the sync of a revision reports that it waits for something.
func (d *deployment) waitUntilHangs(revision, what string) {
	d.t.Helper()
	refresh := d.refresher()
	d.eventually(d.t, "the sync of "+short7(revision)+" is "+what, func() string {
		app, err := argocd.Get(d.ctx, d.dynamic, d.namespace)
		if err != nil {
			return err.Error()
		}
		refresh(app, revision)
		o := app.Status.OperationState
		if o != nil && o.SyncResult.Revision == revision {
			require.False(d.t, o.Over(), "the sync must not end: %s", summary(app))
			for _, r := range o.SyncResult.Resources { // the message also names resources that are not applied yet
				if r.HookPhase == "Running" && strings.HasSuffix(what, "/"+r.Kind+"/"+r.Name) {
					return missingFrom(o.Message, what)
				}
			}
		}
		return summary(app)
	})
}

// cannotStart waits until a pod cannot start because its image cannot be pulled.
func (d *deployment) cannotStart(pod string) {
	d.t.Helper()
	d.eventually(d.t, pod+" has no image", func() string {
		all := d.pods()
		i := slices.IndexFunc(all, func(p corev1.Pod) bool { return p.Name == pod })
		if i < 0 {
			return "there is no " + pod
		}
		for _, c := range all[i].Status.InitContainerStatuses {
			if c.State.Waiting != nil && strings.Contains(c.State.Waiting.Reason, "Image") {
				return ""
			}
		}
		return string(all[i].Status.Phase)
	})
}

// isBehind checks that Argo CD has seen a revision but does not sync it while the sync of another revision
// hangs.
func (d *deployment) isBehind(revision, stuck string) {
	d.t.Helper()
	for range 2 { // the refresh that found the revision, and the next one
		require.NoError(d.t, argocd.Refresh(d.ctx, d.dynamic, d.namespace))
		d.eventually(d.t, "Argo CD sees "+short7(revision), func() string {
			app, err := argocd.Get(d.ctx, d.dynamic, d.namespace)
			if err != nil {
				return err.Error()
			}
			if app.Annotations[argocd.RefreshAnnotation] == "" && app.Status.Sync.Revision == revision && app.Status.Sync.Status == "OutOfSync" {
				return ""
			}
			return summary(app)
		})
	}
	app, err := argocd.Get(d.ctx, d.dynamic, d.namespace)
	require.NoError(d.t, err)
	assert.False(d.t, app.Status.OperationState.Over(), summary(app))
	assert.Equal(d.t, stuck, app.Status.OperationState.SyncResult.Revision, summary(app))
}

// again is how long terminate waits before it repeats the command. Argo CD can lose a termination that
// coincides with a write of the operation state.
const again = 10 * time.Second

// terminate ends the sync of a revision with the argocd CLI.
func (d *deployment) terminate(revision string) {
	d.t.Helper()
	var typed time.Time
	var answer string
	d.eventually(d.t, "the sync of "+short7(revision)+" is terminated", func() string {
		for _, a := range d.applications.all() { // the next sync may have started already
			o := a.Status.OperationState
			if o != nil && o.SyncResult.Revision == revision && o.Phase == "Failed" && strings.Contains(o.Message, "terminated") {
				assert.NotContains(d.t, strings.Join(hooks(a), " "), "stoker-rollback", "a terminated sync must not roll back")
				return ""
			}
		}
		app, err := argocd.Get(d.ctx, d.dynamic, d.namespace)
		require.NoError(d.t, err)
		o := app.Status.OperationState
		if o.SyncResult.Revision == revision && o.Phase == "Running" && time.Since(typed) > again {
			answer, _ = d.types("argocd app terminate-op ")
			typed = time.Now()
		}
		return answer + summary(app)
	})
}

// syncGatewaysAlone syncs only the StatefulSet.
func (d *deployment) syncGatewaysAlone(revision string) {
	d.t.Helper()
	d.sees("kubectl patch application ", "patched")
	d.eventually(d.t, "only the gateways are synced", func() string {
		for _, app := range d.applications.all() { // an automatic sync may have followed already
			o := app.Status.OperationState
			if o != nil && o.Phase == "Succeeded" && o.SyncResult.Revision == revision && len(o.Operation.Sync.Resources) == 1 {
				assert.Equal(d.t, []string{"StatefulSet/line"}, applied(app))
				assert.Empty(d.t, hooks(app), "a partial sync must not run hooks")
				return ""
			}
		}
		app, err := argocd.Get(d.ctx, d.dynamic, d.namespace)
		require.NoError(d.t, err)
		return summary(app)
	})
}

// applied returns the resources that a sync applied, without hooks.
func applied(app *argocd.Application) (names []string) {
	for _, r := range app.Status.OperationState.SyncResult.Resources {
		if r.HookType == "" {
			names = append(names, r.Kind+"/"+r.Name)
		}
	}
	return names
}

// hooks returns the hooks that a sync ran.
func hooks(app *argocd.Application) (names []string) {
	for _, r := range app.Status.OperationState.SyncResult.Resources {
		if r.HookType != "" {
			names = append(names, r.Kind+"/"+r.Name)
		}
	}
	return names
}

// requestEvery is the time that Argo CD has to revert a request.
const requestEvery = 8 * time.Second

// Argo CD with self-heal reverts changes to fields that git sets. It must not revert requests, which are
// annotations. The test requests one tag after the other. In between, it edits the spec by hand, syncs a commit,
// moves main, and polls git. The gateways must run the requested tag each time. At the end, a commit that changes
// spec.git.ref wins over the last request.
func selfHealKeepsRequests(t *testing.T, w *world) {
	p := w.plant(t)
	p.mu.Lock()
	p.requestsOlder = true
	p.mu.Unlock()
	p.secret("stoker-webhook", "secret", w.webhookToken)
	p.letReceiverRead("stoker-webhook")
	name := p.namespace + "-deployment.git"
	d := p.deploy("plain", gitserver.NewRepo(t, filepath.Join(w.gitRoot, name)), name, "plain", withWebhook)
	d.subscribe()
	d.waitForFirstSync(d.repo.Head())
	d.waitForNotified(p.head())
	d.checkResourceActions()

	tags := []string{"v1", "v2"}
	p.repo.Tag("v1", p.head())
	p.repo.Tag("v2", p.push("v2"))
	before, operations := d.get(), len(d.operations())
	var requested []string
	ticker := time.NewTicker(requestEvery)
	defer ticker.Stop()
	for round := range 3 { // sequence: requests of one deployment
		tag := tags[round%2]
		d.requestRef(tag)
		requested = append(requested, tag)
		d.waitForTag(tag)
		switch round {
		case 1:
			d.editSpecByHand()
		case 2:
			d.waitForSync(d.commitManifests("a note", withWebhook, withNote("changed")), "Succeeded")
		}
		p.push(fmt.Sprintf("main moves on, %d", round))
		d.requestPoll()
		<-ticker.C
		d.waitForTag(tag)
	}
	d.checkNoReverts(before, requested, operations)
	d.waitForNotification()

	p.repo.Tag("v3", p.push("v3"))
	d.waitForSync(d.commitManifests("v3", withWebhook, withNote("changed"), withRef("v3")), "Succeeded")
	d.waitForNotified(p.head())
	assert.Equal(t, "v3", d.get().Status.Target.Ref, "a later change of the spec must supersede the request")
}

// withWebhook sets the Secret that authenticates senders. It also sets the polling interval, so that git owns
// this field and Argo CD self-heals it.
func withWebhook(u *unstructured.Unstructured) {
	if u.GetKind() == v1alpha1.KindGatewaySync {
		set(u, "60s", "spec", "polling", "interval")
		set(u, map[string]any{"name": "stoker-webhook", "key": "secret"}, "spec", "webhook", "secretRef")
	}
}

// withNote changes an annotation of a Service, which causes a sync and has no other effect.
func withNote(text string) change {
	return func(u *unstructured.Unstructured) {
		if u.GetKind() == "Service" {
			annotations := u.GetAnnotations()
			annotations["example.com/note"] = text
			u.SetAnnotations(annotations)
		}
	}
}

// letReceiverRead gives the receiver the right to read a Secret of the plant, as docs/how-to/webhooks.md shows.
func (p *plant) letReceiverRead(secret string) {
	p.t.Helper()
	const name = "stoker-receiver-secrets"
	_, err := p.client.RbacV1().Roles(p.namespace).Create(p.ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{secret}, Verbs: []string{"get"}}},
	}, metav1.CreateOptions{})
	require.NoError(p.t, err)
	_, err = p.client.RbacV1().RoleBindings(p.namespace).Create(p.ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: release, Name: "stoker-receiver"}},
	}, metav1.CreateOptions{})
	require.NoError(p.t, err)
}

// subscribe makes Argo CD notify the receiver of each sync.
func (d *deployment) subscribe() {
	d.t.Helper()
	patch := `{"metadata":{"annotations":{"notifications.argoproj.io/subscribe.on-stoker.stoker":"","stoker.io/gatewaysync":"line"}}}`
	_, err := argocd.Applications(d.dynamic).Patch(d.ctx, d.namespace, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(d.t, err)
}

// requestRef requests a ref from the receiver, like any program that has the secret.
func (d *deployment) requestRef(ref string) { d.post(fmt.Sprintf(`{"ref":%q}`, ref)) }

// requestPoll asks the receiver for a poll of git.
func (d *deployment) requestPoll() { d.post(`{}`) }

// post sends a request. Like any sender it repeats the request while the receiver answers 503, which it does while the API server is slow.
func (d *deployment) post(body string) {
	d.t.Helper()
	d.eventually(d.t, "the receiver accepts "+body, func() string {
		code, answer := d.send(body)
		if code == http.StatusServiceUnavailable {
			return answer
		}
		require.Equal(d.t, http.StatusAccepted, code, "%s", answer)
		return ""
	})
}

func (d *deployment) send(body string) (code int, answer string) {
	d.t.Helper()
	address := d.receiver(d.t) + "/webhook/" + d.namespace + "/line"
	request, err := http.NewRequestWithContext(d.ctx, http.MethodPost, address, strings.NewReader(body))
	require.NoError(d.t, err)
	request.Header.Set("Authorization", "Bearer "+d.webhookToken)
	request.Header.Set("Content-Type", "application/json")
	// The receiver closes idle connections after a short time, so a reused connection may be closing.
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	require.NoError(d.t, err)
	defer response.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	require.NoError(d.t, err)
	return response.StatusCode, string(raw)
}

// waitForTag waits until the gateways run the commit of a requested tag.
func (d *deployment) waitForTag(tag string) {
	d.t.Helper()
	commit := d.plant.repo.Git("rev-parse", "refs/tags/"+tag)
	d.eventually(d.t, "all run "+tag, func() string {
		gs := d.get()
		target := gs.Status.Target
		ready := meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionReady)
		isReady := ready != nil && ready.Status == metav1.ConditionTrue && ready.ObservedGeneration == gs.Generation // of the current spec
		if target != nil && target.Ref == tag && target.Commit == commit && isReady && gs.Status.GatewaysReady == "2/2" {
			return ""
		}
		return describe(gs)
	})
	d.checkLoaded(commit)
}

// waitForNotified waits until the receiver has accepted the notification of the last sync, which makes the lead
// poll git, and until the gateways run a commit.
func (d *deployment) waitForNotified(commit string) {
	d.t.Helper()
	d.waitForNotification()
	d.synced(commit, 2)
}

// operations returns the start times of all syncs of the Application.
func (d *deployment) operations() []metav1.Time {
	var all []metav1.Time
	for _, a := range d.applications.all() {
		if o := a.Status.OperationState; o != nil && !slices.ContainsFunc(all, func(t metav1.Time) bool { return t.Equal(&o.StartedAt) }) {
			all = append(all, o.StartedAt)
		}
	}
	return all
}

// editSpecByHand changes the spec and waits until Argo CD has reverted the change without running a hook.
func (d *deployment) editSpecByHand() {
	d.t.Helper()
	patch := `{"spec":{"polling":{"interval":"7s"}}}`
	_, err := d.syncs().Patch(d.ctx, "line", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(d.t, err)
	d.eventually(d.t, "self-heal reverts the spec", func() string {
		if now := d.get().Spec.Polling.Interval; now != "60s" {
			return "polling.interval is " + now
		}
		app, err := argocd.Get(d.ctx, d.dynamic, d.namespace)
		require.NoError(d.t, err)
		if o := app.Status.OperationState; len(o.Operation.Sync.Resources) == 0 || o.Phase != "Succeeded" {
			return summary(app)
		}
		return ""
	})
}

// checkNoReverts checks every state recorded since before: only the requests changed the requested ref, in their
// order, and Argo CD synced twice, once for the change by hand and once for a commit.
func (d *deployment) checkNoReverts(before *v1alpha1.GatewaySync, requested []string, operations int) {
	d.t.Helper()
	var seen []string
	last := before.Annotations[v1alpha1.AnnotationRequestedRef]
	for _, gs := range d.gatewaySyncs.all() {
		if gs.Generation < before.Generation {
			continue
		}
		assert.Equal(d.t, "main", gs.Spec.Git.Ref, "only git may change the ref of the spec")
		if ref := gs.Annotations[v1alpha1.AnnotationRequestedRef]; ref != last {
			seen, last = append(seen, ref), ref
		}
	}
	assert.Equal(d.t, requested, seen, "no other client may change a request")
	assert.Equal(d.t, before.Generation+2, d.get().Generation, "only the manual change and its revert may change the spec")
	assert.Len(d.t, d.operations(), operations+2, "syncs of Argo CD:%s", distinctStates(d.applications.all()))
	for _, a := range d.applications.all() {
		assert.NotEqual(d.t, "Degraded", a.Status.Health.Status, summary(a))
	}
}

// waitForNotification waits until the receiver has accepted the notification of the last sync.
func (d *deployment) waitForNotification() {
	d.t.Helper()
	d.eventually(d.t, "the receiver accepts the notification of the last sync", func() string {
		app, err := argocd.Get(d.ctx, d.dynamic, d.namespace)
		require.NoError(d.t, err)
		want := app.Name + "/" + app.Status.OperationState.StartedAt.UTC().Format(time.RFC3339)
		ids := d.get().Annotations[v1alpha1.AnnotationRequestedIDs]
		return missingFrom(ids, "argocd", want)
	})
}
