package prometheus

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/metrics"
)

// dashboard has the fields of a dashboard that tests look at.
type dashboard struct {
	UID, Title string
	Links      []struct{ URL string }
	Panels     []panel
	Templating struct {
		List []struct{ Name, Type, AllValue string }
	}
}

type panel struct {
	ID          int
	Type, Title string
	GridPos     struct{ X, Y, W, H int }
	Datasource  struct{ UID string }
	FieldConfig struct {
		Defaults  struct{ Unit string }
		Overrides []struct {
			Properties []struct {
				ID    string
				Value any
			}
		}
	}
	Targets []struct {
		RefID, Expr, LegendFormat string
		Datasource                struct{ UID string }
	}
}

func loadDashboards(t testing.TB) map[string]dashboard {
	t.Helper()
	paths, err := filepath.Glob(dashboardDir + "*.json")
	require.NoError(t, err)
	require.Len(t, paths, 2)
	all := map[string]dashboard{}
	for _, path := range paths {
		var d dashboard
		require.NoError(t, json.Unmarshal(readFile(t, path), &d), path)
		assert.Equal(t, d.UID+".json", filepath.Base(path))
		all[d.UID] = d
	}
	return all
}

// filled returns an expression with its variables replaced, as Grafana replaces them for All.
func filled(expr string) string {
	return strings.NewReplacer("$namespace", ".*", "$gatewaysync", ".*", "$gateway", ".*", "$__rate_interval", "5m").Replace(expr)
}

// testPanels evaluates each expression of the dashboards a minute and ten minutes after each change of the fleet. One that never shows a value is
// a mistake.
func testPanels(t *testing.T, now time.Time, all []incident) {
	l := newTimeline(t, now)
	shown, series := map[string]bool{}, map[string]int{}
	exprs := map[string]string{}
	for _, d := range loadDashboards(t) {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				exprs[fmt.Sprintf("%s/%s/%s", d.Title, p.Title, target.RefID)] = filled(target.Expr)
			}
		}
	}
	groups := l.groups
	l.groups = nil // the rules have a test of their own
	look := func() {
		for name, expr := range exprs {
			found, err := l.query(expr)
			require.NoError(t, err, "%s: %s", name, expr)
			series[name] = max(series[name], len(found))
			for _, one := range found {
				shown[name] = shown[name] || !math.IsNaN(one.F)
			}
		}
	}
	// sequence: each incident follows the one before
	for _, i := range all {
		for _, s := range []scrape{i.before, i.broken, i.fixed} {
			l.passes(stage{scrape: s, lasts: time.Minute})
			look()
			l.passes(stage{scrape: s, lasts: 9 * time.Minute})
			look()
		}
	}
	l.groups = groups
	for name, expr := range exprs {
		t.Run(name, func(t *testing.T) {
			assert.True(t, shown[name], "the panel never shows a value: %s", expr)
			assert.LessOrEqual(t, series[name], 20, "a panel with this many series is unreadable: %s", expr)
		})
	}
}

// units are those of Grafana that the dashboards use.
var units = []string{"short", "s", "bytes", "percentunit", "reqps"}

