package schedule_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/schedule"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/test/verdicts"
)

func deployed(d v1alpha1.DeploymentSpec) *v1alpha1.GatewaySync {
	gs := verdicts.Smallest()
	gs.Spec.Deployment = &d
	return gs
}

func entry(name string, weight int32) v1alpha1.SyncOrderEntry {
	return v1alpha1.SyncOrderEntry{Name: name, Weight: &weight}
}

func TestSteps(t *testing.T) {
	stages := []v1alpha1.Stage{{Name: "dev", Gateways: []string{"dev-*"}}, {Name: "pilot", Gateways: []string{"area-1", "hub"}}}
	for name, c := range map[string]struct {
		spec  v1alpha1.DeploymentSpec
		steps string
		of    map[string]int
	}{
		"nothing": {steps: "-/100", of: map[string]int{"a": 1}},
		"stages":  {v1alpha1.DeploymentSpec{Stages: stages}, "dev/100 pilot/100 -/100", map[string]int{"dev-1": 1, "hub": 2, "area-2": 3}},
		"a stage for the rest": {v1alpha1.DeploymentSpec{Stages: append(stages[:1:1], v1alpha1.Stage{Name: "rest", Gateways: []string{"*"}})},
			"dev/100 rest/100", map[string]int{"dev-1": 1, "a": 2}},
		"weights": {v1alpha1.DeploymentSpec{SyncOrder: []v1alpha1.SyncOrderEntry{entry("hub", 200), entry("area-*", 50)}}, "-/200 -/100 -/50",
			map[string]int{"hub": 1, "x": 2, "area-7": 3}},
		"an entry without a weight has that of the others": {v1alpha1.DeploymentSpec{SyncOrder: []v1alpha1.SyncOrderEntry{entry("hub", 200), {Name: "area-*"}}},
			"-/200 -/100", map[string]int{"hub": 1, "area-7": 2, "x": 2}},
		"weights only in the stages that have such gateways": {v1alpha1.DeploymentSpec{Stages: stages, SyncOrder: []v1alpha1.SyncOrderEntry{entry("hub", 200), entry("area-*", 50)}},
			"dev/100 pilot/200 pilot/50 -/100 -/50", map[string]int{"dev-1": 1, "hub": 2, "area-1": 3, "x": 4, "area-2": 5}},
		"the first entry counts": {v1alpha1.DeploymentSpec{SyncOrder: []v1alpha1.SyncOrderEntry{entry("a-*", 10), entry("*", 20)}}, "-/20 -/10", map[string]int{"a-1": 2, "b": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			gs := deployed(c.spec)
			assert.Empty(t, validation.GatewaySync(gs))
			var shown []string
			for _, s := range schedule.Steps(gs) {
				stage := s.Stage
				if stage == "" {
					stage = "-"
				}
				shown = append(shown, fmt.Sprintf("%s/%d", stage, s.Weight))
			}
			assert.Equal(t, c.steps, strings.Join(shown, " "))
			for gateway, step := range c.of {
				assert.Equal(t, step, schedule.StepOf(gs, gateway), gateway)
			}
		})
	}
}

// For every valid spec, each gateway has a step of its stage and weight.
func TestStepsProperties(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	names := []string{"a-1", "a-2", "b-1", "b-2", "hub", "c"}
	patterns := append([]string{"a-*", "b-*", "*-1", "*", "h*b"}, names...)
	pick := func(n int) []string {
		var out []string
		for range 1 + random.IntN(n) {
			out = append(out, patterns[random.IntN(len(patterns))])
		}
		return out
	}
	valid := 0
	// sequence: each iteration takes the next random numbers
	for range 5000 {
		var d v1alpha1.DeploymentSpec
		for i := range random.IntN(4) {
			d.Stages = append(d.Stages, v1alpha1.Stage{Name: fmt.Sprintf("s%d", i), Gateways: pick(2)})
		}
		for range random.IntN(4) {
			d.SyncOrder = append(d.SyncOrder, entry(patterns[random.IntN(len(patterns))], int32(50*random.IntN(4))))
		}
		gs := deployed(d)
		steps := schedule.Steps(gs) // of an invalid spec, too
		assert.NotEmpty(t, steps)
		if len(validation.GatewaySync(gs)) > 0 {
			continue
		}
		valid++
		// sequence: one spec, all its gateways
		for _, g := range names {
			n := schedule.StepOf(gs, g)
			if !assert.True(t, 1 <= n && n <= len(steps), "%s: %d of %d in %+v", g, n, len(steps), d) {
				return
			}
			stage := ""
			if s := schedule.StageOf(gs, g); s != nil {
				stage = s.Name
			}
			assert.Equal(t, stage, steps[n-1].Stage, "%s in %+v", g, d)
			own := entryFor(d.SyncOrder, g)
			assert.Equal(t, *own.Weight, steps[n-1].Weight, "%s in %+v", g, d)
		}
	}
	assert.Greater(t, valid, 500)
}

