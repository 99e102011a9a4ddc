package kargo

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/configsync"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/fleet/plant"
	"stoker.io/stoker/test/fleet/receivertest"
	"stoker.io/stoker/test/gitserver"
)

// applies runs the ConfigSyncs of the namespace again and again, as a CronJob does.
func (l *line) applies() {
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	l.t.Cleanup(func() { cancel(); ended.Wait() })
	engine := configsync.Engine{Connect: func() (kube.Clients, error) { return l.Kube, nil }}
	ended.Go(func() {
		for backoff.Wait(ctx, 100*time.Millisecond) {
			if cs, err := kube.ConfigSyncs(l.Kube.Dynamic, l.Namespace).Get(ctx, "environment"); err == nil {
				_, _ = engine.Apply(ctx, cs, configsync.Options{}) // the status has the error
			}
		}
	})
}

func TestPromotionOfConfigSync(t *testing.T) {
	t.Parallel()
	l := newLine(t, plant.New(t, 0, receivertest.SetSecret))
	l.Cluster.ApplyYAML(t, l.Namespace, `
apiVersion: stoker.io/v1alpha1
kind: ConfigSync
metadata: {name: environment}
spec:
  source: {git: {repoURL: "`+l.Git.URL("site.git")+`", branch: main, path: kubernetes, allowedRefs: ["v*"]}}
  webhook: {secretRef: {name: stoker-webhook, key: token}}`)
	for tag, content := range map[string]string{"v1": "north", "v2": "[]", "w1": "south"} {
		id := l.Commit(tag, gitserver.Write("kubernetes/a.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: environment}, data: {area: "+content+"}}"))
		l.Tag(tag, id)
	}
	l.applies()
	of := variable{"gatewaysync", "configsync/environment"}
	data := func() map[string]string {
		m, err := l.Kube.Core.CoreV1().ConfigMaps(l.Namespace).Get(t.Context(), "environment", metav1.GetOptions{})
		require.NoError(t, err)
		return m.Data
	}
	t.Run("applied", func(t *testing.T) {
		p := l.promotion("v1", of)
		l.run(p, succeeded, "")
		assert.Equal(t, map[string]string{"area": "north"}, data())
		out, _ := p.state["stoker"].(map[string]any)
		assert.Equal(t, p.commits[0].ID, out["commit"])
		assert.EqualValues(t, 0, out["gateways"])
		cs, err := kube.ConfigSyncs(l.Kube.Dynamic, l.Namespace).Get(t.Context(), "environment")
		require.NoError(t, err)
		assert.Equal(t, "kargo", cs.Annotations[v1alpha1.AnnotationRequestedBy])
	})
	t.Run("refused by the API server", func(t *testing.T) {
		l.run(l.promotion("v2", of), failed, "ApplyRefused: ")
		assert.Equal(t, map[string]string{"area": "north"}, data())
	})
	t.Run("ref not allowed", func(*testing.T) {
		l.run(l.promotion("w1", of), failed, "w1")
	})
	t.Run("unknown", func(*testing.T) {
		l.run(l.promotion("v1", variable{"gatewaysync", "configsync/nothing"}), failed, "either the receiver does not serve configsync/nothing in namespace ")
	})
}