func TestDashboards(t *testing.T) {
	all := loadDashboards(t)
	for uid, d := range all {
		t.Run(d.Title, func(t *testing.T) {
			assert.Regexp(t, `^[a-z-]{5,40}$`, uid)
			ids := map[int]bool{}
			taken := map[[2]int]string{}
			for _, p := range d.Panels {
				assert.NotZero(t, p.ID)
				assert.False(t, ids[p.ID], "two panels have the id %d", p.ID)
				ids[p.ID] = true
				assert.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
				for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
					for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
						assert.Empty(t, taken[[2]int{x, y}], "%s covers another panel", p.Title)
						taken[[2]int{x, y}] = p.Title
					}
				}
				if p.Type == "row" {
					continue
				}
				assert.Contains(t, units, p.FieldConfig.Defaults.Unit, p.Title)
				assert.Equal(t, "${datasource}", p.Datasource.UID, p.Title)
				assert.NotEmpty(t, p.Targets, p.Title)
				var refs []string
				for _, target := range p.Targets {
					assert.Equal(t, "${datasource}", target.Datasource.UID, p.Title)
					assert.NotContains(t, refs, target.RefID, p.Title)
					refs = append(refs, target.RefID)
					checkLegend(t, p.Title, target.Expr, target.LegendFormat)
				}
			}
			names := []string{"datasource", "__rate_interval", "__url_time_range", "__all", "__data"}
			for _, v := range d.Templating.List {
				names = append(names, v.Name)
				if v.Type == "query" {
					assert.Equal(t, ".*", v.AllValue, v.Name)
				}
			}
			for _, v := range variable.FindAllStringSubmatch(string(readFile(t, dashboardDir+uid+".json")), -1) {
				assert.Contains(t, names, v[1], "no such variable")
			}
			for _, link := range links.FindAllStringSubmatch(string(readFile(t, dashboardDir+uid+".json")), -1) {
				assert.Contains(t, all, link[1], "the link must name an existing dashboard")
			}
			assert.NotEmpty(t, d.Links)
		})
	}
}

var (
	variable = regexp.MustCompile(`\$\{?(\w+)`)
	links    = regexp.MustCompile(`/d/([a-z-]+)`)
	legend   = regexp.MustCompile(`{{(\w+)}}`)
	grouping = regexp.MustCompile(`^(?:sum|max|min|count) by \(([^)]*)\)|^histogram_quantile|^time\(\) - max by \(([^)]*)\)`)
)

// checkLegend reports labels of a legend that the series do not have.
func checkLegend(t *testing.T, title, expr, format string) {
	t.Helper()
	for _, m := range legend.FindAllStringSubmatch(format, -1) {
		by := grouping.FindStringSubmatch(expr)
		require.NotNil(t, by, "%s: %s", title, expr)
		assert.Contains(t, strings.Split(by[1]+by[2], ", "), m[1], "%s: the legend must use a label of the expression", title)
	}
}

// exported returns the names of all metrics of the programs.
func exported(t testing.TB) []string {
	t.Helper()
	var names []string
	for _, register := range []func(*prometheus.Registry){
		func(r *prometheus.Registry) { metrics.NewAgent(r, "v", "n", "s", "g"); metrics.NewFleet(r, "n", "s") },
		func(r *prometheus.Registry) { metrics.NewInjector(r, "v") },
		func(r *prometheus.Registry) { metrics.NewReceiver(r, "v") },
		func(r *prometheus.Registry) { metrics.NewNotifier(r, "v") },
		func(r *prometheus.Registry) { metrics.NewConfigSync(r, "v", nil) },
	} {
		reg := prometheus.NewRegistry()
		register(reg)
		descs := make(chan *prometheus.Desc)
		go func() { reg.Describe(descs); close(descs) }()
		for d := range descs {
			m := described.FindStringSubmatch(d.String())
			require.NotNil(t, m, d.String())
			names = append(names, m[1])
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

var described = regexp.MustCompile(`fqName: "(\w+)"`)

// used returns the metrics that the expressions of dashboards and alerts name.
func used(t testing.TB) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	look := func(expr parser.Expr) {
		parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
			if v, ok := n.(*parser.VectorSelector); ok {
				found[v.Name] = true
			}
			return nil
		})
	}
	for _, d := range loadDashboards(t) {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				expr, err := syntax().ParseExpr(filled(target.Expr))
				require.NoError(t, err, target.Expr)
				look(expr)
			}
		}
	}
	for _, r := range newTimeline(t, time.Now()).alerts() {
		look(r.Query())
	}
	return found
}