// entryFor returns the first entry that matches a gateway.
func entryFor(order []v1alpha1.SyncOrderEntry, gateway string) v1alpha1.SyncOrderEntry {
	for _, e := range order {
		if prefix, suffix, pattern := strings.Cut(e.Name, "*"); e.Name == gateway ||
			pattern && len(gateway) >= len(e.Name)-1 && strings.HasPrefix(gateway, prefix) && strings.HasSuffix(gateway, suffix) {
			return e
		}
	}
	return entry("", v1alpha1.DefaultWeight)
}

// F11: an order takes a bounded time for every spec that the API server admits.
func TestLargestOrders(t *testing.T) {
	// name returns one of many long names or patterns that differ only at their end, and match late.
	name := func(i int, stars int) string {
		s := strings.Repeat("a*", stars)
		return s + strings.Repeat("a", 240-len(s)) + fmt.Sprint(i)
	}
	spec := func(stages, gateways, entries, stagePatterns, entryPatterns int) v1alpha1.DeploymentSpec {
		var d v1alpha1.DeploymentSpec
		n := 0
		next := func(patterns *int) string {
			n++
			*patterns--
			if *patterns >= 0 {
				return name(n, 60)
			}
			return name(n, 0)
		}
		for i := range stages {
			s := v1alpha1.Stage{Name: fmt.Sprint("stage-", i)}
			for range gateways {
				s.Gateways = append(s.Gateways, next(&stagePatterns))
			}
			d.Stages = append(d.Stages, s)
		}
		for range entries {
			d.SyncOrder = append(d.SyncOrder, v1alpha1.SyncOrderEntry{Name: next(&entryPatterns)})
		}
		return d
	}
	for name, c := range map[string]struct {
		spec    v1alpha1.DeploymentSpec
		refused bool
		slow    bool // make test-cluster runs it
	}{
		"patterns":              {spec(16, 256, 256, 16*256, 256), true, false},
		"names":                 {spec(16, 256, 256, 0, 0), false, true},
		"names, and a pattern":  {spec(16, 256, 128, 1, 0), false, true},
		"patterns in the order": {spec(1, 1, 48, 0, 47), false, false},
		"patterns in stages":    {spec(4, 8, 120, 32, 0), false, false},
		"patterns in both":      {spec(4, 8, 64, 16, 16), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && c.slow {
				t.Skip("it takes seconds: make test-cluster runs it")
			}
			began := time.Now()
			gs := deployed(c.spec)
			errs := validation.GatewaySync(gs)
			refused := slices.ContainsFunc(errs, func(e *field.Error) bool { return e.Field == "spec.deployment" })
			assert.Equal(t, c.refused, refused, "%.500v", errs)
			schedule.Steps(gs)
			t.Log(time.Since(began))
			assert.Less(t, time.Since(began), 2*time.Minute, "ten times what it takes on a busy machine")
		})
	}
}

