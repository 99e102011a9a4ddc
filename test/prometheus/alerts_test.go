package prometheus

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/util/teststorage"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRealFleet breaks a real fleet, and evaluates alerts and panels on what was scraped meanwhile. What a fleet of a test cannot do is changed in
// the samples: time passes between scrapes, a fleet is not ready for an unknown reason, a gateway is held for hours, lost+found has another limit,
// snapshots are not uploaded, a receiver panics, an agent has another version, and a repair is stopped.
func TestRealFleet(t *testing.T) {
	f := newFleet(t)
	all := f.incidents()
	now := time.Now()
	t.Run("alerts", func(t *testing.T) { testAlerts(t, now, all) })
	t.Run("panels", func(t *testing.T) { testPanels(t, now, all) })
}

func testAlerts(t *testing.T, now time.Time, all []incident) {
	tested := map[string]bool{"StokerCertificateExpires": true}
	for _, name := range []string{"StokerPaused", "StokerGitAway", "StokerAgentSilent", "StokerNotificationsFailing", "StokerNotifierDown"} { // see TestOneAlertPerCause, TestSilentTargets
		tested[name] = true
	}
	for _, i := range all {
		t.Run(i.name, func(t *testing.T) {
			l := newTimeline(t, now)
			lasts, settles := i.lasts, i.settles
			if lasts == 0 {
				lasts = 2 * time.Hour
			}
			if settles == 0 {
				settles = 30 * time.Minute
			}
			fired := l.passes(stage{scrape: i.before, lasts: time.Hour})
			if !slices.Contains(i.alerts, "StokerGatewayScanFailing") { // before it, a scan has failed already
				assert.Empty(t, fired, "before")
			}
			assert.ElementsMatch(t, i.alerts, names(l.passes(stage{scrape: i.broken, lasts: lasts, every: i.every, again: i.again, was: i.before})))
			l.passes(stage{scrape: i.fixed, lasts: settles})
			l.passes(stage{scrape: i.fixed, lasts: time.Minute})
			assert.Empty(t, l.firing(), "no alert may fire after the fix")
		})
		for _, alert := range i.alerts {
			tested[alert] = true
		}
	}
	t.Run("a certificate expires", func(t *testing.T) {
		healthy := all[len(all)-1].fixed
		l := newTimeline(t, now.Add(70*24*time.Hour)) // it is valid for 90 days
		assert.Empty(t, l.passes(stage{scrape: healthy, lasts: time.Hour}))
		l.now = now.Add(77 * 24 * time.Hour)
		assert.Equal(t, []string{"StokerCertificateExpires"}, names(l.passes(stage{scrape: healthy, lasts: time.Hour})))
		renewed := healthy.with(t, "stoker_certificate_expiry_timestamp_seconds", func(s *sample) {
			if s.value > 0 {
				s.value += 60 * 24 * 3600
			}
		})
		l.passes(stage{scrape: renewed, lasts: time.Hour})
		assert.Empty(t, l.firing())
	})
	for _, r := range newTimeline(t, now).alerts() {
		assert.True(t, tested[r.Name()], "no incident fires %s", r.Name())
	}
}

func names(fired map[string]int) (found []string) {
	for name := range fired {
		found = append(found, name)
	}
	slices.Sort(found)
	return found
}

// Every alert is described in the documentation, at the address that it names.
func TestAlertsAreDocumented(t *testing.T) {
	page := string(readFile(t, docs+"how-to/monitoring.md"))
	const base = "https://github.com/stoker-io/stoker/blob/main/docs/how-to/monitoring.md#"
	alerts := newTimeline(t, time.Now()).alerts()
	require.Len(t, alerts, 23)
	for _, r := range alerts {
		t.Run(r.Name(), func(t *testing.T) {
			assert.Equal(t, base+strings.ToLower(r.Name()), r.Annotations().Get("runbook_url"))
			assert.Contains(t, page, "\n### "+r.Name()+"\n")
			assert.NotEmpty(t, r.Annotations().Get("summary"))
			assert.NotEmpty(t, r.Annotations().Get("description"))
			assert.Contains(t, []string{"info", "warning", "critical"}, r.Labels().Get("severity"))
		})
	}
}