// unshown are metrics that no panel and no alert shows, with the reason.
var unshown = map[string]string{
	"stoker_reconcile_duration_seconds":                "of interest to developers; a slow reconcile shows in the phases of a sync",
	"stoker_bidirectional_prs_created_total":           "needs a git host with pull requests, which the fleet of this test has not; Events and `stoker proposals` show them",
	"stoker_configsync_targets":                        "of a program that is off by default; the status of a ConfigSync shows its objects",
	"stoker_configsync_last_applied_timestamp_seconds": "the same",
	"stoker_configsync_pruned_total":                   "the same",
	"stoker_snapshot_uploads_total":                    "needs object storage, which the fleet of this test has not; the row of a gateway says where its snapshot is",
	"stoker_webhook_duration_seconds":                  "a sender sees it; the results are shown",
	"stoker_webhook_status_requests_total":             "polled by pipelines; their own views show the answers",
	"stoker_webhook_secret_reads_total":                "a failed read shows as a result of the webhook",
	"stoker_webhook_connections":                       "a limit shows as busy in the results of webhooks",
	"stoker_webhook_connections_closed_total":          "the same",
}

// Every metric that a panel or an alert names exists, and every metric is on a panel or in an alert, or is left out for a reason.
func TestMetricsAreShown(t *testing.T) {
	names := exported(t)
	families, err := daemon.Registry().Gather()
	require.NoError(t, err)
	others := map[string]bool{}
	for _, f := range families {
		others[f.GetName()] = true
	}
	shown := used(t)
	suffix := regexp.MustCompile(`_(bucket|count|sum)$`)
	delete(shown, "up") // Prometheus itself writes it
	for name := range shown {
		plain := suffix.ReplaceAllString(name, "")
		assert.True(t, slices.Contains(names, name) || slices.Contains(names, plain) || others[name], "a panel or an alert names %s, which no program exports", name)
		shown[plain] = true
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			assert.NotEqual(t, unshown[name] != "", shown[name], "a metric must be either in a panel or an alert, or in the list of exceptions")
		})
	}
	assert.Subset(t, names, slices.Collect(maps.Keys(unshown)), "the list of exceptions names an unknown metric")
}

const packageJSON = `{"private": true, "dependencies": {"@grafana/schema": "13.2.3", "typescript": "7.0.2"}}`

// declaration declares a dashboard of the type Dashboard. Plain replaces each enumeration by its strings, because JSON has only
// these.
const declaration = "import type { Dashboard } from '@grafana/schema';\n" +
	"type Plain<T> = T extends string ? `${T}` : T extends (infer U)[] ? Plain<U>[] : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;\n" +
	"export const dashboard: Plain<Dashboard> = "

// The dashboards match the types that Grafana publishes. The test needs npm and its registry.
func TestGrafanaSchema(t *testing.T) {
	for _, program := range []string{"npm", "node"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed: the dashboards are not compared with Grafana's types", program)
		}
	}
	dir := t.TempDir()
	write := func(name, content string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	write("package.json", packageJSON)
	install := exec.CommandContext(t.Context(), "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=0")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		t.Skipf("npm cannot install @grafana/schema: the dashboards are not compared with Grafana's types: %v\n%s", err, out)
	}
	check := func(name string) (string, error) {
		compile := exec.CommandContext(t.Context(), "node", "node_modules/typescript/bin/tsc", "--noEmit", "--strict", "--skipLibCheck",
			"--module", "nodenext", "--moduleResolution", "nodenext", name)
		compile.Dir = dir
		out, err := compile.CombinedOutput()
		return string(out), err
	}
	for uid := range loadDashboards(t) {
		t.Run(uid, func(t *testing.T) {
			write(uid+".ts", declaration+string(readFile(t, dashboardDir+uid+".json"))+";\n")
			out, err := check(uid + ".ts")
			assert.NoError(t, err, out)
		})
	}
	t.Run("wrong type", func(t *testing.T) {
		write("wrong.ts", declaration+`{"schemaVersion": 39, "editable": "no", "panels": []};`+"\n")
		_, err := check("wrong.ts")
		assert.Error(t, err)
	})
}
