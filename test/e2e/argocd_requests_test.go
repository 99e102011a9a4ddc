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
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/e2e/argocd"
	"stoker.io/stoker/test/gitserver"
)

// activity is how long senders request refs while Argo CD self-heals the deployment. pace is the time
// between their requests.
const (
	activity = 2 * time.Minute
	pace     = 8 * time.Second
)

// Argo CD reverts changes to fields that git sets. It must not revert requests, which are annotations.
func selfHealLeavesRequestsAlone(t *testing.T, w *world) {
	p := w.plant(t)
	p.mu.Lock()
	p.back = true
	p.mu.Unlock()
	p.secret("stoker-webhook", "secret", w.webhookToken)
	p.mayRead("stoker-webhook")
	name := p.namespace + "-deployment.git"
	d := p.deploy("plain", gitserver.NewRepo(t, filepath.Join(w.gitRoot, name)), name, "plain", webhook)
	d.subscribe()
	d.begins(d.repo.Head())
	d.toldOf(p.head())
	d.buttons()

	tags := []string{"v1", "v2"}
	p.repo.Tag("v1", p.head())
	p.repo.Tag("v2", p.push("v2"))
	before, operations := d.get(), len(d.operations())
	var asked []string
	pacer := time.NewTicker(pace)
	defer pacer.Stop()
	for round, began := 0, time.Now(); round <= 2 || time.Since(began) < activity; round++ {
		tag := tags[round%2]
		d.ask(tag)
		asked = append(asked, tag)
		d.isAt(tag)
		switch round {
		case 1:
			d.drift()
		case 2:
			d.ends(d.deployed("a note", webhook, noted("changed")), "Succeeded")
		}
		p.push(fmt.Sprintf("main moves on, %d", round))
		d.hint()
		<-pacer.C
		d.isAt(tag)
	}
	d.noFight(before, asked, operations)
	d.notified()

	p.repo.Tag("v3", p.push("v3"))
	d.ends(d.deployed("v3", webhook, noted("changed"), ref("v3")), "Succeeded")
	d.toldOf(p.head())
	assert.Equal(t, "v3", d.get().Status.Target.Ref, "a later change of the spec counts, and nobody had to clear anything")
}

// webhook sets the Secret that authenticates senders. It also sets the polling interval, so that Argo CD
// self-heals this field.
func webhook(u *unstructured.Unstructured) {
	if u.GetKind() == v1alpha1.Kind {
		set(u, "60s", "spec", "polling", "interval")
		set(u, map[string]any{"name": "stoker-webhook", "key": "secret"}, "spec", "webhook", "secretRef")
	}
}

// noted changes a manifest in a way that only causes a sync.
func noted(text string) change {
	return func(u *unstructured.Unstructured) {
		if u.GetKind() == "Service" {
			annotations := u.GetAnnotations()
			annotations["example.com/note"] = text
			u.SetAnnotations(annotations)
		}
	}
}

// mayRead lets the receiver read a Secret of the plant, as described in docs/how-to/webhooks.md.
func (p *plant) mayRead(secret string) {
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

// ask requests a ref from the receiver, like any program that has the secret.
func (d *deployment) ask(ref string) { d.post(fmt.Sprintf(`{"ref":%q}`, ref)) }

// hint asks the receiver for a poll of git.
func (d *deployment) hint() { d.post(`{}`) }

func (d *deployment) post(body string) {
	d.t.Helper()
	address := d.receiver(d.t) + "/webhook/" + d.namespace + "/line"
	request, err := http.NewRequestWithContext(d.ctx, http.MethodPost, address, strings.NewReader(body))
	require.NoError(d.t, err)
	request.Header.Set("Authorization", "Bearer "+d.webhookToken)
	request.Header.Set("Content-Type", "application/json")
	// The receiver soon closes idle connections, so a reused connection may be closing.
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	require.NoError(d.t, err)
	defer response.Body.Close()
	said, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	require.NoError(d.t, err)
	require.Equal(d.t, http.StatusAccepted, response.StatusCode, "%s", said)
}

// isAt waits until the gateways run the commit of a requested tag.
func (d *deployment) isAt(tag string) {
	d.t.Helper()
	commit := d.plant.repo.Git("rev-parse", "refs/tags/"+tag)
	d.eventually(d.t, "all run "+tag, func() string {
		gs := d.get()
		target := gs.Status.Target
		ready := meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionReady)
		today := ready != nil && ready.Status == metav1.ConditionTrue && ready.ObservedGeneration == gs.Generation // the spec may just have changed
		if target != nil && target.Ref == tag && target.Commit == commit && today && gs.Status.GatewaysReady == "2/2" {
			return ""
		}
		return describe(gs)
	})
	d.both(commit)
}

// toldOf waits until the receiver has taken the notification of the last sync, which makes the lead poll
// git, and until the gateways run a commit.
func (d *deployment) toldOf(commit string) {
	d.t.Helper()
	d.notified()
	d.synced(commit, 2)
}

// operations returns the start times of the syncs of the Application.
func (d *deployment) operations() []metav1.Time {
	var all []metav1.Time
	for _, a := range d.applications.all() {
		if o := a.Status.OperationState; o != nil && !slices.ContainsFunc(all, func(t metav1.Time) bool { return t.Equal(&o.StartedAt) }) {
			all = append(all, o.StartedAt)
		}
	}
	return all
}

// drift changes the spec by hand and waits until Argo CD has reverted it without running a hook.
func (d *deployment) drift() {
	d.t.Helper()
	patch := `{"spec":{"polling":{"interval":"7s"}}}`
	_, err := d.syncs().Patch(d.ctx, "line", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(d.t, err)
	d.eventually(d.t, "self-heal puts the spec back", func() string {
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

// noFight checks every state recorded since before. Only requests changed the requested ref, in their
// order. Argo CD synced twice: once for the drift and once for a commit.
func (d *deployment) noFight(before *v1alpha1.GatewaySync, asked []string, operations int) {
	d.t.Helper()
	var seen []string
	last := before.Annotations[v1alpha1.AnnotationRequestedRef]
	for _, gs := range d.gatewaySyncs.all() {
		if gs.Generation < before.Generation {
			continue
		}
		assert.Equal(d.t, "main", gs.Spec.Git.Ref, "nobody but git changes the spec's ref")
		if ref := gs.Annotations[v1alpha1.AnnotationRequestedRef]; ref != last {
			seen, last = append(seen, ref), ref
		}
	}
	assert.Equal(d.t, asked, seen, "a request was changed by somebody else")
	assert.Equal(d.t, before.Generation+2, d.get().Generation, "the drift, and its end")
	assert.Len(d.t, d.operations(), operations+2, "syncs of Argo CD:%s", said(d.applications.all()))
	for _, a := range d.applications.all() {
		assert.NotEqual(d.t, "Degraded", a.Status.Health.Status, summary(a))
	}
}

// notified checks that the receiver took a notification for every sync during the subscription.
func (d *deployment) notified() {
	d.t.Helper()
	d.eventually(d.t, "the last sync was told to the receiver", func() string {
		app, err := argocd.Get(d.ctx, d.dynamic, d.namespace)
		require.NoError(d.t, err)
		want := app.Name + "/" + app.Status.OperationState.StartedAt.UTC().Format(time.RFC3339)
		ids := d.get().Annotations[v1alpha1.AnnotationRequestedIDs]
		return missingFrom(ids, "argocd", want)
	})
}
