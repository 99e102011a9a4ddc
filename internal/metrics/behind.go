package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"stoker.io/stoker/api/v1alpha1"
)

// behind exports for how long a gateway has been behind, and why. It computes the time when it is scraped, because nothing happens while a
// gateway waits.
type behind struct {
	desc   *prometheus.Desc
	mu     sync.Mutex
	reason v1alpha1.Reason
	since  time.Time
}

func newBehind() *behind {
	return &behind{desc: prometheus.NewDesc("stoker_behind_seconds", "Time since the gateway last ran the desired commit, verified, as this agent has seen it, by the reason now; no series if it does.", []string{"reason"}, nil)}
}

func (b *behind) set(reason v1alpha1.Reason) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reason == "" {
		b.since = time.Now()
	}
	b.reason = reason
}

// Describe implements prometheus.Collector.
func (b *behind) Describe(c chan<- *prometheus.Desc) { c <- b.desc }

// Collect implements prometheus.Collector.
func (b *behind) Collect(c chan<- prometheus.Metric) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reason != "" {
		c <- prometheus.MustNewConstMetric(b.desc, prometheus.GaugeValue, time.Since(b.since).Seconds(), label(b.reason))
	}
}