// Most gateways are the only pod of a StatefulSet: the pod line-0 is the gateway line. Both names stand for this gateway.
func TestNamesOfPods(t *testing.T) {
	gs := &v1alpha1.GatewaySync{}
	gs.Spec.Deployment = &v1alpha1.DeploymentSpec{
		Stages:    []v1alpha1.Stage{{Name: "canary", Gateways: []string{"line-0"}}, {Name: "rest", Gateways: []string{"*"}}},
		SyncOrder: []v1alpha1.SyncOrderEntry{{Name: "press-0", Weight: new(int32(200))}},
	}
	for _, c := range []struct {
		gateway, pod, stage string
		step                int
	}{
		{"line", "line-0", "canary", 1}, {"line-0", "line-0", "canary", 1}, {"line", "", "rest", 3}, {"line-1", "line-1", "rest", 3},
		{"press", "press-0", "rest", 2}, {"pack", "pack-0", "rest", 3},
	} {
		t.Run(c.gateway+" "+c.pod, func(t *testing.T) {
			assert.Equal(t, c.step, schedule.StepOf(gs, c.gateway, c.pod))
			assert.Equal(t, c.stage, schedule.StageOf(gs, c.gateway, c.pod).Name)
		})
	}
	w, errs := schedule.ParseWindows([]v1alpha1.MaintenanceWindow{{Name: "never", Kind: v1alpha1.WindowDeny, Schedule: "* * * * *", Duration: "1h", Gateways: []string{"line-0"}}}, "line", "line-0")
	require.Empty(t, errs)
	assert.Len(t, w, 1)
}

func TestFirstStageThatNamesGatewayCounts(t *testing.T) {
	d := &v1alpha1.DeploymentSpec{Stages: []v1alpha1.Stage{{Name: "canary", Gateways: []string{"line"}}, {Name: "rest", Gateways: []string{"line", "press"}}}}
	assert.Empty(t, schedule.Validate(field.NewPath("spec", "deployment"), d))
	gs := &v1alpha1.GatewaySync{Spec: v1alpha1.GatewaySyncSpec{Deployment: d}}
	assert.Equal(t, "canary", schedule.StageOf(gs, "line").Name)
	assert.Equal(t, []int{1, 2}, []int{schedule.StepOf(gs, "line"), schedule.StepOf(gs, "press")})
}

func TestUnmatchedNames(t *testing.T) {
	gs := &v1alpha1.GatewaySync{}
	gs.Spec.Deployment = &v1alpha1.DeploymentSpec{
		Stages:    []v1alpha1.Stage{{Name: "canary", Gateways: []string{"lime-0", "line-*"}}},
		SyncOrder: []v1alpha1.SyncOrderEntry{{Name: "press"}, {Name: "pres"}},
		Windows:   []v1alpha1.MaintenanceWindow{{Name: "nights", Gateways: []string{"test-*"}}, {Name: "all"}},
	}
	assert.Empty(t, schedule.Unmatched(gs), "no gateway is known yet")
	gs.Status.DiscoveredGateways = []v1alpha1.DiscoveredGateway{{Name: "line", PodName: "line-0"}, {Name: "press", PodName: "press"}}
	assert.Equal(t, `spec.deployment: no gateway is called "lime-0" of stage canary or "pres" of syncOrder or "test-*" of window nights; there are line (pod line-0), press`,
		schedule.Unmatched(gs))
}

