package argocd

import (
	"os"
	"testing"

	"github.com/argoproj/notifications-engine/pkg/api"
	"github.com/argoproj/notifications-engine/pkg/services"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// inbox keeps what it is sent.
type inbox struct{ messages []string }

func (b *inbox) Send(n services.Notification, _ services.Destination) error {
	b.messages = append(b.messages, n.Message)
	return nil
}

// Argo CD's own code reads the ConfigMap, and sends what a GatewaySync says when the health of its Application asks for it.
func TestNotificationsOfHealth(t *testing.T) {
	text, err := os.ReadFile("../../../charts/stoker/files/argocd/argocd-notifications-cm.yaml")
	require.NoError(t, err)
	var cm corev1.ConfigMap
	require.NoError(t, yaml.UnmarshalStrict(text, &cm))
	config, err := api.ParseConfig(&cm, &corev1.Secret{Data: map[string][]byte{"stoker-token": []byte("t")}})
	require.NoError(t, err)
	notifications, err := api.NewAPI(*config, func(app map[string]any, _ services.Destination) map[string]any {
		return map[string]any{"app": app, "context": map[string]string{"argocdUrl": "https://argocd.example.com"}}
	})
	require.NoError(t, err)
	people := &inbox{}
	notifications.AddNotificationService("people", people)

	for health, trigger := range map[string]string{"Degraded": "on-stoker-degraded", "Suspended": "on-stoker-waiting", "Healthy": "", "Progressing": "", "": ""} {
		t.Run(health, func(t *testing.T) {
			status := map[string]any{"resources": []any{
				map[string]any{"version": "v1", "kind": "Service", "namespace": "plant", "name": "line"},
				map[string]any{"group": "stoker.io", "kind": "GatewaySync", "namespace": "plant", "name": "line", "health": map[string]any{"status": health, "message": "area-4: ScanFailed"}},
			}}
			if health != "" {
				status["health"] = map[string]any{"status": health}
			}
			app := map[string]any{"metadata": map[string]any{"name": "plant", "namespace": "argocd"}, "status": status}
			for _, name := range []string{"on-stoker-degraded", "on-stoker-waiting"} {
				t.Run(name, func(t *testing.T) {
					results, err := notifications.RunTrigger(name, app)
					require.NoError(t, err)
					require.Len(t, results, 1)
					assert.Equal(t, name == trigger, results[0].Triggered, name)
					if !results[0].Triggered {
						return
					}
					people.messages = nil
					require.NoError(t, notifications.Send(app, results[0].Templates, services.Destination{Service: "people", Recipient: "plant"}))
					assert.Equal(t, []string{"Application plant is " + health + ".\nGatewaySync plant/line is " + health +
						": area-4: ScanFailed. See: stoker status line --namespace plant\nhttps://argocd.example.com/applications/argocd/plant\n"}, people.messages)
				})
			}
		})
	}
}
