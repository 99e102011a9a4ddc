package prometheus

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/util/teststorage"
	"github.com/stretchr/testify/require"
)

// timeline is a Prometheus in a time of its own: it stores the scrapes of stages, and evaluates rules and queries.
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

// ends marks the series that the next scrape lacks, as Prometheus does.
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