func TestWindows(t *testing.T) {
	nights := v1alpha1.MaintenanceWindow{Name: "nights", Schedule: "0 22 * * *", Duration: "8h"}
	weekdays := v1alpha1.MaintenanceWindow{Name: "weekdays", Schedule: "0 6 * * 1-5", Duration: "12h"}
	freeze := v1alpha1.MaintenanceWindow{Name: "freeze", Kind: v1alpha1.WindowDeny, Schedule: "0 0 24 12 *", Duration: "72h"}
	always := v1alpha1.MaintenanceWindow{Name: "always", Kind: v1alpha1.WindowDeny, Schedule: "* * * * *", Duration: "1h"}
	leap := v1alpha1.MaintenanceWindow{Name: "leap", Schedule: "0 0 29 2 *", Duration: "1h"} // after 2096, not before 2104: cron looks ahead five years
	weekLong := v1alpha1.MaintenanceWindow{Name: "week", Kind: v1alpha1.WindowDeny, Schedule: "0 0 24 12 *", Duration: "168h"}
	dense := v1alpha1.MaintenanceWindow{Name: "dense", Schedule: "*/5 * * * *", Duration: "1m"}
	berlin := nights
	berlin.TimeZone = "Europe/Berlin"
	for name, tt := range map[string]struct {
		windows []v1alpha1.MaintenanceWindow
		gateway string
		at      string
		closed  string // the window; "" if syncs are allowed
		until   string
	}{
		"no windows":                     {at: "2026-11-24T12:00:00Z"},
		"before a window":                {windows: []v1alpha1.MaintenanceWindow{nights}, at: "2026-11-24T21:59:59Z", closed: "nights", until: "2026-11-24T22:00:00Z"},
		"the first moment":               {windows: []v1alpha1.MaintenanceWindow{nights}, at: "2026-11-24T22:00:00Z"},
		"after midnight":                 {windows: []v1alpha1.MaintenanceWindow{nights}, at: "2026-11-25T05:59:59Z"},
		"the end":                        {windows: []v1alpha1.MaintenanceWindow{nights}, at: "2026-11-25T06:00:00Z", closed: "nights", until: "2026-11-25T22:00:00Z"},
		"the first of two":               {windows: []v1alpha1.MaintenanceWindow{nights, weekdays}, at: "2026-11-29T12:00:00Z", closed: "nights", until: "2026-11-29T22:00:00Z"},
		"one of two is open":             {windows: []v1alpha1.MaintenanceWindow{nights, weekdays}, at: "2026-11-24T12:00:00Z"},
		"one of two is too far ahead":    {windows: []v1alpha1.MaintenanceWindow{nights, leap}, at: "2097-01-01T12:00:00Z", closed: "nights", until: "2097-01-01T22:00:00Z"},
		"the first is too far ahead":     {windows: []v1alpha1.MaintenanceWindow{leap, nights}, at: "2097-01-01T12:00:00Z", closed: "nights", until: "2097-01-01T22:00:00Z"},
		"denied":                         {windows: []v1alpha1.MaintenanceWindow{freeze}, at: "2026-12-25T12:00:00Z", closed: "freeze", until: "2026-12-27T00:00:00Z"},
		"denying window only":            {windows: []v1alpha1.MaintenanceWindow{freeze}, at: "2026-12-27T00:00:00Z"},
		"denied beside allowed":          {windows: []v1alpha1.MaintenanceWindow{nights, freeze}, at: "2026-12-25T23:00:00Z", closed: "freeze", until: "2026-12-27T00:00:00Z"},
		"denied, then not allowed":       {windows: []v1alpha1.MaintenanceWindow{weekdays, freeze}, at: "2026-12-25T23:00:00Z", closed: "freeze", until: "2026-12-28T06:00:00Z"},
		"denied for long, often allowed": {windows: []v1alpha1.MaintenanceWindow{dense, weekLong}, at: "2026-12-25T12:01:00Z", closed: "week", until: "2026-12-31T00:00:00Z"},
		"always denied":                  {windows: []v1alpha1.MaintenanceWindow{always}, at: "2026-12-25T23:00:00Z", closed: "always"},
		"winter time":                    {windows: []v1alpha1.MaintenanceWindow{berlin}, at: "2026-11-24T20:59:59Z", closed: "nights", until: "2026-11-24T21:00:00Z"},
		"summer time":                    {windows: []v1alpha1.MaintenanceWindow{berlin}, at: "2026-07-24T19:59:59Z", closed: "nights", until: "2026-07-24T20:00:00Z"},
		"8 hours, one hour repeated":     {windows: []v1alpha1.MaintenanceWindow{berlin}, at: "2026-10-25T04:00:00Z", closed: "nights", until: "2026-10-25T21:00:00Z"},
		"8 hours, one hour skipped":      {windows: []v1alpha1.MaintenanceWindow{berlin}, at: "2026-03-29T04:59:59Z"},
		"selected gateway":               {windows: []v1alpha1.MaintenanceWindow{gateways(nights, "area-*")}, gateway: "area-4", at: "2026-11-24T12:00:00Z", closed: "nights", until: "2026-11-24T22:00:00Z"},
		"another gateway":                {windows: []v1alpha1.MaintenanceWindow{gateways(nights, "area-*", "x")}, gateway: "line-1", at: "2026-11-24T12:00:00Z"},
		"another gateway of two windows": {windows: []v1alpha1.MaintenanceWindow{gateways(nights, "area-4"), gateways(freeze, "line-1")}, gateway: "line-1", at: "2026-12-24T12:00:00Z", closed: "freeze", until: "2026-12-27T00:00:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			w, errs := schedule.ParseWindows(tt.windows, tt.gateway)
			require.Empty(t, errs)
			at, err := time.Parse(time.RFC3339, tt.at)
			require.NoError(t, err)
			closed, until := w.Closed(at)
			assert.Equal(t, tt.closed, closed)
			if tt.closed == "" {
				assert.True(t, at.Equal(until), "an open window has no time to wait for")
				return
			}
			got := ""
			if !until.IsZero() {
				got = until.UTC().Format(time.RFC3339)
			}
			assert.Equal(t, tt.until, got)
		})
	}
}