// cause is a state as series in the text format of Prometheus, and the alert that it fires.
type cause struct {
	name, series, alert string // alert is empty if none fires
	lasts               time.Duration
	injector            bool // exports the series, not an agent
}

// fleetSeries has the series of a fleet of two gateways. With 1, 1, 0, "Synced", "Synced" it is healthy.
func fleetSeries(ready, refResolved, stalled int, reason, state string) string {
	return fmt.Sprintf(`
stoker_gatewaysync_condition{namespace="plant",gatewaysync="line",type="Ready",status="True"} %d
stoker_gatewaysync_condition{namespace="plant",gatewaysync="line",type="RefResolved",status="False"} %d
stoker_gatewaysync_condition{namespace="plant",gatewaysync="line",type="Stalled",status="True"} %d
stoker_gatewaysync_reason{namespace="plant",gatewaysync="line",reason="%s"} 1
stoker_gateways{namespace="plant",gatewaysync="line",state="%s"} 2
`, ready, 1-refResolved, stalled, reason, state)
}

// others has the series of more fleets, whose refs are resolved or not.
func others(n, refResolved int) string {
	var all strings.Builder
	for i := range n {
		all.WriteString(strings.ReplaceAll(fleetSeries(refResolved, refResolved, 0, "Synced", "Synced"), `"line"`, fmt.Sprintf(`"other-%d"`, i)))
	}
	return all.String()
}

const gatewaySeries = `
stoker_gateway_info{namespace="plant",gatewaysync="line",gateway="area-1"} 1
stoker_drift_files 3
`

var causes = []cause{
	{"healthy", fleetSeries(1, 1, 0, "Synced", "Synced"), "", 2 * time.Hour, false},
	{"missing ref", fleetSeries(0, 0, 1, "RefNotFound", "Synced"), "StokerGitFailing", 2 * time.Hour, false},
	{"one ref of three is missing", fleetSeries(0, 0, 1, "RefNotFound", "Synced") + others(2, 1), "StokerGitFailing", 2 * time.Hour, false},
	{"git is away for three of three", fleetSeries(0, 0, 0, "GitUnreachable", "Synced") + others(2, 0), "StokerGitAway", 2 * time.Hour, false},
	{"broken commit", fleetSeries(0, 1, 1, "ConfigSyntaxError", "Error"), "StokerStalled", 2 * time.Hour, false},
	{"late gateway", fleetSeries(0, 1, 1, "ProgressDeadlineExceeded", "Error"), "StokerGatewaysBehind", 2 * time.Hour, false},
	{"no gateway is behind", fleetSeries(0, 1, 0, "Progressing", "Synced"), "StokerNotReady", 2 * time.Hour, false},
	{"a stage soaks", fleetSeries(0, 1, 0, "RolloutSoaking", "Synced"), "", 2 * time.Hour, false},
	{"held", fleetSeries(0, 1, 0, "DesignerSessionActive", "Held"), "", 2 * time.Hour, false},
	{"forgotten pause", fleetSeries(1, 1, 0, "Paused", "Synced"), "StokerPaused", 25 * time.Hour, false},
	{"pause of a shift", fleetSeries(1, 1, 0, "Paused", "Synced"), "", 8 * time.Hour, false},
	{"drift", gatewaySeries, "StokerDrift", 2 * time.Hour, false},
	{"drift in an open pull request", gatewaySeries + "stoker_bidirectional_files{state=\"proposed\"} 3\n", "", 2 * time.Hour, false},
	{"drift after the pull request", gatewaySeries + "stoker_bidirectional_files{state=\"proposed\"} 0\n", "StokerDrift", 2 * time.Hour, false},
	{"no agents", "stoker_fleets_without_agents{namespace=\"plant\",gatewaysync=\"line\"} 1\n", "StokerAgentsAway", time.Hour, true},
	{"pods without agent", "stoker_pods_without_agent{reason=\"InvalidConfig\"} 1\n", "StokerPodsWithoutAgent", time.Hour, true},
	{"a stopped repair", "stoker_repairs_stopped 1\n", "StokerRepairStopped", time.Hour, true},
}

