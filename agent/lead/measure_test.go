package lead

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/metrics"
)

// leads runs a term while f runs, and registers its metrics in reg.
func (p *fakeFleet) leads(reg *prometheus.Registry, f func()) {
	m := struct {
		*metrics.Agent
		*metrics.Fleet
	}{metrics.NewAgent(reg, "v1", "plant", "site", "gw-0"), metrics.NewFleet(reg, "plant", "site")}
	term := newTerm(p, p.poll, m, slog.New(slog.DiscardHandler), time.Now)
	ctx, cancel := context.WithCancel(p.t.Context())
	ended := make(chan error)
	go func() { ended <- term.run(ctx) }()
	f()
	cancel()
	assert.NoError(p.t, <-ended)
}

func TestFleetMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFakeFleet(t, 3)
		p.unreachable(2)
		reg := prometheus.NewPedanticRegistry()
		p.leads(reg, func() {
			time.Sleep(30 * time.Second)
			assert.Equal(t, map[string]float64{"Applied": 0, "Error": 1, "Held": 0, "MissingSidecar": 0, "Pending": 0, "Standby": 0, "Synced": 2, "Syncing": 0},
				series(t, reg, "stoker_gateways", "state"))
			assert.Equal(t, map[string]float64{"GatewayUnreachable": 1}, series(t, reg, "stoker_gatewaysync_reason", "reason"))
			ready := series(t, reg, "stoker_gatewaysync_condition", "type", "status")
			assert.Equal(t, 1.0, ready["Ready False"])
			assert.Equal(t, 0.0, ready["Ready True"])
			assert.Equal(t, 1.0, ready["Reconciling True"])
			assert.NotContains(t, ready, "Stalled True")
			assert.Equal(t, map[string]float64{"": 0}, series(t, reg, "stoker_fleet_sync_seconds"))
			problems, err := testutil.GatherAndLint(reg)
			require.NoError(t, err)
			assert.Empty(t, problems)

			p.changeReport(2, func(r *v1alpha1.SyncReportStatus) {
				r.Phase, r.Reason, r.Commit, r.Revision, r.Generation = v1alpha1.GatewaySynced, v1alpha1.ReasonSynced, commitA, p.held.Revision, p.held.Generation
			})
			time.Sleep(30 * time.Second)
			assert.Equal(t, map[string]float64{"Synced": 1}, series(t, reg, "stoker_gatewaysync_reason", "reason"))
			assert.NotContains(t, series(t, reg, "stoker_gatewaysync_condition", "type", "status"), "Reconciling True")
			assert.Equal(t, map[string]float64{"": 1}, series(t, reg, "stoker_fleet_sync_seconds"), "one observation, when all gateways run the commit")
			set := p.target().ResolvedAt
			assert.Equal(t, map[string]float64{"": float64(set.Unix())}, series(t, reg, "stoker_target_timestamp_seconds"))

			p.change(func(gs *v1alpha1.GatewaySync) {
				gs.Status.Conditions = append(gs.Status.Conditions, gs.Status.Conditions[0])
				gs.Status.Conditions[len(gs.Status.Conditions)-1].Type = "FromElsewhere"
			})
			p.changeReport(2, func(r *v1alpha1.SyncReportStatus) { r.Phase, r.Reason = v1alpha1.GatewayError, "MadeUp" })
			time.Sleep(30 * time.Second)
			assert.NotContains(t, series(t, reg, "stoker_gatewaysync_condition", "type", "status"), "FromElsewhere True", "C8")
			assert.Equal(t, map[string]float64{"Unknown": 1}, series(t, reg, "stoker_gatewaysync_reason", "reason"), "C8")
		})
		// All series of a lead are removed at its end.
		for _, gone := range []string{"stoker_gatewaysync_condition", "stoker_gatewaysync_reason", "stoker_gateways", "stoker_gateways_discovered",
			"stoker_gateways_synced", "stoker_target_timestamp_seconds", "stoker_fleet_sync_seconds"} {
			assert.Empty(t, series(t, reg, gone), gone)
		}
	})
}

// changeReport changes a gateway's report.
func (p *fakeFleet) changeReport(i int, change func(*v1alpha1.SyncReportStatus)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.Reports[i].Status)
	signal(p.wake)
}

// series returns the values of a metric by those labels; of a histogram the number of observations.
func series(t *testing.T, reg *prometheus.Registry, name string, labels ...string) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	found := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			values := map[string]string{}
			for _, l := range m.GetLabel() {
				values[l.GetName()] = l.GetValue()
			}
			var key []string
			for _, l := range labels {
				key = append(key, values[l])
			}
			found[strings.Join(key, " ")] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return found
}

func TestTimeOfNewTarget(t *testing.T) {
	set := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name, was, is string
		want          time.Time
	}{
		{"found by a poll", "", "", set},
		{"on request", "", "2026-11-20T11:59:50Z", set.Add(-10 * time.Second)},
		{"after an earlier request", "2026-11-20T11:59:50Z", "2026-11-20T11:59:50Z", set},
		{"a day ago", "", "2026-11-19T11:59:50Z", set},
		{"ahead", "", "2026-11-20T12:59:50Z", set},
		{"invalid time", "", "now", set},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := metav1.NewTime(set)
			assert.Equal(t, c.want, begun(v1alpha1.SyncTargetSpec{RequestedAt: c.was}, v1alpha1.SyncTargetSpec{RequestedAt: c.is, ResolvedAt: &at}))
		})
	}
	assert.Zero(t, begun(v1alpha1.SyncTargetSpec{}, v1alpha1.SyncTargetSpec{}))
}
