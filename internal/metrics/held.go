package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"stoker.io/stoker/api/v1alpha1"
)

// held exports for how long a gateway has been held. It computes the time when it is scraped, because nothing happens while a
// gateway is held.
type held struct {
	desc   *prometheus.Desc
	mu     sync.Mutex
	reason v1alpha1.Reason
	since  time.Time
}

func newHeld() *held {
	return &held{desc: prometheus.NewDesc("stoker_held_seconds", "For how long the gateway has been held, by reason; no series if it is not.", []string{"reason"}, nil)}
}

func (h *held) set(reason v1alpha1.Reason) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if reason != h.reason {
		h.reason, h.since = reason, time.Now()
	}
}

// Describe implements prometheus.Collector.
func (h *held) Describe(c chan<- *prometheus.Desc) { c <- h.desc }

// Collect implements prometheus.Collector.
func (h *held) Collect(c chan<- prometheus.Metric) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reason != "" {
		c <- prometheus.MustNewConstMetric(h.desc, prometheus.GaugeValue, time.Since(h.since).Seconds(), label(h.reason))
	}
}
