package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"stoker.io/stoker/api/v1alpha1"
)

// Notifier holds the metrics of stoker notify.
type Notifier struct{ sent *prometheus.CounterVec }

// NewNotifier registers the metrics of stoker notify.
func NewNotifier(reg prometheus.Registerer, version string) *Notifier {
	m := &Notifier{sent: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "stoker", Name: "notifications_total",
		Help: "Notifications by the type of their receiver and the result: sent or failed."}, []string{"type", "result"})}
	for _, kind := range v1alpha1.AlertTypes {
		for _, result := range []string{"sent", "failed"} {
			m.sent.WithLabelValues(string(kind), result)
		}
	}
	reg.MustRegister(m.sent, buildInfo(version))
	return m
}

// Sent counts a notification.
func (m *Notifier) Sent(kind v1alpha1.AlertType, result string) {
	m.sent.WithLabelValues(string(kind), result).Inc()
}