func gateways(w v1alpha1.MaintenanceWindow, names ...string) v1alpha1.MaintenanceWindow {
	w.Gateways = names
	return w
}

// A start in the hour that a clock skips does not happen, and one in the hour that it repeats happens at least once.
func TestWindowsAtClockChange(t *testing.T) {
	w, errs := schedule.ParseWindows([]v1alpha1.MaintenanceWindow{{Name: "early", Schedule: "30 2 * * *", Duration: "1h", TimeZone: "Europe/Berlin"}}, "")
	require.Empty(t, errs)
	closed, until := w.Closed(time.Date(2026, 3, 29, 0, 0, 0, 0, time.UTC))
	assert.Equal(t, "early", closed)
	assert.Equal(t, time.Date(2026, 3, 30, 0, 30, 0, 0, time.UTC), until.UTC())
	closed, _ = w.Closed(time.Date(2026, 10, 25, 0, 30, 0, 0, time.UTC))
	assert.Empty(t, closed)
	for name, tt := range map[string]struct{ zone, schedule, begins string }{ // days without a midnight, and one that ZoneBounds gets wrong
		"Cairo, weekday":              {"Africa/Cairo", "0 8 * * 5", "2026-04-24T08:00:00+03:00"},
		"Cairo, day":                  {"Africa/Cairo", "0 8 24 * *", "2026-04-24T08:00:00+03:00"},
		"Beirut, month":               {"Asia/Beirut", "0 8 29 3 *", "2026-03-29T08:00:00+03:00"},
		"the last day of a leap year": {"Africa/Cairo", "0 8 * * *", "2040-12-31T08:00:00+02:00"},
	} {
		t.Run(name, func(t *testing.T) {
			w, errs := schedule.ParseWindows([]v1alpha1.MaintenanceWindow{{Name: "freeze", Kind: v1alpha1.WindowDeny, Schedule: tt.schedule, Duration: "10h", TimeZone: tt.zone}}, "")
			require.Empty(t, errs)
			begins, err := time.Parse(time.RFC3339, tt.begins)
			require.NoError(t, err)
			closed, until := w.Closed(begins.Add(time.Hour))
			assert.Equal(t, "freeze", closed)
			assert.Equal(t, begins.Add(10*time.Hour).UTC(), until.UTC())
			closed, _ = w.Closed(begins.Add(-time.Minute))
			assert.Empty(t, closed)
		})
	}
}

// The table of test/verdicts has the other invalid windows.
func TestWindowsValidation(t *testing.T) {
	good := v1alpha1.MaintenanceWindow{Name: "a", Schedule: "0 22 * * *", Duration: "8h"}
	for name, tt := range map[string]struct {
		change func(*v1alpha1.MaintenanceWindow)
		field  string
	}{
		"invalid name":      {func(w *v1alpha1.MaintenanceWindow) { w.Name = "A b" }, "name"},
		"one name twice":    {func(w *v1alpha1.MaintenanceWindow) { w.Name = "a" }, "name"},
		"local time zone":   {func(w *v1alpha1.MaintenanceWindow) { w.TimeZone = "Local" }, "timeZone"},
		"too many gateways": {func(w *v1alpha1.MaintenanceWindow) { w.Gateways = slices.Repeat([]string{"a"}, 257) }, "gateways"},
	} {
		t.Run(name, func(t *testing.T) {
			w := good
			w.Name = "b"
			tt.change(&w)
			_, errs := schedule.ParseWindows([]v1alpha1.MaintenanceWindow{good, w}, "")
			require.Len(t, errs, 1)
			assert.Equal(t, "spec.deployment.windows[1]."+tt.field, errs[0].Field)
		})
	}
	_, errs := schedule.ParseWindows(make([]v1alpha1.MaintenanceWindow, 17), "")
	assert.Len(t, errs, 1, "at most 16 windows")
}
