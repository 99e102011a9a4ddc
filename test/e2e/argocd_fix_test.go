//go:build linux

package e2e

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

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
			require.False(d.t, o.Over(), "the sync must not wait: %s", summary(app))
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
		d.eventually(d.t, short7(revision)+" is looked at", func() string {
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
				assert.NotContains(d.t, strings.Join(hooks(a), " "), "stoker-rollback", "it did not fail")
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