// scrape returns the scrape of a target that exports the series of the cause.
func (c cause) scrape(t testing.TB) scrape {
	t.Helper()
	if c.injector {
		return target{"stoker-injector", "10.0.0.3:8083", map[string]string{"job": "stoker-injector", "namespace": "stoker-system"}}.parsed(t, c.series)
	}
	return target{"stoker-agent", "10.0.0.1:8082", map[string]string{"job": "stoker-system/stoker-agent", "namespace": "plant"}}.parsed(t, c.series)
}

// A cause fires one alert, and none that only repeats it. A pod of another namespace, which claims that all is well, changes nothing.
func TestOneAlertPerCause(t *testing.T) {
	hostile := target{"stoker-agent", "10.0.0.2:8082", map[string]string{"job": "stoker-system/stoker-agent", "namespace": "tenant"}}.parsed(t, fleetSeries(1, 1, 0, "Synced", "Held")+
		"stoker_pods_without_agent{reason=\"InvalidConfig\"} -9\nstoker_repairs_stopped -9\n")
	for _, c := range causes {
		t.Run(c.name, func(t *testing.T) {
			l := newTimeline(t, time.Now())
			var want []string
			if c.alert != "" {
				want = []string{c.alert}
			}
			all := append(c.scrape(t), hostile...)
			assert.Equal(t, want, names(l.passes(stage{scrape: all, lasts: c.lasts, every: time.Minute})))
			for _, r := range l.alerts() {
				for _, a := range r.ActiveAlerts() {
					if of := a.Labels.Get("gatewaysync"); of != "" {
						assert.Equal(t, "plant/line", a.Labels.Get("namespace")+"/"+of)
					}
				}
			}
		})
	}
}

// An agent or a notifier that does not answer scrapes fires an alert, until Prometheus no longer knows its pod. Failed notifications fire one, too.
func TestSilentTargets(t *testing.T) {
	for name, c := range map[string]struct{ series, alert string }{
		"agent":    {`stoker_gateway_info{namespace="plant",gatewaysync="line",gateway="area-1"} 1` + "\n", "StokerAgentSilent"},
		"notifier": {`stoker_notifications_total{type="slack",result="failed"} 0` + "\n", "StokerNotifierDown"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newTimeline(t, time.Now())
			on := target{"stoker-" + name, "10.0.0.1:8082", map[string]string{"job": "stoker", "namespace": "plant"}}
			up := func(value float64) sample {
				return sample{labels.FromMap(map[string]string{"__name__": "up", "job": "stoker", "namespace": "plant", "instance": on.address}), value}
			}
			healthy := append(on.parsed(t, c.series), up(1))
			assert.Empty(t, l.passes(stage{scrape: healthy, lasts: time.Hour, every: time.Minute}))
			assert.Equal(t, []string{c.alert}, names(l.passes(stage{scrape: scrape{up(0)}, lasts: time.Hour, every: time.Minute})))
			l.passes(stage{scrape: scrape{}, lasts: time.Hour, every: time.Minute})
			assert.Empty(t, l.firing(), "the pod is gone")
		})
	}
	t.Run("failed notifications", func(t *testing.T) {
		l := newTimeline(t, time.Now())
		on := target{"stoker-notifier", "10.0.0.1:8082", map[string]string{"job": "stoker-notifier", "namespace": "stoker-system"}}
		sent := func(failed int) scrape {
			return on.parsed(t, fmt.Sprintf("# TYPE stoker_notifications_total counter\nstoker_notifications_total{type=\"slack\",result=\"failed\"} %d\n", failed))
		}
		assert.Empty(t, l.passes(stage{scrape: sent(1), lasts: time.Hour, every: time.Minute}))
		assert.Equal(t, []string{"StokerNotificationsFailing"}, names(l.passes(stage{scrape: sent(9), lasts: time.Hour, every: time.Minute})))
	})
}

// timeline is a Prometheus with a clock of its own: it stores the scrapes of stages, and evaluates rules and queries.
type timeline struct {
	t      testing.TB
	db     *teststorage.TestStorage
	engine *promql.Engine
	now    time.Time
	groups []*rules.Group
	last   scrape
}

// syntax is that of a Prometheus without feature flags.
func syntax() parser.Parser { return parser.NewParser(parser.Options{}) }

// newTimeline returns a timeline that begins at a time.
func newTimeline(t testing.TB, begin time.Time) *timeline {
	t.Helper()
	l := &timeline{t: t, db: teststorage.New(t), now: begin.Truncate(time.Second)}
	l.engine = promql.NewEngine(promql.EngineOpts{MaxSamples: 50_000_000, Timeout: time.Minute, Parser: syntax()})
	t.Cleanup(func() { _ = l.engine.Close() })
	manager := rules.NewManager(&rules.ManagerOptions{
		QueryFunc: rules.EngineQueryFunc(l.engine, l.db), AppendableV2: l.db, Queryable: l.db, Context: t.Context(),
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {}, Logger: slog.New(slog.DiscardHandler), Parser: syntax(),
	})
	groups, errs := manager.LoadGroups(30*time.Second, labels.EmptyLabels(), "", nil, false, rulesFile)
	require.Empty(t, errs)
	l.groups = slices.Collect(maps.Values(groups))
	for _, r := range l.alerts() {
		r.SetRestored(true) // nothing is to be restored
	}
	return l
}

func (l *timeline) alerts() (all []*rules.AlertingRule) {
	for _, g := range l.groups {
		for _, r := range g.Rules() {
			if alert, ok := r.(*rules.AlertingRule); ok {
				all = append(all, alert)
			}
		}
	}
	return all
}

// firing returns the names of the alerts that fire, with the number of series.
func (l *timeline) firing() map[string]int {
	found := map[string]int{}
	for _, r := range l.alerts() {
		for _, a := range r.ActiveAlerts() {
			if a.State == rules.StateFiring {
				found[r.Name()]++
			}
		}
	}
	return found
}

// passes stores the scrapes of a stage, evaluates the rules after each, and returns the alerts that fired at any time in its course.
func (l *timeline) passes(s stage) map[string]int {
	l.t.Helper()
	every := s.every
	if every == 0 {
		every = 30 * time.Second
	}
	l.ends(s.scrape)
	fired := map[string]int{}
	for begun := l.now; l.now.Sub(begun) < s.lasts; l.now = l.now.Add(every) {
		l.store(s.at(l.now.Sub(begun)))
		for _, g := range l.groups {
			g.Eval(l.t.Context(), l.now)
			for _, r := range g.Rules() {
				require.NoError(l.t, r.LastError(), r.Name())
			}
		}
		for name, n := range l.firing() {
			fired[name] = max(fired[name], n)
		}
	}
	return fired
}

func (l *timeline) store(s scrape) {
	l.t.Helper()
	app := l.db.Appender(l.t.Context())
	for _, one := range s {
		_, err := app.Append(0, one.labels, l.now.UnixMilli(), one.value)
		require.NoError(l.t, err, one.labels.String())
	}
	require.NoError(l.t, app.Commit())
	l.last = s
}

// ends marks the series that the next scrape lacks as stale, like Prometheus.
func (l *timeline) ends(next scrape) {
	l.t.Helper()
	there := map[uint64]bool{}
	for _, one := range next {
		there[one.labels.Hash()] = true
	}
	var gone scrape
	for _, one := range l.last {
		if !there[one.labels.Hash()] {
			gone = append(gone, sample{one.labels, math.Float64frombits(value.StaleNaN)})
		}
	}
	if len(gone) > 0 {
		l.store(gone)
		l.now = l.now.Add(time.Second)
	}
}

// query evaluates an expression now.
func (l *timeline) query(expr string) (promql.Vector, error) {
	q, err := l.engine.NewInstantQuery(l.t.Context(), l.db, nil, expr, l.now)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	result := q.Exec(l.t.Context())
	if result.Err != nil {
		return nil, result.Err
	}
	v, err := result.Vector()
	if err != nil {
		return nil, err
	}
	return slices.Clone(v), nil
}
